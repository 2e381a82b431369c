"""Answers for a GPU in this machine that trained the job, and bounds that hold for any GPU."""

from __future__ import annotations

import math

from photofinish.answer.candidates import Answer, Candidate, Reason, Worth, is_close, short_name
from photofinish.answer.comparison import Comparison
from photofinish.answer.diagnosis import Cause
from photofinish.answer.times import ONCE, RUN_TO_RUN, Interval, job_interval, job_spread

NO_DIFFERENCE = 0.9, 1.1
WORTHWHILE_BOUND = 1.5
"""Smallest bound for which a GPU may be worth it, by hand. Real GPUs stay below their bound."""
_REASONS: dict[Cause, Reason] = {
    "start-up-bound": "start-up",
    "input-bound": "loading",
    "copy-bound": "copying",
    "launch-bound": "launch overhead",
    "compute-bound": "arithmetic",
    "CPU held back": "arithmetic",
}


def measured(pair: Comparison) -> Worth | None:
    """Decide by the job's time on the GPU here, or return None if none trained it."""
    if pair.compared is None or pair.gpu is None:
        return None
    whole, timings = pair.compared.speedups["end_to_end"], pair.gpu.timings
    interval = whole.interval or (0.0, math.inf)
    if pair.cpu.timings.is_bound:
        interval = whole.cpu_seconds / job_interval(timings)[1], math.inf
    answer = _by_interval(interval)
    of_gpu = answer == "No"
    diagnoses = pair.diagnoses["gpu" if of_gpu else "cpu"]
    main = diagnoses[0].likely or diagnoses[0].cause if diagnoses else None
    seconds = whole.device_seconds
    name = short_name(timings.device_name)
    return Worth(
        "the GPU here",
        answer,
        _REASONS.get(main) if main else None,
        whole.cpu_seconds,
        job_interval(pair.cpu.timings),
        Candidate(name, "measured", seconds, job_interval(timings), timings=timings),
        interval,
        of_gpu,
    )


def _by_interval(interval: Interval) -> Answer:
    low, high = interval
    if low > 1:
        return "Yes"
    if high < 1:
        return "No"
    least, most = NO_DIFFERENCE
    if least <= low and high <= most:
        return "No difference"
    return "Close call" if is_close(interval, 1.0) else "Can't tell"


def bounded(pair: Comparison) -> Worth | None:
    """Answer No if no GPU can make the job much faster, else return None."""
    limit = highest_limit(pair)
    if limit >= max(WORTHWHILE_BOUND, pair.settings.worth_it):
        return None
    reason: Reason = "loading" if loads_longer_than_it_starts(pair) else "start-up"
    here = pair.cpu.timings.whole_seconds, job_interval(pair.cpu.timings)
    return Worth("any GPU", "No", reason, *here, limit=limit)


def not_estimated(pair: Comparison) -> Worth:
    """Return the answer if nothing is known of a GPU."""
    here = pair.cpu.timings.whole_seconds, job_interval(pair.cpu.timings)
    return Worth("any GPU", "Can't tell", "no estimate", *here, limit=highest_limit(pair))


def highest_limit(pair: Comparison) -> float:
    """Return the high end of the bound: slow passes, and staying work as fast as it may be."""
    job, timings = pair.bounds.job, pair.cpu.timings
    if timings.busy or not job.measured_seconds:
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
