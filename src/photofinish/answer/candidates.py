"""GPUs on which a job could be trained: here, rented, or of another machine's record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from photofinish.answer.comparison import Comparison
from photofinish.answer.prices import Price, cost_of, price_of
from photofinish.answer.renting import RentalOption
from photofinish.answer.times import Interval, job_spread
from photofinish.config.compare import accelerators
from photofinish.results.job_times import JobTimes

Answer = Literal["Yes", "No", "No difference", "Probably yes", "Probably no", "Can't tell"]
About = Literal["the GPU here", "renting", "if this machine had a GPU"]
Basis = Literal["measured", "recorded", "estimated", "bound"]
Reason = Literal[
    "short job", "start-up", "loading", "copying", "launch overhead", "arithmetic",
    "saves enough", "may save enough", "saves too little", "saves nothing", "not known",
]  # fmt: skip
_HARDLY_KNOWN = 100.0
"""Ratio of an interval's ends from which on the number between them misleads."""


@dataclass(frozen=True)
class Candidate:
    """GPU, with the time of a job on it, or of all jobs of a sweep."""

    name: str
    basis: Basis
    seconds: float
    interval: Interval
    """Times of a fast and a slow run."""
    price: Price | None = None
    option: RentalOption | None = None
    """Accelerator whose time is estimated."""
    timings: JobTimes | None = None
    """Times that were measured or recorded."""

    @property
    def full_name(self) -> str:
        return self.option.accelerator.full_name if self.option else self.name

    @property
    def value(self) -> tuple[bool, float, float]:
        """Sort key: doubt about the memory first, then cost, then time."""
        cost = cost_of(self.seconds, self.price)
        has_room = self.option is None or self.option.fits == "yes"
        return not has_room, math.inf if cost is None else cost, self.seconds

    def saved(self, here: Interval) -> Interval:
        """Return the time that a run saves over a fast or slow run here."""
        return here[0] - self.interval[1], here[1] - self.interval[0]

    def speedup(self, here: Interval) -> Interval:
        """Return the speed-up over a fast or slow run here."""
        fast, slow = self.interval
        return here[0] / slow, here[1] / fast

    def for_seeds(self, factor: float) -> Candidate:
        """Return the candidate for a job that takes so many times as long."""
        low, high = self.interval
        return replace(self, seconds=factor * self.seconds, interval=(factor * low, factor * high))


def recorded(pair: Comparison) -> list[Candidate]:
    """Return the GPUs of other machines' records."""
    names = {sheet.full_name: name for name, sheet in accelerators().items()}
    found = []
    for each in pair.references:
        if each.training.device == "gpu":
            name, timings = names.get(each.timings.device_name), each.timings
            price = price_of(name, pair.settings.prices) if name else None
            spread = job_spread(timings)
            seconds = timings.whole_seconds
            found.append(
                Candidate(each.hardware, "recorded", seconds, spread, price, timings=timings)
            )
    return found


def estimated(pair: Comparison) -> list[Candidate]:
    """Return the accelerators that may be rented and whose memory may suffice."""
    found = []
    for option in pair.renting.options:
        if option.estimate and option.fits != "no":
            name, seconds = option.accelerator.name, option.estimate.job_seconds
            interval = option.estimate.job_interval
            found.append(Candidate(name, "estimated", seconds, interval, option.price, option))
    return found


def for_all(of_each: Sequence[list[Candidate]]) -> list[Candidate]:
    """Return the GPUs with times for every job, with the sums of these times."""
    first, *others = of_each
    found = []
    for candidate in first:
        same = [candidate]
        same += [each for other in others for each in other if each.name == candidate.name]
        if len(same) == len(of_each):
            seconds, interval = sum(each.seconds for each in same), summed(e.interval for e in same)
            found.append(replace(candidate, seconds=seconds, interval=interval))
    return found


def summed(intervals: Iterable[Interval]) -> Interval:
    lows, highs = zip(*intervals, strict=True)
    return sum(lows), sum(highs)


@dataclass(frozen=True)
class Worth:
    """Whether a GPU is worth it, for one job or all of a sweep. All times are of whole jobs."""

    about: About
    answer: Answer
    reason: Reason | None
    here_seconds: float
    """Time on the CPU, or for renting on the fastest device here."""
    here: Interval | None = None
    """Times of a fast and a slow run here, for renting."""
    gpu: Candidate | None = None
    """GPU that decides the answer. None for a bound."""
    interval: Interval | None = None
    """Interval that contains the speed-up in 9 of 10 cases."""
    of_gpu: bool = False
    """True if the reason is about the GPU's job, False if it is about the CPU's."""
    start_seconds: float = 0.0
    """Time to start and set up a rented machine."""
    worth_seconds: float = 0.0
    """Time that a rented machine must save in addition to its start."""
    jobs: int = 1
    """Number of experiments that are trained on the GPU."""
    saved: Interval = (-math.inf, math.inf)
    """Interval of the time that one run saves in 9 of 10 cases, without a rented machine's start.
    """
    runs: int | None = None
    """Smallest number of runs that is surely worth renting, if one is not enough."""
    depends_on_here: bool = False
    """True if the answer would be clear if the time here were known."""

    @property
    def basis(self) -> Basis:
        """Evidence of the answer."""
        return self.gpu.basis if self.gpu else "bound"

    @property
    def gpu_name(self) -> str | None:
        return self.gpu.name if self.gpu else None

    @property
    def option(self) -> RentalOption | None:
        return self.gpu.option if self.gpu else None

    @property
    def is_yes(self) -> bool:
        return self.answer in ("Yes", "Probably yes")

    @property
    def speedup(self) -> float | None:
        return self.here_seconds / self.gpu.seconds if self.gpu else None

    @property
    def is_hardly_known(self) -> bool:
        """Return True if the interval of the speed-up is so wide that a number in it misleads."""
        return self.interval is not None and self.interval[1] > _HARDLY_KNOWN * self.interval[0]

    @property
    def least_seconds(self) -> float:
        """Time that one run must save, including a rented machine's start."""
        return self.start_seconds + self.worth_seconds

    @property
    def saved_seconds(self) -> float:
        """Time that one run saves, less a rented machine's start."""
        gpu_seconds = self.gpu.seconds if self.gpu else math.inf
        return self.here_seconds - gpu_seconds - self.start_seconds

    @property
    def fewest_runs(self) -> int:
        """Smallest number of runs that may be worth renting."""
        return math.ceil(self.least_seconds / self.saved[1])

    @property
    def cost(self) -> float | None:
        """Cost of one run, including a rented machine's start."""
        return cost_of(self.gpu.seconds + self.start_seconds, self.gpu.price) if self.gpu else None
