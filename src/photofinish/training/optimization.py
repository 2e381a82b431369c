"""Optimizers and learning-rate schedules, with PyTorch's names and defaults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    may_be_fused,
)
from photofinish.custom.reference import is_reference
from photofinish.custom.running import accepted_arguments, run_custom_code
from photofinish.errors import ConfigError, UserError
from photofinish.training.torch_device import is_accelerator, to_device

if TYPE_CHECKING:
    from photofinish.config import experiment as params


def build_optimizers(
    settings: params.Optimizer, network: nn.Module, *, loss_is_scaled: bool = False
) -> list[Optimizer]:
    """Build PyTorch's optimizer, or call a custom function, which may return several.

    A custom function gets the network, and a custom class the parameters, as PyTorch's classes do.
    """
    arguments = settings.arguments
    reference = OPTIMIZERS.reference(settings.name)
    if not is_reference(settings.name):
        with run_custom_code(f"optimizer {settings.name} can't be made"):
            groups = _parameter_groups(network, settings.weight_decay_exclude)
            return [_pytorch_optimizer(reference.name, groups, arguments, loss_is_scaled)]
    custom = reference.load()
    is_class = isinstance(custom, type)
    with run_custom_code(f"optimizer {settings.name} can't be made"):
        built = custom(list(network.parameters()) if is_class else network, **arguments)
    return list(built) if isinstance(built, list | tuple) else [built]


def _parameter_groups(network: nn.Module, without_decay: str | None) -> list[dict[str, Any]]:
    """Return the parameters in one group, or in two if some have no weight decay.

    Norms and biases are recognised as in timm and nanoGPT, by having at most one dimension.
    """
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in network.named_parameters():
        is_excluded = without_decay and (parameter.dim() <= 1 or name.endswith(".bias"))
        groups[1 if is_excluded else 0]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def check_several_optimizers(experiment: params.Experiment) -> None:
    """Raise UserError for settings that only work with one optimizer."""
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
    name: str, groups: list[dict[str, Any]], arguments: dict[str, Any], loss_is_scaled: bool
) -> Optimizer:
    """Build an optimizer of torch.optim.

    SGD (except on the CPU, docs/evidence.md), Adam and AdamW are fused, unless params.yaml asks
    for another implementation. On an accelerator, fused optimizers get their state here, because a
    captured step can't create it.
    """
    if name not in FUSED:
        return cast("Optimizer", getattr(torch.optim, name)(groups, **arguments))
    parameters = [parameter for group in groups for parameter in group["params"]]
    on_accelerator = is_accelerator(parameters[0].device)
    momentum, dampening = (arguments.get(key, 0) for key in ("momentum", "dampening"))
    is_damped = momentum > 0 and dampening > 0
    defaults = {"fused": may_be_fused(arguments)}
    if name == "SGD":
        # Fused SGD with dampening does not write its momentum if the first scaled loss overflows.
        may_fuse = on_accelerator and not (is_damped and loss_is_scaled)
        defaults = {"foreach": False, "fused": defaults["fused"] and may_fuse}
    optimizer = getattr(torch.optim, name)(groups, **(defaults | arguments))
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


Rates = tuple[float, ...]
"""Learning rate of each parameter group."""


@contextmanager
def override_groups(optimizer: Optimizer, key: str, values: Sequence[object]) -> Iterator[None]:
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

    A rate changes after each step or each epoch, or by the validation loss. A warm-up multiplies
    it.
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
        has_slots = is_accelerator(device) and all(group.get("fused") for group in groups)
        self._device_rates = DeviceLearningRates(1, len(groups), device) if has_slots else None
        self._scheduler: lr_scheduler.LRScheduler | None = None
        self._moves_each_step = False
        if settings.name == CONSTANT:
            return
        reference = SCHEDULES.reference(settings.name)
        by_default = "step" if reference.name in MOVED_BY_STEPS else "epoch"
        self._moves_each_step = (settings.every or by_default) == "step"
        steps = epochs * steps_per_epoch
        offered = {
            "T_max": steps if self._moves_each_step else epochs,
            "total_steps": steps if self._moves_each_step else epochs,
            "epochs": epochs,
            "steps_per_epoch": steps_per_epoch,
            "cycle_momentum": False,  # it would override the momentum in params.yaml
        }
        build = reference.load()
        arguments = accepted_arguments(build, offered, settings.arguments)
        with run_custom_code(f"schedule {settings.name} can't be made"):
            self._scheduler = build(optimizer, **arguments)

    @classmethod
    def of(
        cls, experiment: params.Experiment, optimizer: Optimizer, steps_per_epoch: int
    ) -> LearningRates:
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
        """Learning rate of the first parameter group in the next step."""
        return self.rates[0]

    @property
    def rates(self) -> Rates:
        """Learning rate of each parameter group in the next step."""
        factor = 1.0
        if self._steps_done < self._warmup_steps:
            factor = (self._steps_done + 1) / self._warmup_steps
        return tuple(float(group["lr"]) * factor for group in self._optimizer.param_groups)

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
        """Advance to the next step's rate."""
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
        scheduler = dict(self._scheduler.state_dict()) if self._scheduler else {}
        return {"steps_done": self._steps_done, "scheduler": scheduler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps_done = state["steps_done"]
        if self._scheduler:
            self._scheduler.load_state_dict(state["scheduler"])
