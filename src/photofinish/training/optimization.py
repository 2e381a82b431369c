"""Optimizers and learning-rate schedules, with PyTorch's names and defaults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from photofinish.config.pytorch_names import (
    CONSTANT,
    FUSED,
    MOVED_BY_STEPS,
    OPTIMIZERS,
    SCHEDULES,
    arguments_of,
    may_be_fused,
)
from photofinish.custom.reference import is_reference
from photofinish.custom.running import accepted_arguments, run_custom_code
from photofinish.errors import UserError
from photofinish.training.torch_device import is_accelerator, to_device

if TYPE_CHECKING:
    from photofinish.config import experiment as params


def build_optimizers(
    settings: params.Optimizer, network: nn.Module, *, loss_is_scaled: bool = False
) -> list[Optimizer]:
    """Build PyTorch's optimizer, or what a custom function of the network returns: one or several.

    A custom class gets the parameters, as PyTorch's do.
    """
    parameters, arguments = list(network.parameters()), arguments_of(settings)
    reference = OPTIMIZERS.reference(settings.name)
    if arguments.get("lr", 0) is None:  # a custom function may take none
        del arguments["lr"]
    if not is_reference(settings.name):
        with run_custom_code(f"optimizer {settings.name} can't be made"):
            return [_pytorch_optimizer(reference.name, parameters, arguments, loss_is_scaled)]
    custom = reference.load()
    is_class = isinstance(custom, type)
    with run_custom_code(f"optimizer {settings.name} can't be made"):
        built = custom(parameters if is_class else network, **arguments)
    optimizers = list(built) if isinstance(built, list | tuple) else [built]
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise UserError(
                f"optimizer {settings.name} gives a {type(optimizer).__name__}: "
                f"it must give a torch.optim.Optimizer, or a list of several"
            )
    return optimizers


def check_several_optimizers(experiment: params.Experiment) -> None:
    """Raise UserError for settings that need one optimizer, which the trainer steps."""
    if not (experiment.step and experiment.validation_step):
        raise UserError(
            f"optimizer {experiment.optimizer.name} gives several optimizers: params.yaml needs a "
            f"`step` that steps them, and a `validation_step` that returns the validation loss"
        )
    settings = {
        "schedule": experiment.schedule.name != CONSTANT,
        "warmup_steps": experiment.warmup_steps > 0,
        "clip_grad_norm": experiment.clip_grad_norm is not None,
        "accumulate": experiment.accumulate > 1,
        "precision: fp16": experiment.precision == "fp16",
    }
    if unusable := [name for name, is_set in settings.items() if is_set]:
        raise UserError(
            f"{', '.join(unusable)} in params.yaml needs one optimizer, and "
            f"{experiment.optimizer.name} gives several: do this in the step, or leave it out"
        )


def _pytorch_optimizer(
    name: str, parameters: list[nn.Parameter], arguments: dict[str, Any], loss_is_scaled: bool
) -> Optimizer:
    """Build an optimizer of torch.optim.

    SGD (except on the CPU, docs/performance.md), Adam and AdamW are fused, unless params.yaml asks
    for another implementation. On an accelerator, fused ones get their state here: a captured step
    can't create it for the next one.
    """
    if name not in FUSED:
        return cast("Optimizer", getattr(torch.optim, name)(parameters, **arguments))
    on_accelerator = is_accelerator(parameters[0].device)
    momentum, dampening = (arguments.get(key, 0) for key in ("momentum", "dampening"))
    is_damped = momentum > 0 and dampening > 0
    defaults = {"fused": may_be_fused(arguments)}
    if name == "SGD":
        # Fused, dampened SGD leaves its momentum unwritten if the first scaled loss overflows.
        may_fuse = on_accelerator and not (is_damped and loss_is_scaled)
        defaults = {"foreach": False, "fused": defaults["fused"] and may_fuse}
    optimizer = getattr(torch.optim, name)(parameters, **(defaults | arguments))
    if on_accelerator and optimizer.defaults["fused"] and not is_damped:
        for parameter in parameters:
            if parameter.requires_grad:
                optimizer.state[parameter] = _first_state(name, parameter, arguments)
    return cast("Optimizer", optimizer)


def _first_state(
    name: str, parameter: nn.Parameter, arguments: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """Return a fused optimizer's state before its first step."""
    if name == "SGD":
        names = ["momentum_buffer"] if arguments.get("momentum") else []
        return {name: torch.zeros_like(parameter) for name in names}
    names = ["exp_avg", "exp_avg_sq"]
    if arguments.get("amsgrad"):
        names.append("max_exp_avg_sq")
    step = torch.zeros((), dtype=torch.float32, device=parameter.device)
    return {"step": step, **{name: torch.zeros_like(parameter) for name in names}}


@contextmanager
def override_group(optimizer: Optimizer, **settings: object) -> Iterator[None]:
    """Override settings of the optimizer's only parameter group within the block."""
    (group,) = optimizer.param_groups
    before = dict(group)
    group.update(settings)
    try:
        yield
    finally:
        for name in settings:
            del group[name]
        group.update(before)


