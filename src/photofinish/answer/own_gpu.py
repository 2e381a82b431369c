"""Answers for a GPU in this machine that trained the job, and bounds that hold for any GPU."""

from __future__ import annotations

from photofinish.answer.candidates import Answer, Candidate, Reason, Worth, is_close, short_name
from photofinish.answer.comparison import Comparison
from photofinish.answer.diagnosis import Cause
from photofinish.answer.times import job_time
from photofinish.answer.uncertainty import Interval

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
    timings = pair.gpu.timings
    cpu, gpu = job_time(pair.cpu.timings), job_time(timings)
    answer = _by_interval(cpu.over(gpu))
    of_gpu = answer == "No"
    diagnoses = pair.diagnoses["gpu" if of_gpu else "cpu"]
    main = diagnoses[0].likely or diagnoses[0].cause if diagnoses else None
    return Worth(
        "the GPU here",
        answer,
        _REASONS.get(main) if main else None,
        cpu,
        Candidate(short_name(timings.device_name), "measured", gpu, timings=timings),
        cpu.over(gpu),
        of_gpu,
    )


def _by_interval(interval: Interval) -> Answer:
    if interval[0] > 1:
        return "Yes"
    if interval[1] < 1:
        return "No"
    return "Close call" if is_close(interval, 1.0) else "Can't tell"


def bounded(pair: Comparison) -> Worth | None:
    """Answer No if no GPU can make the job much faster, else return None."""
    limit = pair.bounds.job.at_most
    if limit >= pair.settings.worth_it:
        return None
    reason: Reason = "loading" if loads_longer_than_it_starts(pair) else "start-up"
    return Worth("any GPU", "No", reason, job_time(pair.cpu.timings), limit=limit)


def not_estimated(pair: Comparison) -> Worth:
    """Return the answer if nothing is known of a GPU."""
    here = job_time(pair.cpu.timings)
    return Worth("any GPU", "Can't tell", "no estimate", here, limit=pair.bounds.job.at_most)


def loads_longer_than_it_starts(pair: Comparison) -> bool:
    """Return True if most of the time that stays on the CPU is loading, not start-up."""
    return pair.bounds.job.measured_seconds > 2 * pair.cpu.timings.startup_seconds
