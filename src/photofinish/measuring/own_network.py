"""One's own network, and loss, tried on a batch before the training: is there all that a training, its record and its
comparison ask of them? What is not is told with the layer, or with the user's part of the traceback."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from photofinish.errors import UserError
from photofinish.models.own import same_bits, tensors_in
from photofinish.own_code import users_code
from photofinish.training.batches import Batch, seed_epoch
from photofinish.training.optimisation import Loss
from photofinish.training.torch_device import autocast, laid_out, memory_format

if TYPE_CHECKING:
    from photofinish.params.experiment import Experiment


_Step = list[tuple[str, torch.Tensor]]
"""what each layer gives, then each gradient, by name"""
_OUTPUT = "output of the network"


def refuse_what_cannot_be_trained(
    experiment: Experiment, network: nn.Module, criterion: Loss, batch: Batch, outputs: int
) -> None:
    """Try on copies what a training, its record and its comparison do with a network."""
    name, precision = f"model {experiment.model.name}", experiment.precision
    images, targets = batch
    device = images.device
    with users_code(f"{name} can't be copied, as copy.deepcopy does"):
        copies = [copy.deepcopy(network) for _ in range(3)]
    with users_code(f"{name} can't be pickled, which MLflow keeps it as"):
        pickle.dumps(network)
    layout = memory_format(network, device, precision)
    with users_code(f"{name} fails in a step on {len(images)} images of shape {tuple(images.shape[1:])}"):
        for each in copies:
            each.to(device, memory_format=layout)  # type: ignore[call-overload]
        images = laid_out(images, layout)
        first, second = (_one_step(each, criterion, (images, targets), precision, outputs) for each in copies[:2])
        copies[2].load_state_dict(copies[1].state_dict())  # as a training that goes on, or an evaluation, has it
        third, restored = (_one_step(each, criterion, (images, targets), precision, outputs) for each in copies[1:])
    _refuse_loss_that_remembers(experiment, criterion, dict(first)[_OUTPUT], targets)
    if experiment.deterministic and (what := _difference(first, second)):
        raise UserError(
            f"{name} doesn't repeat: two steps from the same start, on the same images, give another {what}. "
            f"torch's generators are seeded, as numpy.random and random are when it is built: what else is drawn "
            f"there, or depends on the time? deterministic: false in params.yaml allows it"
        )
    if experiment.deterministic and (what := _difference(third, restored)):
        raise UserError(
            f"{name} keeps something between steps that is not in its state_dict, so no checkpoint or result has it: "
            f"a second step gives another {what} where a new network is given the state after the first. Keep it in a "
            f"buffer (register_buffer)"
        )
    in_evaluation = users_code(f"{name} fails in evaluation (after eval(), in inference mode)")
    with in_evaluation, torch.inference_mode(), autocast(device, precision):
        copies[0].eval()(images)


def _refuse_loss_that_remembers(
    experiment: Experiment, criterion: Loss, outputs: torch.Tensor, targets: torch.Tensor
) -> None:
    """Before a network is blamed for it."""
    values = []
    for _ in range(2):
        seed_epoch(0, 0)
        with autocast(outputs.device, experiment.precision):
            values.append(criterion.mean(outputs, targets))
    if experiment.deterministic and not same_bits(*values):
        raise UserError(
            f"loss {criterion.name} doesn't repeat: it gives another number for the same outputs and targets. "
            f"What it keeps from one call to the next no checkpoint has: a loss must go by what it is given alone, and "
            f"draw from torch's generator alone. deterministic: false in params.yaml allows it"
        )


def _difference(here: _Step, there: _Step) -> str | None:
    """What differs first."""
    more = "number of outputs and gradients" if len(here) != len(there) else None
    pairs = zip(here, there, strict=False)
    return next((what for (what, one), (_, other) in pairs if not same_bits(one, other)), more)


def _one_step(network: nn.Module, criterion: Loss, batch: Batch, precision: str, wanted: int) -> _Step:
    images, targets = batch
    found: _Step = []

    def note(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        found.extend((f"output of {name}" if name else _OUTPUT, each.detach().clone()) for each in tensors_in(output))

    hooks = [module.register_forward_hook(partial(note, name)) for name, module in network.named_modules()]
    seed_epoch(0, 0)
    network.zero_grad()
    with autocast(images.device, precision):
        outputs = network.train()(images)
        if not isinstance(outputs, torch.Tensor) or outputs.shape != (len(images), wanted):
            told = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else f"a {type(outputs).__name__}"
            raise UserError(
                f"{type(network).__name__} gives {told} for {len(images)} images: it must give a tensor of "
                f"{len(images)} x {wanted}, a number for each class, value or label"
            )
        loss = criterion.mean(outputs, targets)
    loss.backward()  # type: ignore[no-untyped-call]
    for hook in hooks:
        hook.remove()
    gradients = ((key, parameter.grad) for key, parameter in network.named_parameters())
    return found + [(f"gradient of {key}", gradient) for key, gradient in gradients if gradient is not None]
