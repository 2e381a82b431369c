"""Turns of a training: so many steps at a time, with a clock around them."""

from __future__ import annotations

from collections.abc import Iterator

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
        self._losses: Iterator[torch.Tensor] = iter(())
        self._epochs = self._steps_left = 0
        images, batch = trainer.training.image_count, trainer.training.batch_size
        self._has_small_batch = images % batch > 0
        loader = trainer.experiment.input
        has_workers = loader.name == "loader" and loader.workers > 0
        self.least_steps = trainer.steps_per_epoch if has_workers else 1
        """Steps in the shortest turn: an epoch if workers would load ahead between turns."""

    def take(self, steps: int) -> float:
        """Train so many steps, and return their time.

        An epoch's last batch may be smaller, so only turns of whole epochs have it.
        """
        if (
            steps < self._trainer.steps_per_epoch
            and self._steps_left - self._has_small_batch < steps
        ):
            self._begin_epoch()
        done, started_seconds = 0, self._trainer.clock.now_seconds()
        while done < steps:
            if not self._steps_left:
                self._begin_epoch()
            taken = next(self._losses).numel()
            done += taken
            self._steps_left -= taken
        return (self._trainer.clock.now_seconds() - started_seconds) * steps / done

    def _begin_epoch(self) -> None:
        trainer = self._trainer
        seed_epoch(trainer.experiment.seed, self._epochs)
        self._losses = trainer.take_steps(trainer.steps, trainer.state, self._epochs)
        self._epochs, self._steps_left = self._epochs + 1, trainer.steps_per_epoch
