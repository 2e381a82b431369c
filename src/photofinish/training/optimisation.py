"""Optimisers and learning-rate schedules, by the names and defaults they have in PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer, lr_scheduler

from photofinish.errors import UserError
from photofinish.training.torch_device import is_accelerator, sent

if TYPE_CHECKING:
    from photofinish.params import experiment as params


def build_optimizer(
    settings: params.Optimizer, parameters: Iterable[torch.nn.Parameter], *, loss_is_scaled: bool = False
) -> Optimizer:
    """PyTorch's own. Fused, one kernel takes all parameters a step further; but SGD's copies weights that lie
    channels-last to and fro on the CPU, and goes through them one by one there (docs/performance.md).

    An accelerator's optimiser has its state from the start. A fused SGD would make its momentum in the first step, and
    leave it unwritten where a scaled loss overflows in that one; and a recorded step makes nothing for the next.
    """
    parameters = list(parameters)
    there = is_accelerator(parameters[0].device)
    if settings.name == "sgd":
        damped = has_another_first_step(settings)
        sgd = SGD(
            parameters,
            lr=settings.lr,
            momentum=settings.momentum,
            dampening=settings.dampening,
            weight_decay=settings.weight_decay,
            nesterov=settings.nesterov,
            foreach=False,
            fused=there and not (damped and loss_is_scaled),
        )
        if there and settings.momentum and not damped:
            make_momentum(sgd)
        return sgd
    kind = Adam if settings.name == "adam" else AdamW
    adam = kind(
        parameters,
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    if there:
        for parameter in parameters:
            steps = torch.zeros((), dtype=torch.float32, device=parameter.device)
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            adam.state[parameter] = {"step": steps, **moments}
    return adam


def has_another_first_step(settings: params.Optimizer) -> bool:
    """Whether what it does in its first step is not what it does with a momentum of zeros."""
    return settings.name == "sgd" and settings.momentum > 0 and settings.dampening > 0


def make_momentum(optimizer: Optimizer) -> None:
    """That of an SGD, before its first step."""
    (group,) = optimizer.param_groups
    for parameter in group["params"]:
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


@contextmanager
def lent(optimizer: Optimizer, **settings: object) -> Iterator[None]:
    """While it lasts, the optimiser goes by these settings besides its own."""
    (group,) = optimizer.param_groups
    own = {name: group[name] for name in settings if name in group}
    group.update(settings)
    try:
        yield
    finally:
        for name in settings.keys() - own.keys():
            del group[name]
        group.update(own)


class RateSlots:
    """The learning rates of the next steps, where an accelerator's optimiser reads them.

    What records a step records from where it read, so the next time the same step takes another rate. They are float32,
    and steps that nobody records read them too, so that both compute the same bits.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self._slots = torch.zeros(count, dtype=torch.float32, device=device)
        self._rates: list[float] = []
        self.each = self._slots.unbind()
        """a tensor without dimensions a step"""

    def fill(self, rates: list[float]) -> None:
        """As many as there are slots; nothing is to be done where they are there already."""
        if rates == self._rates:
            return
        self._rates = rates
        if len(set(rates)) == 1:
            self._slots.fill_(rates[0])
        else:
            self._slots.copy_(sent(torch.tensor(rates, dtype=torch.float32), self._slots.device))


class Schedule:
    """The learning rate over time: one step a batch for one-cycle, one an epoch for the others."""

    def __init__(self, settings: params.Schedule, optimizer: Optimizer, *, epochs: int, steps_per_epoch: int) -> None:
        self._optimizer = optimizer
        group = optimizer.param_groups[0]
        device = group["params"][0].device
        self._slots = RateSlots(1, device) if group["fused"] and is_accelerator(device) else None
        self._steps_each_batch = settings.name == "one_cycle"
        self._scheduler: lr_scheduler.LRScheduler | None = None
        match settings.name:
            case "step":
                self._scheduler = lr_scheduler.StepLR(optimizer, settings.step_size, settings.gamma)
            case "cosine":
                self._scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs, eta_min=settings.eta_min)
            case "one_cycle":
                steps = epochs * steps_per_epoch
                if settings.pct_start * steps == 1:  # PyTorch divides by the length of the rise, less one
                    raise UserError(
                        f"schedule.pct_start is {settings.pct_start}: of {steps} steps in all, that is a rise of one "
                        f"step, which one_cycle can't do; give another pct_start in params.yaml"
                    )
                self._scheduler = lr_scheduler.OneCycleLR(
                    optimizer,
                    max_lr=settings.max_lr,
                    total_steps=steps,
                    pct_start=settings.pct_start,
                    cycle_momentum=False,  # PyTorch would move it away from what the user set
                )
            case "reduce_on_plateau":
                self._scheduler = lr_scheduler.ReduceLROnPlateau(
                    optimizer, factor=settings.factor, patience=settings.patience, min_lr=settings.min_lr
                )

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    def applied(self, slot: torch.Tensor | None = None) -> AbstractContextManager[None]:
        """Around the optimiser's step: an accelerator's reads its rate from the slot, or from one of its own."""
        if self._slots is None:
            return nullcontext()
        if slot is None:
            self._slots.fill([self.learning_rate])
            (slot,) = self._slots.each
        return lent(self._optimizer, lr=slot)

    def next_rates(self, steps: int) -> list[float]:
        """Those of so many steps, which the schedule is past then."""
        rates = []
        for _ in range(steps):
            rates.append(self.learning_rate)
            self.batch_ended()
        return rates

    def batch_ended(self) -> None:
        """Go on to the next batch's rate, where each has its own."""
        if self._steps_each_batch and self._scheduler:
            self._scheduler.step()

    def epoch_ended(self, validation_loss: float) -> None:
        """Go on to the next epoch's rate, where it doesn't go by batches."""
        if isinstance(self._scheduler, lr_scheduler.ReduceLROnPlateau):
            self._scheduler.step(validation_loss)
        elif self._scheduler and not self._steps_each_batch:
            self._scheduler.step()

    def state_dict(self) -> dict[str, object]:
        """How far it has come; nothing where the rate never changes."""
        return dict(self._scheduler.state_dict()) if self._scheduler else {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on from what `state_dict` gave."""
        if self._scheduler:
            self._scheduler.load_state_dict(state)
