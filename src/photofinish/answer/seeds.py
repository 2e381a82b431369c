"""Scores of a training over its seeds."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from photofinish.answer.prices import TimeToTarget, time_to_target
from photofinish.answer.times import Interval
from photofinish.results.trained import NetworkScores, Trained

ENOUGH_SEEDS = 3
"""Minimum number of seeds that show equal training, by hand: the interval of two is 6.3 errors."""
_HELD, _SURE = 0.9, 0.99
"""Shares of intervals that contain the true difference, and that do before a model is different."""
_NORMAL, _SURE_NORMAL = (
    statistics.NormalDist().inv_cdf((1 + share) / 2) for share in (_HELD, _SURE)
)
_POWER = statistics.NormalDist().inv_cdf(0.8)
"""Seeds are planned so that four of five such trainings decide."""


@dataclass(frozen=True)
class ScoreDifference:
    """Mean difference of a score on the same test items, the GPU's minus the CPU's."""

    mean: float
    interval: Interval
    """Interval that contains the true difference in 9 of 10 cases."""
    sure_interval: Interval
    """Interval that contains it in 99 of 100 cases."""
    seeds: int
    sd: float
    """Standard deviation of the difference for one seed."""

    @property
    def excludes_0(self) -> bool:
        low, high = self.interval
        return low > 0 or high < 0

    def exceeds(self, margin: float) -> bool:
        """Return True if the difference is larger by more than chance."""
        low, high = self.sure_interval
        return low > margin or high < -margin

    def is_within(self, margin: float) -> bool:
        low, high = self.interval
        return -margin <= low and high <= margin

    def seeds_wanted(self, margin: float) -> int:
        """Return about how many seeds decide, if the mean and its deviation stay as they are.

        Their interval is within the margin, or the sure one excludes 0. For small numbers of seeds,
        Student's interval is as wide as a normal one of 1.35 seeds fewer.
        """
        alike = (_NORMAL + _POWER) / max(margin - abs(self.mean), 1e-9)
        apart = (_SURE_NORMAL + _POWER) / max(abs(self.mean), 1e-9)
        least = ENOUGH_SEEDS if self.seeds > 1 else ENOUGH_SEEDS + 2
        wanted = math.ceil((min(alike, apart) * self.sd) ** 2 + 1.35)
        return max(least, wanted, self.seeds + 1)


def difference_of_items(cpu: Trained, device: Trained, rows_an_item: int) -> ScoreDifference:
    """Compare the accuracies of one training on each device, by the test items that differ.

    Half an item is added to each of the four kinds of pairs (Agresti and Min, 2005). Intervals of
    90 % held the truth in 89 to 97 of 100 cases, from 270 items.
    """
    sides = (cpu.predictions, device.predictions)
    hits, other = ((side.predicted == side.actual).reshape(-1, rows_an_item) for side in sides)
    apart = other.mean(axis=1) - hits.mean(axis=1)
    count, squares = len(apart) + 2, float(np.square(apart).sum()) + 1
    middle = float(apart.sum()) / count
    error = math.sqrt(squares - count * middle**2) / count
    half, sure_half = _NORMAL * error, _SURE_NORMAL * error
    return ScoreDifference(
        float(apart.mean()),
        (middle - half, middle + half),
        (middle - sure_half, middle + sure_half),
        1,
        math.sqrt(squares) / len(apart),
    )


def difference_of_positions(cpu: Trained, device: Trained) -> ScoreDifference:
    """Compare the accuracies of classes at positions, which are alike within a test item.

    Student's interval is of the means of blocks of four items, as ignored positions hide where one
    ends.
    """
    hits, other = (side.predictions.predicted == side.predictions.actual for side in (cpu, device))
    blocks = max(2, cpu.test_samples // 4)
    apart = np.array_split(other.astype(float) - hits, blocks)
    means = Spread(tuple(float(block.mean()) for block in apart))
    sd = statistics.stdev(means.values)
    sure = means.interval_by(sd, _SURE)
    return ScoreDifference(means.mean, means.interval, sure, 1, sd / math.sqrt(blocks))


def difference_of_seeds(
    cpu: Trained, device: Trained, least_sd: float = 0.0
) -> ScoreDifference | None:
    """Compare the scores of several seeds by Student's interval, or return None for other seeds.

    `least_sd` is what the test items alone let the difference of one seed vary.
    """
    seeds = [[seed.seed for seed in run.seed_runs] for run in (cpu, device)]
    if not seeds[0] or seeds[0] != seeds[1]:
        return None
    name = cpu.scores.main if cpu.scores.test_accuracy is None else "test_accuracy"
    pairs = zip(cpu.scores.of_all_seeds(name), device.scores.of_all_seeds(name), strict=True)
    apart = Spread(tuple(other - one for one, other in pairs))
    sd = max(statistics.stdev(apart.values), least_sd)
    interval, sure = (apart.interval_by(sd, share) for share in (_HELD, _SURE))
    return ScoreDifference(apart.mean, interval, sure, 1 + len(seeds[0]), sd)


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
        return self.interval_by(statistics.stdev(self.values), _HELD)

    def interval_by(self, sd: float, held: float) -> Interval:
        """Return Student's interval of the mean for another standard deviation."""
        from scipy.special import stdtrit  # `ask` of a script neither has it nor comes here

        count = len(self.values)
        half = float(stdtrit(count - 1, (1 + held) / 2)) * sd / math.sqrt(count)
        return self.mean - half, self.mean + half

    @property
    def between_two(self) -> float:
        pairs = combinations(self.values, 2)
        return statistics.fmean(abs(one - other) for one, other in pairs)


@dataclass(frozen=True)
class OverSeeds:
    seeds: tuple[int, ...]
    scores: NetworkScores
    """Scores of the first seed's network."""
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


def over_seeds(run: Trained, target: float | None) -> OverSeeds:
    """Collect the scores of all seeds. They are assumed to start up as fast as the first seed."""
    targets = []
    if target is not None and run.history[0].validation_accuracy is not None:
        histories = [run.history, *(seed.history for seed in run.seed_runs)]
        targets = [
            time_to_target(history, epochs, run.startup_seconds, target)
            for history, epochs in zip(histories, [run.epochs, *run.seeds], strict=True)
        ]
    return OverSeeds(
        seeds=(run.seed, *(seed.seed for seed in run.seed_runs)),
        scores=run.scores,
        score=Spread(run.scores.of_all_seeds(run.scores.main)),
        test_loss=Spread(run.scores.of_all_seeds("test_loss")),
        targets=tuple(targets),
    )
