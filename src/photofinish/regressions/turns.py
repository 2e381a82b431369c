"""Turns of a training: a few timed steps at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from photofinish.files import sha256_of_bytes
from photofinish.machine.load import waited_for_core_seconds
from photofinish.training.batches import seed_epoch
from photofinish.training.step import take_steps
from photofinish.training.torch_device import is_accelerator
from photofinish.training.trainer import Trainer


class Turn(NamedTuple):
    """Time of a turn, and its losses."""

    seconds: float
    steps: int
    """Number of steps, including steps that were not timed."""
    losses_sha256: str


class Turns:
    """Trains a given number of steps. Each call starts a new epoch.

    Turns of both sides therefore have the same batches, also if an epoch's last is smaller.
    """

    def __init__(self, trainer: Trainer) -> None:
        trainer.prepare()
        trainer.state.network.train()
        self._trainer = trainer
        self._epochs = 0
        loader = trainer.experiment.input
        has_workers = loader.name == "loader" and loader.workers > 0
        self.least_steps = trainer.steps_per_epoch if has_workers else 1
        """Number of steps in the shortest turn: an epoch if workers load ahead."""

    def take(self, steps: int) -> Turn:
        """Train `steps` steps, if need be over several epochs. Return their time and losses.

        On the CPU, time in which a thread waited for a core is subtracted, since other programs
        caused it. An accelerator may compute meanwhile. Within an epoch, the clock starts after the
        first step, which also starts the epoch.
        """
        clock, done = self._trainer.clock, 0
        losses, taken = self._epoch(), []
        if steps < self._trainer.steps_per_epoch:
            taken.append(next(losses))
        waited_seconds = waited_for_core_seconds()
        started_seconds = clock.now_seconds()
        while done < steps:
            for loss in losses:
                taken.append(loss)
                done += loss.numel()
                if done >= steps:
                    break
            else:
                losses = self._epoch()
        took_seconds = clock.now_seconds() - started_seconds
        if not is_accelerator(self._trainer.device):
            # Threads wait for each other, so the longest wait of a thread counts.
            waits = [
                seconds - waited_seconds.get(thread, 0.0)
                for thread, seconds in waited_for_core_seconds().items()
            ]
            took_seconds -= max(waits, default=0.0)
        values = torch.cat([loss.reshape(-1) for loss in taken]).double().cpu()
        sha256 = sha256_of_bytes(values.numpy().tobytes())
        return Turn(took_seconds * steps / done, values.numel(), sha256)

    def _epoch(self) -> Iterator[torch.Tensor]:
        """Begin an epoch. Yield the loss of each step, or the losses of captured steps."""
        trainer, self._epochs = self._trainer, self._epochs + 1
        seed_epoch(trainer.experiment.seed, self._epochs)
        return take_steps(trainer.steps, trainer.state, trainer.train_batches(self._epochs))
