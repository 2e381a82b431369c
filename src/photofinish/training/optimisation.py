"""Losses, optimizers and learning-rate schedules, with PyTorch's names and defaults, and custom losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer, lr_scheduler

from photofinish.config.catalogue import LOSSES, loss_problem
from photofinish.custom_code import Reference, is_reference, users_code
from photofinish.errors import ConfigError, UserError
from photofinish.training.torch_device import is_accelerator, to_device

if TYPE_CHECKING:
    from photofinish.config import experiment as params
    from photofinish.data import Task

_BUILT_IN: dict[str, Callable[..., Any]] = {
    "cross_entropy": functional.cross_entropy,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "bce_with_logits": functional.binary_cross_entropy_with_logits,
}
_FOR_EACH = {"weight": "classes", "pos_weight": "labels"}
"""arguments that hold one number for each class or label"""


class _NllLoss(torch.autograd.Function):
    """Mean negative log-likelihood, whose gradient was made before."""

    @staticmethod
    def forward(ctx: Any, log_probs: torch.Tensor, targets: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gradient)
        return functional.nll_loss(log_probs, targets)

    @staticmethod
    def backward(ctx: Any, _one: torch.Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient, None, None


class Loss:
    """The loss of a batch: its mean for a training step, or a sum and a weight, which add up over batches."""

    def __init__(self, settings: params.Loss | None, task: Task, device: torch.device) -> None:
        self.name = settings.name if settings else LOSSES[task][0]
        if problem := loss_problem(self.name, task):
            raise ConfigError(problem)
        self._task = task
        self._class_weights: torch.Tensor | None = None
        self._is_own = is_reference(self.name)
        if settings and self._is_own:
            self._loss = _own_loss(cast("params.OwnLoss", settings), device)
        else:
            arguments = settings.model_dump(exclude={"name"}, exclude_none=True) if settings else {}
            arguments |= {key: torch.tensor(arguments[key], device=device) for key in _FOR_EACH if key in arguments}
            self._class_weights = arguments.get("weight")
            self._loss = partial(_BUILT_IN[self.name], **arguments)
        self.has_tensors = self._is_own or any(key in arguments for key in _FOR_EACH)
        """True if the loss has float32 tensors, or may have"""
        smooths = getattr(settings, "label_smoothing", 0) > 0
        self._is_plain_cross_entropy = self.name == "cross_entropy" and self._class_weights is None and not smooths
        self._targets_ahead: list[torch.Tensor] | None = None
        self._gradients: Iterator[torch.Tensor] | None = None
        self.reads_back = self._class_weights is not None and smooths
        """PyTorch's cross-entropy then selects by a mask, whose count the host waits for"""

    @contextmanager
    def gradients_at_once(self, targets: list[torch.Tensor]) -> Iterator[None]:
        """Make the gradients of these batches' means together: two kernels less a step, with the same bits.

        With respect to log-probabilities, cross-entropy's gradient depends on the targets alone. Each batch's mean is
        computed once, in this order, and its own gradient must be 1.
        """
        if self._is_plain_cross_entropy:
            self._targets_ahead = targets
        try:
            yield
        finally:
            self._targets_ahead = self._gradients = None

    def mean(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean over the batch, as a scalar."""
        if self._targets_ahead and outputs.dim() == 2:
            log_probs = outputs.float().log_softmax(1)
            if self._gradients is None:
                first, *others = self._targets_ahead
                rows = torch.cat([first, *others]) if others else first
                made = log_probs.new_zeros(len(rows), log_probs.shape[1])
                made.scatter_(1, rows[:, None], -1 / len(targets))
                self._gradients = iter(torch.split(made, len(targets)))
            return cast("torch.Tensor", _NllLoss.apply(log_probs, targets, next(self._gradients)))
        total, weight = self._checked(self._loss(outputs, targets))
        return total if weight is None else total / weight

    def parts(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | int]:
        """Return the sum over the items and their weight: their number, or a tensor. Both are 0 without items."""
        count = len(targets)
        if self._task == "classes" and not self._is_own:
            total = self._loss(outputs, targets, reduction="sum")
            return total, count if self._class_weights is None else self._class_weights[targets].sum()
        total, weight = outputs.sum() * 0.0, torch.full((), count, dtype=torch.float32, device=outputs.device)
        if count:
            loss, own_weight = self._checked(self._loss(outputs, targets))
            total, weight = (loss * count, weight) if own_weight is None else (loss, own_weight)
        return total, weight if self._is_own else count

    def _checked(self, loss: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return a custom loss's mean, or its sum and detached weight. Raises UserError if it returns anything else."""
        given = loss if isinstance(loss, tuple) else (loss,)
        if len(given) not in (1, 2) or not all(isinstance(each, torch.Tensor) and each.dim() == 0 for each in given):
            got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {loss!r:.200}"
            raise UserError(
                f"loss {self.name} gives {got}: it must give one number, the mean over the batch, or two, a sum and "
                f"the weight that it is divided by"
            )
        return given[0], given[1].detach() if len(given) == 2 else None

    def right(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the number of correct predictions. With several labels, an item counts by its correct ones."""
        if self._task == "classes":
            return (outputs.argmax(dim=1) == targets).sum()
        if self._task == "labels":
            return ((outputs > 0) == (targets > 0)).float().mean(dim=1).sum()
        return torch.zeros((), device=outputs.device)


def check_class_weights(settings: params.Loss | None, names: tuple[str, ...]) -> None:
    """Raise ConfigError if the loss has a number for each class or label, and not as many as there are."""
    for key, what in _FOR_EACH.items():
        numbers = getattr(settings, key, None) if settings and not is_reference(settings.name) else None
        if numbers is not None and len(numbers) != len(names):
            raise ConfigError(
                f"loss.{key} has {len(numbers)} numbers, and there are {len(names)} {what}: give one for each, in the "
                f"order of {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"
            )


def _own_loss(settings: params.OwnLoss, device: torch.device) -> Callable[..., Any]:
    """Return a custom loss: an instance of a class, or a function with its arguments."""
    found = Reference.of(settings.name).load()
    if not isinstance(found, type):
        return partial(found, **settings.arguments)
    with users_code(f"loss {settings.name} can't be made"):
        loss = found(**settings.arguments)
        if not isinstance(loss, nn.Module):
            return loss  # type: ignore[no-any-return]
        loss = loss.to(device)
    if any(True for _ in loss.parameters()):
        raise UserError(f"loss {settings.name} has parameters, which no optimizer would see: put them into the network")
    return loss


def build_optimizer(
    settings: params.Optimizer, parameters: Iterable[nn.Parameter], *, loss_is_scaled: bool = False
) -> Optimizer:
    """Build PyTorch's optimizer, fused into one kernel except for SGD on the CPU (docs/performance.md).

    On an accelerator its state is created here. A fused SGD would create its momentum in the first step, and leave it
    unwritten if a scaled loss overflows there. A captured step can't create state for the next one.
    """
    parameters, given = list(parameters), _arguments(settings)
    there = is_accelerator(parameters[0].device)
    if settings.name == "sgd":
        damped = has_another_first_step(settings)
        sgd = SGD(parameters, **given, foreach=False, fused=there and not (damped and loss_is_scaled))
        if there and settings.momentum and not damped:
            make_momentum(sgd)
        return sgd
    adam = (Adam if settings.name == "adam" else AdamW)(parameters, **given, fused=True)
    if there:
        for parameter in parameters:
            steps = torch.zeros((), dtype=torch.float32, device=parameter.device)
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            adam.state[parameter] = {"step": steps, **moments}
    return adam


def _arguments(settings: params.Optimizer | params.Schedule) -> dict[str, Any]:
    """Return the settings as arguments: they have PyTorch's names."""
    return {name: value for name, value in vars(settings).items() if name != "name"}


def has_another_first_step(settings: params.Optimizer) -> bool:
    """Return True if the optimizer's first step is not the one that it takes with a momentum of zeros."""
    return settings.name == "sgd" and settings.momentum > 0 and settings.dampening > 0


def make_momentum(optimizer: Optimizer) -> None:
    """Create an SGD's momentum, before its first step."""
    (group,) = optimizer.param_groups
    for parameter in group["params"]:
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


@contextmanager
def override_group(optimizer: Optimizer, **settings: object) -> Iterator[None]:
    """Override settings of the optimizer's parameter group within the block."""
    (group,) = optimizer.param_groups
    own = {name: group[name] for name in settings if name in group}
    group.update(settings)
    try:
        yield
    finally:
        for name in settings.keys() - own.keys():
            del group[name]
        group.update(own)


class DeviceLearningRates:
    """The learning rates of the next steps, on the device.

    A captured step reads its slot at each replay. The rates are float32, and an accelerator's eager steps read them
    from slots too, so that both compute the same bits.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self._slots = torch.zeros(count, dtype=torch.float32, device=device)
        self._rates: list[float] = []
        self.each = self._slots.unbind()
        """a scalar tensor for each step"""

    def fill(self, rates: list[float]) -> None:
        """Write one rate to each slot, unless they are there already."""
        if rates == self._rates:
            return
        self._rates = rates
        if len(set(rates)) == 1:
            self._slots.fill_(rates[0])
        else:
            self._slots.copy_(to_device(torch.tensor(rates, dtype=torch.float32), self._slots.device))


class Schedule:
    """The learning rate over time. It changes each batch with one-cycle, and each epoch with the others."""

    def __init__(self, settings: params.Schedule, optimizer: Optimizer, *, epochs: int, steps_per_epoch: int) -> None:
        self._optimizer = optimizer
        group = optimizer.param_groups[0]
        device = group["params"][0].device
        self._slots = DeviceLearningRates(1, device) if group["fused"] and is_accelerator(device) else None
        self._steps_each_batch = settings.name == "one_cycle"
        self._scheduler: lr_scheduler.LRScheduler | None = None
        given = _arguments(settings)
        match settings.name:
            case "step":
                self._scheduler = lr_scheduler.StepLR(optimizer, **given)
            case "cosine":
                self._scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs, **given)
            case "one_cycle":
                steps = epochs * steps_per_epoch
                if settings.pct_start * steps == 1:  # PyTorch divides by the length of the rise, less one
                    raise UserError(
                        f"schedule.pct_start is {settings.pct_start}: of {steps} steps in all, that is a rise of one "
                        f"step, which one_cycle can't do; give another pct_start in params.yaml"
                    )
                # cycle_momentum would override the user's momentum.
                self._scheduler = lr_scheduler.OneCycleLR(optimizer, total_steps=steps, cycle_momentum=False, **given)
            case "reduce_on_plateau":
                self._scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, **given)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    def applied(self, slot: torch.Tensor | None = None) -> AbstractContextManager[None]:
        """Return a context for the optimizer's step, in which an accelerator's reads its rate from a slot."""
        if self._slots is None:
            return nullcontext()
        if slot is None:
            self._slots.fill([self.learning_rate])
            (slot,) = self._slots.each
        return override_group(self._optimizer, lr=slot)

    def next_rates(self, steps: int) -> list[float]:
        """Return the rates of so many steps, and advance past them."""
        rates = []
        for _ in range(steps):
            rates.append(self.learning_rate)
            self.batch_ended()
        return rates

    def batch_ended(self) -> None:
        """Advance to the next batch's rate, if the schedule changes each batch."""
        if self._steps_each_batch and self._scheduler:
            self._scheduler.step()

    def epoch_ended(self, validation_loss: float) -> None:
        """Advance to the next epoch's rate, if the schedule changes each epoch."""
        if isinstance(self._scheduler, lr_scheduler.ReduceLROnPlateau):
            self._scheduler.step(validation_loss)
        elif self._scheduler and not self._steps_each_batch:
            self._scheduler.step()

    def state_dict(self) -> dict[str, object]:
        """Return the scheduler's state, empty if the rate is constant."""
        return dict(self._scheduler.state_dict()) if self._scheduler else {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore what `state_dict` returned."""
        if self._scheduler:
            self._scheduler.load_state_dict(state)
