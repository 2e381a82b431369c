"""GPUs on which a job could be trained: here, rented, or of another machine's record."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import linear_regression, median
from typing import Literal, NamedTuple

from photofinish.answer.prices import GpuTerms, cost_of, terms_of
from photofinish.answer.renting import RentalOption
from photofinish.answer.times import ByLoad, Interval, UncertainTime, job_time, total
from photofinish.config.compare import Comparing, accelerators
from photofinish.results.job import Job
from photofinish.wording import is_wide

Answer = Literal["Yes", "Probably yes", "No", "Close call", "Can't tell"]
About = Literal["the GPU here", "renting", "using", "any GPU"]
"""Question of an answer.

`using` is about a GPU elsewhere that needs no rent, `any GPU` about a bound that holds for all.
"""
Basis = Literal["measured", "recorded", "estimated", "bound"]
Reason = Literal[
    "start-up", "loading", "copying", "launch overhead", "arithmetic",
    "saves enough", "may save enough", "saves too little", "saves nothing", "too short",
    "not known", "no estimate",
]  # fmt: skip
MOST_RUNS, WIDEST_RUNS = 100, 10
"""Largest number of runs that an answer names, and ratio of two, by hand. Others help nobody."""
_OTHER_HOST = math.log(1.35)
"""Error of another host's record, by hand: with two runs' own, right if hosts differ by 15 %.

Published speeds of one GPU and network differ by 1.01 to 1.1 where the GPU decides, and nine in ten
pairs of steps that launching decides by up to 2.1. If it is too small, intervals miss other hosts.
"""


@dataclass(frozen=True)
class Candidate:
    """GPU, with the time of a job on it, or of all jobs of a sweep."""

    name: str
    """Short name, such as `T4`."""
    basis: Basis
    time: UncertainTime
    terms: GpuTerms = field(default_factory=GpuTerms)
    option: RentalOption | None = None
    """Accelerator whose time is estimated."""
    job: Job | None = None
    """Job that was measured or recorded there."""

    @property
    def hides_loading(self) -> bool:
        """True if its time is estimated, and the middle of it is that of the steps alone."""
        return bool(self.option and self.option.estimate and self.option.estimate.hides_loading)

    @property
    def with_start_seconds(self) -> float:
        return self.terms.start_seconds + self.time.seconds

    @property
    def interval_with_start(self) -> Interval:
        low, high = self.time.interval
        return low + self.terms.start_seconds, high + self.terms.start_seconds

    @property
    def cost(self) -> float | None:
        """Cost of the job, including a rented machine's start."""
        return cost_of(self.with_start_seconds, self.terms.price)

    @property
    def value(self) -> tuple[bool, float, float]:
        """Sort key: doubt about the memory, then cost with the start, then time."""
        has_room = self.option is None or self.option.fits != "perhaps"
        not_known = math.inf if self.terms.is_rented else 0.0
        return not has_room, not_known if self.cost is None else self.cost, self.time.seconds


def candidates(
    options: Sequence[RentalOption], elsewhere: Sequence[Job], settings: Comparing
) -> list[Candidate]:
    """Return the GPUs that another machine recorded, and those that are only estimated.

    An estimate counts before a record that is too vague, such as one of a single epoch.
    """
    gpus = {}
    for option in options:
        if option.estimate and option.fits != "no":
            name, time = option.accelerator.name, option.estimate.job
            gpus[name] = Candidate(name, "estimated", time, option.terms, option)
    for gpu in recorded(elsewhere, settings):
        if gpu.name not in gpus or not is_wide(gpu.time.interval):
            gpus[gpu.name] = gpu
    return list(gpus.values())


