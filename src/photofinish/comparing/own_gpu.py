"""Answers for a GPU in this machine, from the job's time only.

A measurement takes precedence over records, records over estimates, and estimates over bounds,
which can only say No. docs/verdict.md explains these rules to users.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from photofinish.comparing.diagnosis import Cause
from photofinish.comparing.estimated_job import Estimate
from photofinish.comparing.pairs import Comparison
from photofinish.comparing.renting import RentalOption
from photofinish.comparing.speedups import job_speedup
from photofinish.comparing.times import ONCE, RUN_TO_RUN, Interval, job_interval, job_spread
from photofinish.machine.load import load_warnings
from photofinish.results.job_times import JobTimes
from photofinish.results.records import DeviceLabel

Answer = Literal["Yes", "No", "No difference", "Probably yes", "Probably no", "Can't tell"]
Basis = Literal["measured", "recorded", "estimated", "bound"]
Reason = Literal["short job", "start-up", "loading", "copying", "launch overhead", "arithmetic"]

SHORT_JOB_SECONDS = 5.0
"""Shorter jobs are not worth a GPU, unless a GPU was measured or recorded to be faster."""
NO_DIFFERENCE = 0.9, 1.1
_HARDLY_KNOWN = 100.0
"""Ratio of an interval's ends from which on the number between them misleads."""
WORTHWHILE_BOUND = 1.5
"""Smallest bound for which a GPU may be worth it. Real GPUs stay below their bound."""
_REASONS: dict[Cause, Reason] = {
    "start-up-bound": "start-up",
    "input-bound": "loading",
    "copy-bound": "copying",
    "launch-bound": "launch overhead",
    "compute-bound": "arithmetic",
    "CPU held back": "arithmetic",
}


@dataclass(frozen=True)
class OwnGpu:
    """Answer for a GPU in this machine. All times are times of the whole job."""

    answer: Answer
    basis: Basis
    cpu_seconds: float
    gpu_seconds: float | None = None
    """Time on the GPU that decides the answer. None for a bound."""
    interval: Interval | None = None
    """Interval that contains the speed-up in 9 of 10 cases."""
    gpu: str | None = None
    """Name of the GPU that decides the answer."""
    reason: Reason | None = None
    of_gpu: bool = False
    """True if the reason is about the GPU, False if it is about the CPU."""
    option: RentalOption | None = None
    """Accelerator of the estimate."""
    gpu_interval: Interval | None = None
    """Times of a fast and a slow run on the GPU."""

    @property
    def speedup(self) -> float | None:
        return self.cpu_seconds / self.gpu_seconds if self.gpu_seconds else None

    @property
    def is_hardly_known(self) -> bool:
        """Return True if the interval of the speed-up is so wide that a number in it misleads."""
        return self.interval is not None and self.interval[1] > _HARDLY_KNOWN * self.interval[0]

    @property
    def is_yes(self) -> bool:
        return self.answer in ("Yes", "Probably yes")


def decide_own(pair: Comparison) -> OwnGpu:
    """Decide on a GPU in this machine, by the best available evidence."""
    recorded, estimated = _recorded(pair), _estimated(pair)
    if decision := _measured(pair) or _if_yes(recorded) or _short(pair) or _if_yes(estimated):
        return decision
    if recorded:
        return recorded
    bounded = _bounded(pair)
    return estimated if estimated and bounded.answer != "No" else bounded


def _if_yes(decision: OwnGpu | None) -> OwnGpu | None:
    return decision if decision and decision.answer == "Probably yes" else None


def _measured(pair: Comparison) -> OwnGpu | None:
    if pair.compared is None:
        return None
    whole, answer = pair.compared.speedups["end_to_end"], _by_interval(pair)
    of_gpu = answer != "Yes"
    reason = _reason(pair, "gpu" if of_gpu else "cpu")
    if answer == "Can't tell" and _slow_seconds(pair.cpu.timings) <= SHORT_JOB_SECONDS:
        answer, reason = "No", "short job"
    gpu = pair.trained[-1].timings
    return OwnGpu(
        answer,
        "measured",
        whole.cpu_seconds,
        whole.device_seconds,
        whole.interval,
        gpu.device_name,
        reason,
        of_gpu,
        gpu_interval=job_interval(gpu),
    )


def _by_interval(pair: Comparison) -> Answer:
    assert pair.compared
    low, high = pair.compared.speedups["end_to_end"].interval or (0.0, float("inf"))
    if low > 1:
        return "Yes"
    if high < 1:
        return "No"
    least, most = NO_DIFFERENCE
    return "No difference" if least <= low and high <= most else "Can't tell"


def _recorded(pair: Comparison) -> OwnGpu | None:
    """Decide by the GPU in references that is surely fastest, or return None if it is unclear."""
    found = [
        (job_speedup(pair.cpu.timings, each.timings), each)
        for each in pair.references
        if each.training.device == "gpu"
    ]
    if not found:
        return None
    best, reference = max(found, key=lambda each: each[0].interval or (0.0, math.inf))
    if best.is_faster is None:
        return None
    answer: Answer = "Probably yes" if best.is_faster else "Probably no"
    return OwnGpu(
        answer,
        "recorded",
        best.cpu_seconds,
        best.device_seconds,
        best.interval,
        reference.hardware,
        _reason(pair, "cpu"),
        gpu_interval=job_interval(reference.timings),
    )


