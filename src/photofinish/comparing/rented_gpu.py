"""Answers for a rented GPU, from the minutes that it saves after its start.

A machine is rented once for all seeds of an experiment and all experiments of a sweep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from photofinish.comparing.own_gpu import Answer, Basis, estimated_options
from photofinish.comparing.pairs import Comparison
from photofinish.comparing.prices import Price, cost_of, price_of
from photofinish.comparing.renting import RentalOption
from photofinish.comparing.times import RUN_TO_RUN, Interval, job_spread
from photofinish.config.compare import accelerators
from photofinish.results.job_times import JobTimes

MOST_RUNS = 1000
"""Largest number of runs that an answer suggests."""
RentalReason = Literal[
    "saves enough", "may save enough", "saves too little", "saves nothing", "short job", "not known"
]


@dataclass(frozen=True)
class RentedGpu:
    """Answer for one experiment, or for all of a sweep. All times are times of whole jobs."""

    answer: Answer
    reason: RentalReason
    here: Interval
    """Times of a fast and a slow run on the fastest device here."""
    here_seconds: float
    start_seconds: float
    """Time to start and set up the machine."""
    worth_seconds: float
    """Time that the machine must save in addition to its start."""
    jobs: int = 1
    """Number of experiments that are trained on the machine."""
    gpu: str | None = None
    gpu_seconds: float = math.inf
    gpu_interval: Interval | None = None
    """Times of a fast and a slow run on the GPU."""
    speedup_interval: Interval | None = None
    saved: Interval = (-math.inf, math.inf)
    """Interval of the time that one run saves in 9 of 10 cases, without the machine's start."""
    runs: int | None = None
    """Smallest number of runs that is surely worth it, if one is not enough."""
    cost: float | None = None
    """Cost of one run, including the machine's start."""
    currency: str = ""
    option: RentalOption | None = None
    """Option of the accelerator, if its time is estimated."""
    depends_on_here: bool = False
    """True if the answer would be clear if the time here were known."""

    @property
    def basis(self) -> Basis:
        if self.gpu is None:
            return "bound"
        return "estimated" if self.option else "recorded"

    @property
    def least_seconds(self) -> float:
        """Time that one run must save, including the machine's start."""
        return self.start_seconds + self.worth_seconds

    @property
    def fewest_runs(self) -> int:
        """Smallest number of runs that may be worth it."""
        return math.ceil(self.least_seconds / self.saved[1])

    @property
    def is_yes(self) -> bool:
        return self.answer == "Probably yes"

    @property
    def saved_seconds(self) -> float:
        """Time that one run saves, less the machine's start."""
        return self.here_seconds - self.gpu_seconds - self.start_seconds


@dataclass(frozen=True)
class _Candidate:
    gpu: str
    seconds: float
    spread: Interval
    """Times of a fast and a slow run."""
    price: Price | None
    option: RentalOption | None = None

    @property
    def full_name(self) -> str:
        return self.option.accelerator.full_name if self.option else self.gpu

    def value(self) -> tuple[bool, float, float]:
        """Return a key that sorts by doubt about the memory, then by cost, then by time."""
        cost = cost_of(self.seconds, self.price)
        has_room = self.option is None or self.option.fits == "yes"
        return not has_room, math.inf if cost is None else cost, self.seconds

    def saved(self, here: Interval) -> Interval:
        """Return the time that a run saves over a fast or slow run here."""
        return here[0] - self.spread[1], here[1] - self.spread[0]