def recorded(elsewhere: Sequence[Job], settings: Comparing) -> list[Candidate]:
    """Return the GPUs that other machines recorded, each with its median time."""
    records: dict[str, list[Job]] = defaultdict(list)
    for job in sorted(elsewhere, key=lambda job: job.whole_seconds):
        records[short_name(job.hardware)].append(job)
    gpus = []
    for name, jobs in records.items():
        quiet = [job for job in jobs if not job.busy] or jobs
        middle = quiet[len(quiet) // 2]
        seconds = median(job.whole_seconds for job in quiet)
        time = replace(job_time(middle), seconds=seconds).off_by(_OTHER_HOST)
        gpus.append(Candidate(name, "recorded", time, terms_of(name, settings), job=middle))
    return gpus


def short_name(gpu: str) -> str:
    """Return `H100` for `NVIDIA H100 80GB HBM3`, and other names without their maker."""
    names = {sheet.full_name: name for name, sheet in accelerators().items()}
    return names.get(gpu, gpu.removeprefix("NVIDIA ").removeprefix("AMD "))


def by_data_sheets(gpus: Sequence[Candidate]) -> list[Candidate]:
    """Return the GPUs with the times that their data sheets predict from all GPUs' times.

    A line goes through the times' logarithms, over those of the root of fp32 rate times bandwidth.
    So no GPU is chosen because its own time is too short by chance. Two sheets change nothing.
    """
    sheets = accelerators()
    times = {gpu.name: math.log(gpu.time.seconds) for gpu in gpus}
    known = [sheets[name] for name in times if name in sheets]
    speeds = [math.log(sheet.tflops["fp32"] * sheet.memory_gb_per_s) / 2 for sheet in known]
    if len(set(speeds)) > 2:
        line = linear_regression(speeds, [times[sheet.name] for sheet in known])
        for sheet, speed in zip(known, speeds, strict=True):
            times[sheet.name] = line.intercept + line.slope * speed
    return [replace(gpu, time=replace(gpu.time, seconds=math.exp(times[gpu.name]))) for gpu in gpus]


def for_all(of_jobs: Sequence[list[Candidate]]) -> list[Candidate]:
    """Return the GPUs with times for every job, with the sums of these times."""
    summed = []
    for candidate in of_jobs[0]:
        same = [gpu for gpus in of_jobs for gpu in gpus if gpu.name == candidate.name]
        if len(same) == len(of_jobs):
            weakest = next((gpu for gpu in same if gpu.basis == "estimated"), candidate)
            summed.append(replace(weakest, time=total([gpu.time for gpu in same])))
    return summed


class Runs(NamedTuple):
    """Smallest numbers of runs for which renting a GPU once may pay, and surely pays."""

    perhaps: int
    surely: int


@dataclass(frozen=True)
class Worth:
    """Answer for one job or all of a sweep: is a GPU worth it? All times are of whole jobs."""

    about: About
    answer: Answer
    reason: Reason | None
    time_here: ByLoad
    """Time on the CPU."""
    gpu: Candidate | None = None
    """GPU that decides the answer. None for a bound."""
    interval: Interval | None = None
    """Interval that contains the speed-up in 9 of 10 cases. None if a machine was busy."""
    terms: GpuTerms = field(default_factory=GpuTerms)
    """Terms of the GPU, or if none has an estimate, of the one that must save least."""
    jobs: int = 1
    """Number of experiments that are trained on the GPU."""
    saved: Interval = (-math.inf, math.inf)
    """Interval of the time that one run saves, without a rented machine's start."""

    @property
    def basis(self) -> Basis:
        return self.gpu.basis if self.gpu else "bound"

    @property
    def is_yes(self) -> bool:
        return self.answer in ("Yes", "Probably yes")

    @property
    def is_here(self) -> bool:
        """True if a GPU in this machine trained the job."""
        return self.about == "the GPU here"

    @property
    def gpu_name(self) -> str | None:
        return self.gpu.name if self.gpu else None

    @property
    def speedup(self) -> float | None:
        return self.cpu_time.seconds / self.gpu.time.seconds if self.gpu else None

    @property
    def idle_to_busy(self) -> Interval | None:
        """Interval of the speed-up from an idle CPU to the busy one, or None if it wasn't busy.

        Return None also if the idle CPU's time is unknown.
        """
        if not (self.gpu and self.time_here.idle_seconds):
            return None
        there = self.gpu.time
        if self.gpu.job and self.gpu.job.busy:  # its time has no interval
            there = UncertainTime(there.seconds)
        return self.time_here.idle.over(there)[0], self.time_here.busy.over(there)[1]

    @property
    def cpu_time(self) -> UncertainTime:
        """Time on the CPU, without an interval if it was busy."""
        return self.time_here.shown

    @property
    def is_elsewhere(self) -> bool:
        """True if it is about a GPU that is rented, or used elsewhere."""
        return self.about in ("renting", "using")

    @property
    def gained(self) -> Interval:
        """Interval of the time that one run saves after a rented machine's start."""
        low, high = self.saved
        return low - self.terms.start_seconds, high - self.terms.start_seconds

    @property
    def there_seconds(self) -> float:
        """Time on the GPU with a rented machine's start."""
        return self.gpu.with_start_seconds if self.gpu else math.inf

    @property
    def runs(self) -> Runs | None:
        """Runs that pay for renting, or None if they are not known well or are too many."""
        low, high = self.saved
        if self.about != "renting" or low <= 0:
            return None
        perhaps, surely = (math.ceil(self.terms.least_seconds / saved) for saved in (high, low))
        is_known = surely <= min(MOST_RUNS, WIDEST_RUNS * perhaps)
        return Runs(perhaps, surely) if is_known else None
