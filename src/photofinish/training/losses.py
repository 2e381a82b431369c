"""Forward passes and their losses: PyTorch's, by name, custom losses and custom steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional

from photofinish.custom.reference import CodeReference, is_reference
from photofinish.custom.running import as_function, run_custom_code
from photofinish.data.tasks import TASKS, Classes, Task
from photofinish.errors import ConfigError, UserError
from photofinish.nested import call_with, leaves, map_nested, samples_in
from photofinish.training.torch_device import to_memory_format

if TYPE_CHECKING:
    from photofinish.config import losses_and_metrics as params
    from photofinish.config.experiment import Experiment, StepSettings
    from photofinish.data import TaskName
    from photofinish.training.batches import Batch
    from photofinish.training.state import TrainState

_HALF = torch.float16, torch.bfloat16
Weight = torch.Tensor | int
"""Divisor that turns a summed loss into a mean."""


def to_input(state: TrainState, batch: Batch) -> Batch:
    """Return a batch in the network's memory format."""
    return to_memory_format(batch[0], state.memory_format), batch[1]


def predict(network: nn.Module, state: TrainState, batch: Batch) -> tuple[Any, Any]:
    """Return the network's outputs for a batch, and the targets on their device."""
    inputs, targets = batch
    outputs = call_with(network, to_memory_format(inputs, state.memory_format))
    if isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor):  # fast
        return outputs, targets.to(outputs.device, non_blocking=True)
    device = leaves(outputs)[0].device
    return outputs, map_nested(lambda part: part.to(device, non_blocking=True), targets)


def _cross_entropy(outputs: torch.Tensor, targets: torch.Tensor, **arguments: Any) -> torch.Tensor:
    return functional.cross_entropy(_at_least_fp32(outputs), targets, **arguments)


def _at_least_fp32(outputs: torch.Tensor) -> torch.Tensor:
    """Return outputs that are fp32 or wider. CUDA's autocast would keep bf16 and fp16."""
    return outputs.float() if outputs.dtype in _HALF else outputs


_BUILT_IN: dict[str, Callable[..., Any]] = {
    "cross_entropy": _cross_entropy,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "bce_with_logits": functional.binary_cross_entropy_with_logits,
}
_PER_CLASS = {"weight": "classes", "pos_weight": "labels"}
"""Arguments that hold one number for each class or label."""