class DeviceLearningRates:
    """The learning rates of the next steps, on the device.

    A captured step reads its slot at each replay. The rates are float32, and an accelerator's eager
    steps read them from slots too, so that both compute the same bits.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self._rates: list[float] = []
        self._tensor = torch.zeros(count, dtype=torch.float32, device=device)
        self.slots = self._tensor.unbind()
        """A scalar tensor for each step."""

    def fill(self, rates: list[float]) -> None:
        """Write one rate to each slot, unless they are there already."""
        if rates == self._rates:
            return
        self._rates = rates
        if len(set(rates)) == 1:
            self._tensor.fill_(rates[0])
        else:
            values = torch.tensor(rates, dtype=torch.float32)
            self._tensor.copy_(to_device(values, self._tensor.device))


class Schedule:
    """The learning rate over time, for every parameter group.

    It moves after each step or each epoch, or by the validation loss. A warm-up multiplies it.
    """

    def __init__(
        self,
        settings: params.Schedule,
        optimizer: Optimizer,
        *,
        epochs: int,
        steps_per_epoch: int,
        warmup_steps: int = 0,
    ) -> None:
        self._optimizer, self._warmup_steps = optimizer, warmup_steps
        self._steps_done = 0
        groups = optimizer.param_groups
        device = groups[0]["params"][0].device
        has_slot = len(groups) == 1 and groups[0].get("fused") and is_accelerator(device)
        self._device_rate = DeviceLearningRates(1, device) if has_slot else None
        self._scheduler: lr_scheduler.LRScheduler | None = None
        self._moves_each_step = False
        if settings.name == CONSTANT:
            return
        reference = SCHEDULES.reference(settings.name)
        every = getattr(settings, "every", None)
        self._moves_each_step = (every or default_every(reference.name)) == "step"
        steps = epochs * steps_per_epoch
        offered = {
            "T_max": steps if self._moves_each_step else epochs,
            "total_steps": steps if self._moves_each_step else epochs,
            "epochs": epochs,
            "steps_per_epoch": steps_per_epoch,
            "cycle_momentum": False,  # it would override the momentum in params.yaml
        }
        build = reference.load()
        arguments = accepted_arguments(build, offered, arguments_of(settings, "every"))
        with run_custom_code(f"schedule {settings.name} can't be made"):
            self._scheduler = build(optimizer, **arguments)

    @classmethod
    def of(
        cls, experiment: params.Experiment, optimizer: Optimizer, steps_per_epoch: int
    ) -> Schedule:
        """Return an experiment's schedule, from its start."""
        return cls(
            experiment.schedule,
            optimizer,
            epochs=experiment.epochs,
            steps_per_epoch=steps_per_epoch,
            warmup_steps=experiment.warmup_steps,
        )

    @property
    def learning_rate(self) -> float:
        """Return the first parameter group's rate of the next step."""
        return float(self._optimizer.param_groups[0]["lr"]) * self._warmup()

    def _warmup(self) -> float:
        """Return the factor of the next step's rate, which rises to 1 over the warm-up."""
        if self._steps_done >= self._warmup_steps:
            return 1.0
        return (self._steps_done + 1) / self._warmup_steps

    def applied(self, slot: torch.Tensor | None = None) -> AbstractContextManager[None]:
        """Return a context in which the optimizer has the rates of the next step.

        An accelerator's reads its rate from a slot.
        """
        if self._device_rate is not None:
            if slot is None:
                self._device_rate.fill([self.learning_rate])
                (slot,) = self._device_rate.slots
            return override_group(self._optimizer, lr=slot)
        if self._steps_done >= self._warmup_steps:
            return nullcontext()
        return _multiplied_rates(self._optimizer, self._warmup())

    def next_rates(self, steps: int) -> list[float]:
        """Return the rates of so many steps, and advance past them."""
        rates = []
        for _ in range(steps):
            rates.append(self.learning_rate)
            self.batch_ended()
        return rates

    def batch_ended(self) -> None:
        """Advance to the next step's rate."""
        self._steps_done += 1
        if self._moves_each_step and self._scheduler:
            self._scheduler.step()

    def epoch_ended(self, validation_loss: float) -> None:
        """Advance to the next epoch's rate, if the schedule changes each epoch."""
        if isinstance(self._scheduler, lr_scheduler.ReduceLROnPlateau):
            self._scheduler.step(validation_loss)
        elif self._scheduler and not self._moves_each_step:
            self._scheduler.step()

    def state_dict(self) -> dict[str, object]:
        scheduler = dict(self._scheduler.state_dict()) if self._scheduler else {}
        return {"steps_done": self._steps_done, "scheduler": scheduler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps_done = state["steps_done"]
        if self._scheduler:
            self._scheduler.load_state_dict(state["scheduler"])


def default_every(name: str) -> str:
    """Return when a schedule of PyTorch moves by default: after each step or each epoch."""
    return "step" if name in MOVED_BY_STEPS else "epoch"


@contextmanager
def _multiplied_rates(optimizer: Optimizer, factor: float) -> Iterator[None]:
    before = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, before, strict=True):
            group["lr"] = rate
