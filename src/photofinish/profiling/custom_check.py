"""Check of custom networks and losses before a training.

It is not enough that a step runs: training, record and comparison need more.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from photofinish.config.experiment import Experiment
from photofinish.custom.running import run_custom_code
from photofinish.errors import UserError
from photofinish.models.custom import same_bits
from photofinish.nested import call_with, leaves, map_nested, samples_in
from photofinish.profiling.first_step import StepResult, run_step
from photofinish.training.batches import Batch, seed_epoch
from photofinish.training.custom_step import CustomStep
from photofinish.training.failures import nondeterminism_explained
from photofinish.training.losses import Loss
from photofinish.training.torch_device import autocast, memory_format, to_memory_format


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
    one, other = _copied(network, name), _copied(network, name)
    layout = memory_format(network, device, precision)
    images = to_memory_format(images, layout)

    def step(network: nn.Module) -> StepResult:
        network.to(device, memory_format=layout).train()  # type: ignore[call-overload]
        return run_step(network, criterion, (images, targets), precision, outputs, custom_step)

    shapes = map_nested(lambda tensor: tuple(tensor.shape[1:]), images)
    failing = f"{name} fails in a step on {samples_in(targets)} samples of shape {shapes}"
    with run_custom_code(failing), nondeterminism_explained(experiment):
        first, again = step(one), step(other)
    if experiment.deterministic:
        if not custom_step:
            _check_loss_repeats(criterion, first.result, targets, precision)
        if what := _difference(first, again):
            raise UserError(
                f"{name} doesn't repeat: two steps from the same start, on the same samples, give "
                f"another {what}. torch, numpy.random and random are seeded: look for other random "
                f"numbers, or the time. deterministic: false in params.yaml allows it"
            )
    del one, first, again  # a third copy might not fit into a GPU's memory
    restored = _copied(network, name)
    with run_custom_code(failing), nondeterminism_explained(experiment):
        restored.load_state_dict(other.state_dict())
        second, second_restored = step(other), step(restored)
    what = _difference(second, second_restored)
    if experiment.deterministic and what:
        raise UserError(
            f"{name} keeps something between steps that is not in its state_dict, so no "
            f"checkpoint or result has it: a second step gives another {what} where a new "
            f"network gets the state after the first. Keep it in a buffer (register_buffer)"
        )
    if custom_step:
        return
    in_evaluation = run_custom_code(f"{name} fails in evaluation (after eval(), in inference mode)")
    with in_evaluation, torch.inference_mode(), autocast(device, precision):
        call_with(other.eval(), images)


def _copied(network: nn.Module, name: str) -> nn.Module:
    with run_custom_code(f"{name} can't be copied, as copy.deepcopy does"):
        return copy.deepcopy(network)


def _check_loss_repeats(criterion: Loss, outputs: Any, targets: Any, precision: str) -> None:
    """Raise UserError if the loss returns another number for equal outputs."""
    values = []
    for _ in range(2):
        seed_epoch(0, 0)
        with autocast(leaves(outputs)[0].device, precision):
            values.append(criterion.mean(outputs, targets))
    if not same_bits(*values):
        raise UserError(
            f"loss {criterion.name} doesn't repeat: it gives another number for the same outputs "
            f"and targets. It must keep nothing from one call to the next, and draw only from "
            f"torch's generator. deterministic: false in params.yaml allows it"
        )


def _difference(first: StepResult, second: StepResult) -> str | None:
    """Return the name of the first difference, or None."""
    for name in {**first.outputs, **second.outputs}:
        outputs, others = first.outputs.get(name, []), second.outputs.get(name, [])
        if len(outputs) != len(others) or not all(map(same_bits, outputs, others)):
            return f"output of {name}"
    if not all(map(same_bits, leaves(first.result), leaves(second.result))):
        return "output of the network"
    for name in {**first.gradients, **second.gradients}:
        if not same_bits(first.gradients.get(name), second.gradients.get(name)):
            return f"gradient of {name}"
    return None
