"""Turns of a training: so many steps at a time, with a clock around them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import torch

from photofinish.profiling.scratch import warm_up
from photofinish.training.batches import seed_epoch
from photofinish.training.trainer import Trainer


class Turns:
    """A training that goes on for as many steps as are asked for."""

    def __init__(self, trainer: Trainer) -> None:
        warm_up(trainer)
        trainer.state.network.train()
        self._trainer = trainer
        self._losses = _losses(trainer)
        loader = trainer.experiment.input
        has_workers = loader.name == "loader" and loader.workers > 0
        self.least_steps = trainer.steps_per_epoch if has_workers else 1
        """Steps in the shortest turn: an epoch if workers would load ahead between turns."""

    def take(self, steps: int) -> float:
        """Train so many steps, and return their time."""
        done, started_seconds = 0, self._trainer.clock.now_seconds()
        while done < steps:
            done += next(self._losses).numel()
        return (self._trainer.clock.now_seconds() - started_seconds) * steps / done


def _losses(trainer: Trainer) -> Iterator[torch.Tensor]:
    """Train epoch after epoch. Yields the loss of a step, or of several captured ones."""
    for epoch in count():
        seed_epoch(trainer.experiment.seed, epoch)
        yield from trainer.take_steps(trainer.steps, trainer.state, epoch)
