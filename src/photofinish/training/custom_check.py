"""Check of custom networks and losses before a training.

It is not enough that a step runs: training, record and comparison need more.
"""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from photofinish.config.experiment import Experiment
from photofinish.custom.running import run_custom_code
from photofinish.errors import UserError
from photofinish.models.custom import blank, generators_kept, same_bits, tensors_in
from photofinish.nested import Nested, call_with, leaves, map_nested, samples_in
from photofinish.training.batches import Batch, seed_epoch
from photofinish.training.failures import nondeterminism_explained
from photofinish.training.losses import CustomStep, Loss
from photofinish.training.torch_device import (
    CPU,
    autocast,
    generator_state,
    memory_format,
    to_memory_format,
)

if TYPE_CHECKING:
    from photofinish.data import Dtype

_RECORDED_IMAGES = 4
"""Images whose outputs are kept. With normalisation, each depends on the whole batch."""
Tensors = dict[str, torch.Tensor]


def fails_in_channels_last(
    network: nn.Module, device: torch.device, precision: str, shape: Any, dtype: Nested[Dtype]
) -> bool:
    """Return True if the network calls `view` on images that channels_last lays out otherwise.

    It is tried on two samples of zeros on the CPU, if channels_last is safe there.
    """
    layouts = {memory_format(network, each, precision) for each in (device, CPU)}
    if layouts != {layout := torch.channels_last}:
        return False
    inputs = map_nested(lambda sample: torch.cat([sample, sample]), blank(shape, dtype))
    with generators_kept(), torch.no_grad():
        try:
            scratch = copy.deepcopy(network).to(memory_format=layout)
            call_with(scratch, to_memory_format(inputs, layout))
        except Exception as error:  # noqa: BLE001  # the check below reports others
            return "view size is not compatible" in str(error)
    return False


def validate_custom_model(
    experiment: Experiment,
    network: nn.Module,
    criterion: Loss,
    batch: Batch,
    outputs: int,
    custom_step: CustomStep | None = None,
) -> None:
    """Raise UserError if a training, its record or its comparison can't use the network.

    It must give `outputs` numbers for a sample.
    """
    name, precision = f"model {experiment.model.name}", experiment.precision
    images, targets = batch
    device = leaves(images)[0].device
    other = copy.deepcopy(network)
    layout = memory_format(network, device, precision)
    images = to_memory_format(images, layout)

    def step(network: nn.Module) -> StepResult:
        network.to(device, memory_format=layout).train()  # type: ignore[call-overload]
        return run_step(network, criterion, (images, targets), precision, outputs, custom_step)

    shapes = map_nested(lambda tensor: tuple(tensor.shape[1:]), images)
    failing = f"{name} fails in a step on {samples_in(targets)} samples of shape {shapes}"
    with run_custom_code(failing), nondeterminism_explained(experiment):
        first = step(copy.deepcopy(network))
        again = step(other)
    if experiment.deterministic and (what := _difference(first, again)):
        raise UserError(
            f"{name} doesn't repeat: from the same start, on the same samples, a second step gives "
            f"a different {what}. torch, numpy.random and random are seeded, so look for other "
            f"random numbers, or the time. deterministic: false in params.yaml allows it"
        )
    del first, again  # a third copy might not fit into a GPU's memory
    restored = copy.deepcopy(network)
    with run_custom_code(failing), nondeterminism_explained(experiment):
        restored.load_state_dict(other.state_dict())
        second, second_restored = step(other), step(restored)
    if experiment.deterministic and (what := _difference(second, second_restored)):
        raise UserError(
            f"{name} keeps state outside its state_dict, so checkpoints lose it: resumed after "
            f"one step, the next gives a different {what}. Keep it in a buffer (register_buffer)"
        )


def _difference(first: StepResult, second: StepResult) -> str | None:
    """Return the name of the first difference, or None."""
    for name in {**first.outputs, **second.outputs}:
        outputs, others = first.outputs.get(name, []), second.outputs.get(name, [])
        if len(outputs) != len(others) or not all(map(same_bits, outputs, others)):
            return f"output of {name}"
    if not all(map(same_bits, leaves(first.result), leaves(second.result))):
        return "output of the network"
    if first.loss != second.loss and not math.isnan(first.loss):
        return "loss"
    for name in {**first.gradients, **second.gradients}:
        if not same_bits(first.gradients.get(name), second.gradients.get(name)):
            return f"gradient of {name}"
    return None


class StepResult(NamedTuple):
    loss: float
    result: Any
    outputs: dict[str, list[torch.Tensor]]
    """Outputs of each innermost module in all its calls, for the first few images."""
    gradients: Tensors
    draws: bool
    """True if the step drew from the device's generator."""

    def first_outputs_and_gradients(self) -> tuple[Tensors, Tensors]:
        return {name: outputs[0] for name, outputs in self.outputs.items()}, self.gradients


def run_step(
    network: nn.Module,
    criterion: Loss,
    batch: Batch,
    precision: str,
    width: int | None = None,
    custom_step: CustomStep | None = None,
) -> StepResult:
    """Run a forward and a backward pass. Raise UserError unless outputs have the given width.

    A validation step may have no gradient, as under torch.no_grad.
    """
    images, targets = batch
    outputs: dict[str, list[torch.Tensor]] = {}

    def note(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        for tensor in tensors_in(output):
            some = tensor[:_RECORDED_IMAGES] if tensor.dim() else tensor
            # Copied, because a later module may work in place.
            outputs.setdefault(name, []).append(some.detach().clone())

    hooks = []
    for name, module in network.named_modules():
        if next(module.children(), None) is None:
            hooks.append(module.register_forward_hook(partial(note, name or "(network)")))
    network.zero_grad()
    device = leaves(images)[0].device
    seed_epoch(0, 0)  # custom networks may draw
    generator = generator_state(device)
    with autocast(device, precision):
        if custom_step:
            result = loss = custom_step(network, batch)
        else:
            result = call_with(network, images)
            if width is not None and isinstance(targets, torch.Tensor):
                _check_outputs(type(network).__name__, result, targets, width)
            loss = criterion.mean(result, targets)
    if loss.requires_grad or not custom_step or custom_step.trains:
        loss.backward()  # type: ignore[no-untyped-call]
    for hook in hooks:
        hook.remove()
    gradients = {}
    for name, weight in network.named_parameters():
        if weight.grad is not None and weight.grad.layout == torch.strided:
            gradients[name] = weight.grad
    draws = not torch.equal(generator, generator_state(device))
    return StepResult(
        loss.item(), map_nested(torch.Tensor.detach, result), outputs, gradients, draws
    )


def _check_outputs(name: str, result: Any, targets: torch.Tensor, width: int) -> None:
    count, positions = len(targets), tuple[int, ...]()
    if not targets.is_floating_point():
        positions = tuple(targets.shape[1:])
    expected = {(count, width, *positions), (count, *positions, width)}
    is_tensor = isinstance(result, torch.Tensor)
    if is_tensor and tuple(result.shape) in expected:
        return
    actual = tuple(result.shape) if is_tensor else f"a {type(result).__name__}"
    wanted = " or ".join(map(str, sorted(expected)))
    message = (
        f"{name} gives {actual} for {count} samples: it must give a tensor of {wanted}, "
        f"a number for each class, value or label"
    )
    if positions:
        message += " at each position. A longer attribute `classes` of the data set names more"
    elif not is_tensor:
        message += ". `output: 0`, or a name, beside the model's name chooses a part"
    elif result.dim() > 2:
        message += ". For a class at each position, give targets of whole numbers for each position"
    raise UserError(message)
