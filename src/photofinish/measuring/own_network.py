"""One's own network tried on a batch before the training: is there all that a training, its record and its comparison
ask of a network? What is not is told with the layer, or with the user's part of the traceback."""

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
from photofinish.training.losses import Loss
from photofinish.training.torch_device import autocast, laid_out, memory_format

if TYPE_CHECKING:
    from photofinish.params.experiment import Experiment


def refuse_what_cannot_be_trained(
    experiment: Experiment, network: nn.Module, criterion: Loss, batch: Batch, outputs: int
) -> None:
    """Try on copies what a training, its record and its comparison do with a network."""
    name, precision = f"model {experiment.model.name}", experiment.precision
    images, targets = batch
    device = images.device
    with users_code(f"{name} can't be copied, as copy.deepcopy does"):
        copies = [copy.deepcopy(network) for _ in range(2)]
    with users_code(f"{name} can't be pickled, which MLflow keeps it as"):
        pickle.dumps(network)
    layout = memory_format(network, device, precision)
    with users_code(f"{name} fails in a step on {len(images)} images of shape {tuple(images.shape[1:])}"):
        for each in copies:
            each.to(device, memory_format=layout)  # type: ignore[call-overload]
        images = laid_out(images, layout)
        steps = [_one_step(each, criterion, (images, targets), precision, outputs) for each in copies]
    for (what, here), (_, there) in zip(*steps, strict=True) if experiment.deterministic else ():
        if not same_bits(here, there):
            raise UserError(
                f"{name} doesn't repeat: two steps from the same start, on the same images, give another {what}. "
                f"torch's generators are seeded, as numpy.random and random are when it is built: what else is drawn "
                f"there, or depends on the time? deterministic: false in params.yaml allows it"
            )
    in_evaluation = users_code(f"{name} fails in evaluation (after eval(), in inference mode)")
    with in_evaluation, torch.inference_mode(), autocast(device, precision):
        copies[0].eval()(images)


def _one_step(
    network: nn.Module, criterion: Loss, batch: Batch, precision: str, wanted: int
) -> list[tuple[str, torch.Tensor]]:
    """What each layer gives, then each gradient, by name."""
    images, targets = batch
    found: list[tuple[str, torch.Tensor]] = []

    def note(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        found.extend((f"output of {name or 'the network'}", each.detach().clone()) for each in tensors_in(output))

    hooks = [module.register_forward_hook(partial(note, name)) for name, module in network.named_modules()]
    seed_epoch(0, 0)
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
