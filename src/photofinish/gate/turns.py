"""Turns of a training: parts of it that are timed, each from the same start."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import torch

from photofinish.profiling.scratch import scratch_copy, warm_up
from photofinish.training.batches import seed_epoch
from photofinish.training.trainer import Trainer, TrainState

_TURN_SECONDS = 0.2
"""Least time of a turn. Most neighbours stay for longer, and so slow both sides."""


class Turns:
    """Timed parts of a training. Each begins with the same fresh network, so all do equal work."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        warm_up(trainer)
        self._steps = 0

    def take(self) -> float:
        """Take a turn, and return how long an epoch takes at its speed."""
        if not self._steps:
            self._steps = self._steps_of_a_turn()
        return self._seconds(self._steps) / self._steps * self._trainer.steps_per_epoch

    def _steps_of_a_turn(self) -> int:
        """Return a number of steps that takes long enough, of whole epochs if these are short."""
        steps, epoch = 1, self._trainer.steps_per_epoch
        while self._seconds(steps) < _TURN_SECONDS:
            steps *= 2
        return -(-steps // epoch) * epoch if steps > epoch else steps

    def _seconds(self, steps: int) -> float:
        """Time so many steps after a first one, which starts workers and captures steps."""
        clock, done = self._trainer.clock, 0
        with scratch_copy(self._trainer) as state:
            losses = self._losses(state)
            next(losses)
            started_seconds = clock.now_seconds()
            while done < steps:
                done += next(losses).numel()
            seconds = clock.now_seconds() - started_seconds
            losses.close()
        self._trainer.steps.release()
        return seconds * steps / done

    def _losses(self, state: TrainState) -> Iterator[torch.Tensor]:
        """Train epoch after epoch. Yields the losses of a step, or of several captured ones."""
        trainer = self._trainer
        for epoch in count():
            seed_epoch(trainer.experiment.seed, epoch)
            yield from trainer.take_steps(trainer.steps, state, epoch)
