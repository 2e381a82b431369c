"""What chance does: an experiment trained from several seeds, and whether devices differ by more than seeds do."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from photofinish.comparing.payback import TimeToTarget, time_to_target
from photofinish.comparing.speedups import Interval, students_t
from photofinish.results import EpochMetrics
from photofinish.results.records import MEAN_ABSOLUTE_ERROR, DeviceEvaluation, SeedRun, Timings
from photofinish.wording import ratio


@dataclass(frozen=True)
class Spread:
    """One figure over the seeds, that of the experiment's own first."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over all seeds."""
        return statistics.fmean(self.values)

    @property
    def interval(self) -> Interval:
        """Of the mean, 95 %: Student's, which takes the values for normal."""
        freedom = len(self.values) - 1
        half = students_t(freedom) * statistics.stdev(self.values) / math.sqrt(freedom + 1)
        return self.mean - half, self.mean + half

    @property
    def between_two(self) -> float:
        """How far two seeds are apart, in the mean over all pairs of them."""
        return statistics.fmean(abs(first - second) for first, second in combinations(self.values, 2))


@dataclass(frozen=True)
class OverSeeds:
    """What one device's training came to from each seed."""

    seeds: tuple[int, ...]
    score_name: str
    score: Spread
    test_loss: Spread
    targets: tuple[TimeToTarget, ...]
    """of each seed; none where the settings name no accuracy, or there is none"""

    @property
    def reached(self) -> tuple[Spread, Spread] | None:
        """Epochs and seconds to the target; None unless every seed reached it."""
        epochs = [each.epoch for each in self.targets if each.epoch is not None]
        seconds = [each.seconds for each in self.targets if each.seconds is not None]
        return (Spread(tuple(epochs)), Spread(tuple(seconds))) if len(epochs) == len(self.seeds) else None

    def in_words(self, score: float) -> str:
        """A score, or a difference of two, as a person reads it."""
        return f"{score:.2%}" if self.score_name == "test accuracy" else f"{score:.4g}"


def over_seeds(
    seed: int,
    scores: DeviceEvaluation,
    history: Sequence[EpochMetrics],
    timings: Timings,
    runs: Sequence[SeedRun],
    target: float | None,
) -> OverSeeds:
    """The experiment's own seed, then each further one, which is taken to start up as fast."""
    of_accuracy = scores.test_accuracy is not None
    first = scores.test_accuracy if of_accuracy else scores.metrics[MEAN_ABSOLUTE_ERROR]
    further = [each.test_accuracy if of_accuracy else each.mean_absolute_error for each in scores.seeds]
    targets = tuple(
        time_to_target(learned, epochs, timings.startup_seconds, target)
        for learned, epochs in zip(
            [history, *(run.history for run in runs)], [timings.epochs, *timings.seeds], strict=True
        )
        if target is not None and of_accuracy
    )
    return OverSeeds(
        (seed, *(run.seed for run in runs)),
        "test accuracy" if of_accuracy else "mean absolute error",
        Spread(tuple(float(score) for score in [first, *further] if score is not None)),
        Spread((scores.test_loss, *(each.test_loss for each in scores.seeds))),
        targets,
    )


def chance_in_words(cpu: OverSeeds, gpu: OverSeeds | None) -> str:
    """How far two seeds are apart, and where there is a GPU, whether the devices are further apart than that."""
    count, name, spread = len(cpu.seeds), cpu.score_name, cpu.score
    if gpu is None:
        low, high = map(cpu.in_words, spread.interval)
        return (
            f"From {count} seeds its mean {name} is {cpu.in_words(spread.mean)} (95 % interval {low} to {high}); "
            f"two seeds differ by {cpu.in_words(spread.between_two)}."
        )
    apart = statistics.fmean(abs(one - other) for one, other in zip(spread.values, gpu.score.values, strict=True))
    chance = statistics.fmean([spread.between_two, gpu.score.between_two])
    told = (
        f"Over {count} seeds the {name} differs by {cpu.in_words(apart)} between the devices from the same seed, and "
        f"by {cpu.in_words(chance)} between two seeds on the same device"
    )
    if not chance:
        return f"{told}."
    return f"{told}: the devices differ by {ratio(apart / chance)} of what two seeds do."