class _NllLoss(torch.autograd.Function):
    """Mean negative log-likelihood with a gradient that is computed before."""

    @staticmethod
    def forward(
        ctx: Any, log_probs: torch.Tensor, targets: torch.Tensor, gradient: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(gradient)
        return functional.nll_loss(log_probs, targets)

    @staticmethod
    def backward(ctx: Any, _one: torch.Tensor) -> Any:
        return ctx.saved_tensors[0], None, None


def _nll_gradients(log_probs: torch.Tensor, targets: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return each batch's gradient of its mean. Equal sizes are computed in one go."""
    parts: list[torch.Tensor] = []
    for size, group in groupby(targets, key=len):
        batches = [*group]
        rows = torch.cat(batches) if len(batches) > 1 else batches[0]
        gradients = log_probs.new_zeros(len(rows), log_probs.shape[1])
        gradients.scatter_(1, rows[:, None], -1 / size)
        parts += torch.split(gradients, size)
    return parts


class Loss:
    """Loss of a batch: a mean, or a sum and a weight, which add up over batches."""

    def __init__(
        self,
        settings: params.Loss | None,
        task: TaskName,
        device: torch.device,
    ) -> None:
        self.task = TASKS[task].read_by(settings)
        if problem := _loss_problem(settings.name if settings else None, self.task):
            raise ConfigError(problem)
        self.name = settings.name if settings else self.task.losses[0]
        self._is_custom = is_reference(self.name)
        arguments: dict[str, Any] = {}
        if settings and self._is_custom:
            self._loss = _custom_loss(cast("params.CustomLoss", settings), device)
        else:
            if settings:
                arguments = settings.model_dump(exclude={"name"}, exclude_defaults=True)
            for key in _PER_CLASS.keys() & arguments.keys():
                arguments[key] = torch.tensor(arguments[key], device=device)
            self._loss = partial(_BUILT_IN[self.name], **arguments)
        if "ignore_index" in arguments:
            self.task = Classes(arguments["ignore_index"])
        self._class_weights: torch.Tensor | None = arguments.get("weight")
        self.has_tensors = self._is_custom or bool(_PER_CLASS.keys() & arguments.keys())
        """True if the loss has float32 tensors. A custom loss may have some."""
        self._is_plain_cross_entropy = self.name == "cross_entropy" and not arguments
        self._targets: list[torch.Tensor] = []
        self._gradients: Iterator[torch.Tensor] | None = None

    @classmethod
    def of(cls, experiment: Experiment, task: TaskName, device: torch.device) -> Loss:
        """Return the experiment's loss. If a custom step replaces it, targets may have any form."""
        is_judged = not TASKS[task].losses and experiment.step and not experiment.loss
        return cls(experiment.loss, "values" if is_judged else task, device)

    @contextmanager
    def gradients_at_once(self, targets: list[torch.Tensor]) -> Iterator[None]:
        """Compute all batches' gradients in one go, which saves two kernels in each step.

        With respect to log-probabilities, cross-entropy's gradient depends on the targets only. In
        the block, each batch's mean must be computed once, in the order of `targets`, and its
        backward pass starts with 1, so a loss that is scaled can't use it.
        """
        if self._is_plain_cross_entropy and all(batch.dim() == 1 for batch in targets):
            self._targets = targets
        try:
            yield
        finally:
            self._targets, self._gradients = [], None

    def mean(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self._targets and outputs.dim() == 2:
            log_probs = _at_least_fp32(outputs).log_softmax(1)
            if self._gradients is None:
                self._gradients = iter(_nll_gradients(log_probs, self._targets))
            loss = _NllLoss.apply(log_probs, targets, next(self._gradients))
            return cast("torch.Tensor", loss)
        if not self._is_custom:
            mean: torch.Tensor = self._loss(*self.task.by_position(outputs, targets))
            return mean
        total, weight = self._checked(self._loss(outputs, targets))
        return total if weight is None else total / weight

    def sum_and_weight(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, Weight]:
        """Return the loss summed over the samples, and the count or weight to divide it by."""
        count = samples_in(targets)
        if self.task.is_one_of_many and not self._is_custom:
            positions = self.task.num_predictions(targets)
            outputs, targets = self.task.by_position(outputs, targets)
            total = self._loss(outputs, targets, reduction="sum")
            weights = self._class_weights
            if weights is None or targets.is_floating_point():
                return total, positions
            if isinstance(positions, int):
                return total, weights[targets].sum()
            is_counted = targets != self.task.ignore_index
            return total, (weights[targets.where(is_counted, 0)] * is_counted).sum()
        if not count:
            # DDP waits for the gradients of every output. A mean over no samples is NaN.
            nothing = sum(leaf.nan_to_num(0, 0, 0).sum() for leaf in leaves(outputs)) * 0.0
            return nothing, torch.zeros((), device=nothing.device) if self._is_custom else 0
        total, weight = self._checked(self._loss(outputs, targets))
        if weight is None:
            total = total * count
            weight = torch.full((), count, dtype=torch.float32, device=total.device)
        return total, weight if self._is_custom else count

    def _checked(self, loss: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return a custom loss's mean and None, or its sum and detached weight."""
        match loss:
            case torch.Tensor(shape=()):
                return loss, None
            case (torch.Tensor(shape=()) as total, torch.Tensor(shape=()) as weight):
                return total, weight.detach()
        raise UserError(
            f"loss {self.name} returns {loss!r:.200}: it must return one number, the mean over the "
            f"batch, or two, a sum and the weight that it is divided by"
        )


def _custom_loss(settings: params.CustomLoss, device: torch.device) -> Callable[..., Any]:
    custom = CodeReference.of(settings.name).load()
    with run_custom_code(f"loss {settings.name} can't be made"):
        loss = as_function(custom, settings.arguments)
    if isinstance(loss, nn.Module):
        loss = loss.to(device)
        if any(True for _ in loss.parameters()):
            raise UserError(
                f"loss {settings.name} has parameters, which no optimizer gets: "
                "move them to the network"
            )
    return loss


def _loss_problem(loss: str | None, task: Task) -> str | None:
    """Return why the loss does not fit the targets, or None. A custom loss may fit any."""
    if not task.losses and not (loss and is_reference(loss)):
        return (
            "loss is missing: the targets of this data set are a tuple or dict, which only a "
            "custom loss or step can interpret. Name one, such as `loss: ./losses.py:both`"
        )
    if loss is None or is_reference(loss) or loss in task.losses:
        return None
    problem = (
        f"loss {loss} does not fit the targets of this data set, which are {task.name}: "
        f"use {' or '.join(task.losses)}, or leave loss out"
    )
    if task.name == "labels" and loss in TASKS["classes"].losses:
        problem += ". For one-hot rows, set task: classes for the data set"
    elif task.name == "labels" and loss in TASKS["values"].losses:
        problem += ". For values that happen to be 0 or 1, set task: values for the data set"
    return problem


class CustomStep:
    """Custom function of (network, batch), and of the optimizers if it steps them itself."""

    def __init__(self, settings: StepSettings, *, trains: bool = True) -> None:
        self._name, self.trains = settings.name, trains
        self._call: Callable[..., Any] = as_function(
            CodeReference.of(settings.name).load(), settings.arguments
        )

    def __call__(self, *arguments: Any) -> torch.Tensor:
        """Return the batch's loss. Raise UserError if the loss is not a scalar."""
        with run_custom_code(f"step {self._name} fails"):
            loss = self._call(*arguments)
        if not isinstance(loss, torch.Tensor) or loss.dim():
            raise UserError(
                f"step {self._name} returns {loss!r:.100}: it must return one number, a tensor "
                f"without dimensions, the mean loss of the batch"
            )
        return loss


def step_with_a_loss(experiment: Experiment) -> CustomStep | None:
    """Return the custom step of (network, batch) that returns a loss, or None."""
    validation = experiment.validation_step
    settings = experiment.validation_step or experiment.step
    return CustomStep(settings, trains=not validation) if settings else None
