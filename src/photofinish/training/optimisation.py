"""Optimisers and learning-rate schedules, by the names and defaults they have in PyTorch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer, lr_scheduler

from photofinish.errors import UserError

if TYPE_CHECKING:
    from photofinish.params import experiment as params


def build_optimizer(settings: params.Optimizer, parameters: Iterable[torch.nn.Parameter]) -> Optimizer:
    """PyTorch's own. Fused, one kernel takes all parameters a step further; but SGD's copies weights that lie
    channels-last to and fro on the CPU, and goes through them one by one there (docs/performance.md)."""
    parameters = list(parameters)
    if settings.name == "sgd":
        on_cpu = all(parameter.device.type == "cpu" for parameter in parameters)
        return SGD(
            parameters,
            lr=settings.lr,
            momentum=settings.momentum,
            dampening=settings.dampening,
            weight_decay=settings.weight_decay,
            nesterov=settings.nesterov,
            foreach=False,
            fused=not on_cpu,
        )
    kind = Adam if settings.name == "adam" else AdamW
    return kind(
        parameters,
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )


class Schedule:
    """The learning rate over time: one step a batch for one-cycle, one an epoch for the others."""

    def __init__(self, settings: params.Schedule, optimizer: Optimizer, *, epochs: int, steps_per_epoch: int) -> None:
        self._optimizer = optimizer
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
