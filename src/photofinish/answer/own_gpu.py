"""Answers for a GPU in this machine that trained the job, and bounds that hold for any GPU."""

from __future__ import annotations

from photofinish.answer.candidates import Answer, Candidate, Reason, Worth, is_close, short_name
from photofinish.answer.comparison import Comparison
from photofinish.answer.diagnosis import Cause
from photofinish.answer.times import STARTUP, error_of_passes, job_time, machine_error
from photofinish.answer.uncertainty import Interval, UncertainTime

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
    limit = highest_limit(pair)
    if limit >= pair.settings.worth_it:
        return None
    reason: Reason = "loading" if loads_longer_than_it_starts(pair) else "start-up"
    return Worth("any GPU", "No", reason, job_time(pair.cpu.timings), limit=limit)


def not_estimated(pair: Comparison) -> Worth:
    """Return the answer if nothing is known of a GPU."""
    here = job_time(pair.cpu.timings)
    return Worth("any GPU", "Can't tell", "no estimate", here, limit=highest_limit(pair))


def highest_limit(pair: Comparison) -> float:
    """Return the high end of the bound: of the rest of the job over the work that stays."""
    job, timings = pair.bounds.job, pair.cpu.timings
    if timings.busy or not job.measured_seconds:
        # Other programs may have slowed the staying work more than the rest.
        return job.at_most
    loading_share = _loading_seconds(pair) / job.measured_seconds
    of_loading = machine_error(timings).times(loading_share)
    staying = UncertainTime(job.measured_seconds)
    staying = staying.with_errors(STARTUP.times(1 - loading_share), of_loading)
    rest = UncertainTime(max(1e-9, timings.whole_seconds - job.measured_seconds))
    return 1 + rest.with_errors(error_of_passes(timings)).over(staying)[1]


def _loading_seconds(pair: Comparison) -> float:
    """Return the loading of all epochs, or 0 if it need not stay on the CPU or is not known."""
    epoch = pair.bounds.epoch
    return pair.cpu.timings.planned_epochs * epoch.measured_seconds if epoch else 0.0


def loads_longer_than_it_starts(pair: Comparison) -> bool:
    """Return True if most of the time that stays on the CPU is loading, not start-up."""
    return 2 * _loading_seconds(pair) > pair.bounds.job.measured_seconds
