"""Learning rates of parameter groups, by PyTorch's schedules or a custom one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from inspect import isroutine
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer, lr_scheduler

from photofinish.config.pytorch_names import (
    CONSTANT,
    MOVED_BY_STEPS,
    SCHEDULES,
)
from photofinish.custom.reference import is_reference
from photofinish.custom.running import accepted_arguments, run_custom_code
from photofinish.errors import ConfigError
from photofinish.training.torch_device import is_accelerator, to_device

if TYPE_CHECKING:
    from photofinish.config import experiment as params


Rates = tuple[float, ...]


@contextmanager
def override_groups(
    optimizer: Optimizer,
    key: str,
    values: Sequence[object],
) -> Iterator[None]:
    """Override a setting of each of the optimizer's parameter groups within the block."""
    groups = optimizer.param_groups
    before = [{name: group[name] for name in (key,) if name in group} for group in groups]
    for group, value in zip(groups, values, strict=True):
        group[key] = value
    try:
        yield
    finally:
        for group, kept in zip(groups, before, strict=True):
            del group[key]
            group.update(kept)


class DeviceLearningRates:
    """Learning rates of the next steps, on the device.

    A captured step reads its slot at each replay. Rates are float32. An accelerator's eager steps
    read slots, too, so that both kinds of steps compute equal bits.
    """

    def __init__(self, count: int, groups: int, device: torch.device) -> None:
        self._rates: list[Rates] = []
        self._tensor = torch.zeros(count, groups, dtype=torch.float32, device=device)
        self.slots = self._tensor.unbind()
        """Tensor of all groups' rates, for each step."""

    def fill(self, rates: list[Rates]) -> None:
        """Write each step's rates to its slot, unless the slots hold these rates already."""
        if rates == self._rates:
            return
        self._rates = rates
        if len({rate for each in rates for rate in each}) == 1:
            self._tensor.fill_(rates[0][0])
        else:
            values = torch.tensor(rates, dtype=torch.float32)
            self._tensor.copy_(to_device(values, self._tensor.device))


class LearningRates:
    """Learning-rate schedule of every parameter group.

    A rate changes after each step or epoch, or by the validation loss. A warm-up multiplies it.
    """

    def __init__(
        self, experiment: params.Experiment, optimizer: Optimizer, steps_per_epoch: int
    ) -> None:
        self._optimizer, self._warmup_steps = optimizer, experiment.warmup_steps
        self._steps_done = 0
        groups = optimizer.param_groups
        if self._warmup_steps and any("lr" not in group for group in groups):
            raise ConfigError(
                f"warmup_steps is {self._warmup_steps}, and the optimizer has no learning rate (lr "
                f"in its parameter groups): set 0"
            )
        device = groups[0]["params"][0].device
        has_slots = is_accelerator(device) and all(group.get("fused") for group in groups)
        self._device_rates = DeviceLearningRates(1, len(groups), device) if has_slots else None
        self._scheduler: lr_scheduler.LRScheduler | None = None
        self._moves_each_step = False
        settings, epochs = experiment.schedule, experiment.epochs
        given = settings.arguments
        if settings.name == CONSTANT:
            return
        reference = SCHEDULES.reference(settings.name)
        build = reference.load()
        by_default = "step" if _is_moved_by_steps(build) else "epoch"
        self._moves_each_step = (settings.every or by_default) == "step"
        moves = epochs * steps_per_epoch if self._moves_each_step else epochs
        offered = {
            "T_max": moves,
            "total_steps": moves,
            "epochs": epochs,
            "steps_per_epoch": steps_per_epoch,
            "cycle_momentum": False,  # it would override the momentum in params.yaml
        }
        if not is_reference(settings.name) and {"epochs", "steps_per_epoch"} & given.keys():
            del offered["total_steps"]  # it would override them
        arguments = accepted_arguments(build, offered, given)
        with run_custom_code(f"schedule {settings.name} can't be made"):
            self._scheduler = build(optimizer, **arguments)
        if not settings.every and not {"T_max", "total_steps"} & arguments.keys():
            self._moves_each_step = _is_moved_by_steps(type(self._scheduler))

    @property
    def rates(self) -> Rates:
        """Learning rate of each parameter group in the next step, or 0 for a group without one."""
        factor = 1.0
        if self._steps_done < self._warmup_steps:
            factor = (self._steps_done + 1) / self._warmup_steps
        return tuple(float(group.get("lr", 0.0)) * factor for group in self._optimizer.param_groups)

    def applied(self, slot: torch.Tensor | None = None) -> AbstractContextManager[None]:
        """Return a context in which the optimizer has the rates of the next step.

        On an accelerator, a fused optimizer reads the rates from a slot.
        """
        if self._device_rates is not None:
            if slot is None:
                self._device_rates.fill([self.rates])
                (slot,) = self._device_rates.slots
            return override_groups(self._optimizer, "lr", slot.unbind())
        if self._steps_done >= self._warmup_steps:
            return nullcontext()
        return override_groups(self._optimizer, "lr", self.rates)

    def next_rates(self, steps: int) -> list[Rates]:
        """Return the rates of the next `steps` steps, and advance past them."""
        rates = []
        for _ in range(steps):
            rates.append(self.rates)
            self.batch_ended()
        return rates

    def batch_ended(self) -> None:
        self._steps_done += 1
        if self._moves_each_step and self._scheduler:
            self._scheduler.step()

    def epoch_ended(self, validation_loss: float | None) -> None:
        """Advance to the next epoch's rate, if the schedule changes each epoch."""
        if isinstance(self._scheduler, lr_scheduler.ReduceLROnPlateau):
            if validation_loss is None:
                raise ConfigError(
                    "schedule follows the validation loss, and the data set has no validation part"
                )
            self._scheduler.step(validation_loss)
        elif self._scheduler and not self._moves_each_step:
            self._scheduler.step()

    def state_dict(self) -> dict[str, object]:
        scheduler = self._scheduler.state_dict() if self._scheduler else {}
        return {"steps_done": self._steps_done, "scheduler": _without_functions(scheduler)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps_done = state["steps_done"]
        if self._scheduler:
            self._scheduler.load_state_dict(state["scheduler"])


def _is_moved_by_steps(schedule: Any) -> bool:
    """Return True for a class, or a subclass, that PyTorch steps after each batch."""
    return any(each.__name__ in MOVED_BY_STEPS for each in getattr(schedule, "__mro__", ()))


def _without_functions(state: Any) -> Any:
    """Leave functions out of the state of a schedule, which is built with them again."""
    if isinstance(state, dict):
        kept = {key: value for key, value in state.items() if not _is_function(value)}
        return {key: _without_functions(value) for key, value in kept.items()}
    return [*map(_without_functions, state)] if isinstance(state, list) else state


def _is_function(value: Any) -> bool:
    """Return True for a function or a list of functions, False for an object with a state."""
    if isinstance(value, list | tuple):
        return any(map(_is_function, value))
    return isroutine(value) or isinstance(value, partial)
