"""Scores of a training over its seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from photofinish.comparing.device_results import Trained
from photofinish.comparing.speedups import Interval, TimeToTarget, students_t, time_to_target
from photofinish.results.records import MEAN_ABSOLUTE_ERROR, DeviceEvaluation, SeedScores


@dataclass(frozen=True)
class Spread:
    """Values of a figure over the seeds, the experiment's own seed first."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def interval(self) -> Interval:
        """Student's interval of the mean."""
        count = len(self.values)
        half = students_t(count - 1) * statistics.stdev(self.values) / math.sqrt(count)
        return self.mean - half, self.mean + half

    @property
    def between_two(self) -> float:
        """Mean difference between two seeds, over all pairs."""
        pairs = combinations(self.values, 2)
        return statistics.fmean(abs(one - other) for one, other in pairs)


@dataclass(frozen=True)
class OverSeeds:
    seeds: tuple[int, ...]
    score_name: str
    score: Spread
    test_loss: Spread
    targets: tuple[TimeToTarget, ...]
    """Time to the target for each seed. Empty without a target accuracy, or for values."""

    @property
    def reached(self) -> tuple[Spread, Spread] | None:
        """Epochs and seconds to the target, or None unless every seed reached it."""
        epochs = [target.epoch for target in self.targets if target.epoch is not None]
        seconds = [target.seconds for target in self.targets if target.seconds is not None]
        if len(epochs) < len(self.seeds):
            return None
        return Spread(tuple(epochs)), Spread(tuple(seconds))

    def in_words(self, score: float) -> str:
        """Format a score, or the difference of two."""
        return f"{score:.2%}" if self.score_name == "test accuracy" else f"{score:.4g}"


def over_seeds(run: Trained, target: float | None) -> OverSeeds:
    """Collect the scores of all seeds. They are assumed to start up as fast as the first seed."""
    timings = run.timings
    scores: list[DeviceEvaluation | SeedScores] = [run.scores, *run.scores.seeds]
    errors = [seed.mean_absolute_error for seed in run.scores.seeds]
    figures: dict[str, list[float | None]] = {
        "test accuracy": [each.test_accuracy for each in scores],
        "mean absolute error": [run.scores.metrics.get(MEAN_ABSOLUTE_ERROR), *errors],
        "test loss": [each.test_loss for each in scores],  # a custom step may predict nothing
    }
    score_name = next(name for name, values in figures.items() if None not in values)
    targets = []
    if target is not None and run.history[0].validation_accuracy is not None:
        histories = [run.history, *(seed.history for seed in run.seed_runs)]
        for history, epochs in zip(histories, [timings.epochs, *timings.seeds], strict=True):
            targets.append(time_to_target(history, epochs, timings.startup_seconds, target))
    return OverSeeds(
        seeds=(run.settings.seed, *(seed.seed for seed in run.seed_runs)),
        score_name=score_name,
        score=_spread(figures[score_name]),
        test_loss=_spread(figures["test loss"]),
        targets=tuple(targets),
    )


def _spread(values: Sequence[float | None]) -> Spread:
    return Spread(tuple(float(value) for value in values if value is not None))