def _short(pair: Comparison) -> OwnGpu | None:
    """Answer No if the job with its further seeds is too short, else return None."""
    if _slow_seconds(pair.cpu.timings) > SHORT_JOB_SECONDS:
        return None
    return OwnGpu("No", "bound", pair.cpu.timings.whole_seconds, reason="short job")


def _slow_seconds(timings: JobTimes) -> float:
    """Return the time of a slow run of the job with its further seeds."""
    return job_interval(timings)[1] + timings.seeds_seconds


def _estimated(pair: Comparison) -> OwnGpu | None:
    """Decide by the cheapest accelerator that is worth it, or else by the fastest."""
    options = estimated_options(pair)
    if not options:
        return None
    worth_it = pair.settings.worth_it
    worthwhile = [each for each in options if estimated_speedup(pair, each[1])[0] > worth_it]
    if worthwhile:
        best, estimate = min(worthwhile, key=lambda each: _value(*each))
        answer: Answer = "Probably yes"
    else:
        best, estimate = min(options, key=lambda each: each[1].job_seconds)
        answer = "Probably no" if estimated_speedup(pair, estimate)[1] < worth_it else "Can't tell"
    return OwnGpu(
        answer,
        "estimated",
        pair.cpu.timings.whole_seconds,
        estimate.job_seconds,
        estimated_speedup(pair, estimate),
        best.accelerator.name,
        _reason(pair, "cpu"),
        option=best,
        gpu_interval=estimate.job_interval,
    )


def estimated_options(pair: Comparison) -> list[tuple[RentalOption, Estimate]]:
    """Return the accelerators whose memory may suffice, with the job's estimates."""
    return [
        (option, option.estimate)
        for option in pair.renting.options
        if option.estimate and option.fits != "no"
    ]


def estimated_speedup(pair: Comparison, estimate: Estimate) -> Interval:
    """Return the interval of the job's estimated speed-up, as wide as nine of ten estimates."""
    (fast, slow), (low, high) = job_interval(pair.cpu.timings), estimate.job_interval
    return fast / high, slow / low


def _value(option: RentalOption, estimate: Estimate) -> tuple[bool, float, float]:
    """Return a sort key: doubt about the memory first, then cost, then time."""
    cost = math.inf if estimate.cost is None else estimate.cost
    return option.fits != "yes", cost, estimate.job_seconds


def _bounded(pair: Comparison) -> OwnGpu:
    """Answer No if no GPU in this machine can be much faster, else "Can't tell"."""
    cpu_seconds = pair.cpu.timings.whole_seconds
    if highest_limit(pair) < max(WORTHWHILE_BOUND, pair.settings.worth_it):
        reason: Reason = "loading" if loads_longer_than_it_starts(pair) else "start-up"
        return OwnGpu("No", "bound", cpu_seconds, reason=reason)
    return OwnGpu("Can't tell", "bound", cpu_seconds, reason=_reason(pair, "cpu"))


def highest_limit(pair: Comparison) -> float:
    """Return the high end of the bound: slow passes, and staying work as fast as it may be."""
    job, timings = pair.bounds.job, pair.cpu.timings
    if load_warnings(timings.load) or not job.measured_seconds:
        # Other programs may have slowed the staying work more than the rest.
        return job.at_most
    slow_seconds = job_spread(timings)[1] - (ONCE - 1) * timings.once_seconds
    loading_seconds = _loading_seconds(pair)
    startup_seconds = job.measured_seconds - loading_seconds
    least_seconds = startup_seconds / ONCE + loading_seconds / RUN_TO_RUN
    return 1 + max(0.0, slow_seconds - job.measured_seconds) / least_seconds


def _loading_seconds(pair: Comparison) -> float:
    """Return the loading of all epochs, or 0 if it need not stay on the CPU or is not known."""
    epoch = pair.bounds.epoch
    return pair.cpu.timings.planned_epochs * epoch.measured_seconds if epoch else 0.0


def loads_longer_than_it_starts(pair: Comparison) -> bool:
    """Return True if most of the time that stays on the CPU is loading, not start-up."""
    return 2 * _loading_seconds(pair) > pair.bounds.job.measured_seconds


def _reason(pair: Comparison, device: DeviceLabel) -> Reason | None:
    """Return the likely main part of the device's job, or else of its epoch."""
    diagnoses = pair.diagnoses[device]
    return _REASONS.get(diagnoses[0].likely or diagnoses[0].cause) if diagnoses else None


def is_likely(pair: Comparison, decision: OwnGpu) -> bool:
    """Return True if the reason comes from unreliable figures, such as on a busy machine."""
    first = pair.diagnoses["gpu" if decision.of_gpu else "cpu"][:1]
    return any(each.likely and _REASONS.get(each.likely) == decision.reason for each in first)