def decide_rented(sweep: Sequence[Comparison]) -> RentedGpu | None:
    """Decide for all experiments of a sweep. Return None if the settings name no accelerators."""
    settings = sweep[0].settings
    estimated = _common([_estimated(pair) for pair in sweep])
    found = _common([_recorded(pair) for pair in sweep]) or estimated
    if not found and not settings.accelerators:
        return None
    quickest = [_quickest(pair) for pair in sweep]
    here_seconds = sum(run.job_seconds for run in quickest)
    fast, slow = _sum(map(_job_spread, quickest))
    here = fast / RUN_TO_RUN, slow * RUN_TO_RUN
    limits = 60 * settings.rental_minutes, 60 * settings.worth_saving
    start_seconds, least_seconds = limits[0], sum(limits)
    is_short = here[1] <= least_seconds
    if not found:
        if is_short:
            return RentedGpu("No", "short job", here, here_seconds, *limits, len(sweep))
        return RentedGpu("Can't tell", "not known", here, here_seconds, *limits, len(sweep))

    # A cheaper GPU that surely saves enough by estimate is better than a recorded one.
    recorded = {each.gpu for each in found}
    others = [each for each in estimated if each.full_name not in recorded]
    surely = [each for each in [*found, *others] if each.saved(here)[0] >= least_seconds]
    perhaps = [each for each in found if each.saved(here)[1] >= least_seconds]
    faster = [each for each in found if each.saved(here)[0] > 0]
    best = min(surely or faster or found, key=_Candidate.value)
    answer: Answer = "No" if is_short else "Probably no"
    reason: RentalReason = "short job" if is_short else "saves nothing"
    runs, depends_on_here = None, False
    if surely:
        answer, reason = "Probably yes", "saves enough"
    elif perhaps:
        answer, reason = "Can't tell", "may save enough"
        best = min(perhaps, key=_Candidate.value)
        exact = here_seconds / RUN_TO_RUN, here_seconds * RUN_TO_RUN
        depends_on_here = _is_clear([each.saved(exact) for each in found], least_seconds)
    elif faster:
        reason = "saves too little"
        wanted = math.ceil(least_seconds / best.saved(here)[0])
        runs = wanted if wanted <= MOST_RUNS else None
    fast, slow = best.spread
    return RentedGpu(
        answer,
        reason,
        here,
        here_seconds,
        *limits,
        len(sweep),
        gpu=best.gpu,
        gpu_seconds=best.seconds,
        gpu_interval=best.spread,
        speedup_interval=(here[0] / slow, here[1] / fast),
        saved=best.saved(here),
        runs=runs,
        cost=cost_of(best.seconds + start_seconds, best.price),
        currency=best.price.currency if best.price else "",
        option=best.option,
        depends_on_here=depends_on_here,
    )


def _is_clear(saved: Sequence[Interval], least_seconds: float) -> bool:
    """Return True if one of the GPUs surely saves enough, or none may."""
    is_sure = any(low >= least_seconds for low, _ in saved)
    return is_sure or all(high < least_seconds for _, high in saved)


def _quickest(pair: Comparison) -> JobTimes:
    """Return the times of the fastest device here."""
    return min((run.timings for run in pair.trained), key=lambda each: each.job_seconds)


def _recorded(pair: Comparison) -> list[_Candidate]:
    """Return the GPUs in references."""
    names = {sheet.full_name: name for name, sheet in accelerators().items()}
    found = []
    for each in pair.references:
        if each.training.device == "gpu":
            name = names.get(each.timings.device_name)
            price = price_of(name, pair.settings.prices) if name else None
            seconds, spread = each.timings.job_seconds, _job_spread(each.timings)
            found.append(_Candidate(each.hardware, seconds, spread, price))
    return found


def _estimated(pair: Comparison) -> list[_Candidate]:
    """Return the estimated GPUs."""
    timings, found = pair.cpu.timings, []
    further_seeds = timings.seeds_seconds / timings.passes_seconds
    for option, estimate in estimated_options(pair):
        # Further seeds have no start-up.
        seeds_seconds = further_seeds * (estimate.job_seconds - estimate.startup_seconds)
        factor = 1 + seeds_seconds / estimate.job_seconds
        fast, slow = estimate.job_interval
        name, seconds = option.accelerator.name, estimate.job_seconds + seeds_seconds
        spread = factor * fast, factor * slow
        found.append(_Candidate(name, seconds, spread, option.price, option))
    return found


def _job_spread(run: JobTimes) -> Interval:
    """Return the times of a fast and a slow run of the job, including further seeds."""
    fast, slow = job_spread(run)
    factor = run.job_seconds / run.whole_seconds
    return factor * fast, factor * slow


def _common(of_each: Sequence[list[_Candidate]]) -> list[_Candidate]:
    """Return the GPUs with times for every experiment, with the sums of these times."""
    first, *others = of_each
    found = []
    for candidate in first:
        same = [candidate]
        same += [each for other in others for each in other if each.gpu == candidate.gpu]
        if len(same) < len(of_each):
            continue
        spread = _sum(each.spread for each in same)
        seconds = sum(each.seconds for each in same)
        found.append(_Candidate(candidate.gpu, seconds, spread, candidate.price, candidate.option))
    return found


def _sum(intervals: Iterable[Interval]) -> Interval:
    lows, highs = zip(*intervals, strict=True)
    return sum(lows), sum(highs)
