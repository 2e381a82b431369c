"""Answers for a GPU in this machine, from the job's time only.

A measurement takes precedence over records, records over estimates, and estimates over bounds,
which can only say No. docs/verdict.md explains these rules to users.
"""

from __future__ import annotations

import math
from dataclasses import replace

from photofinish.answer.candidates import (
    About,
    Answer,
    Candidate,
    Reason,
    Worth,
    estimated,
    recorded,
)
from photofinish.answer.comparison import Comparison
from photofinish.answer.diagnosis import Cause
from photofinish.answer.speedups import job_speedup
from photofinish.answer.times import ONCE, RUN_TO_RUN, job_interval, job_spread
from photofinish.results.job_times import JobTimes
from photofinish.results.records import DeviceLabel

SHORT_JOB_SECONDS = 5.0
"""Shorter jobs are not worth a GPU, unless a GPU was measured or recorded to be faster."""
NO_DIFFERENCE = 0.9, 1.1
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


def decide_own(pair: Comparison) -> Worth:
    """Decide on a GPU in this machine, by the best available evidence."""
    of_records, by_estimate = _recorded(pair), _estimated(pair)
    if decision := _measured(pair) or _if_yes(of_records) or _short(pair) or _if_yes(by_estimate):
        return decision
    if of_records:
        return of_records
    bounded = _bounded(pair)
    return by_estimate if by_estimate and bounded.answer != "No" else bounded


def _if_yes(decision: Worth | None) -> Worth | None:
    return decision if decision and decision.answer == "Probably yes" else None


def _worth(pair: Comparison, answer: Answer, reason: Reason | None) -> Worth:
    """Return an answer that names no GPU."""
    about: About = "the GPU here" if pair.gpu else "if this machine had a GPU"
    return Worth(about, answer, reason, pair.cpu.timings.whole_seconds)


def _measured(pair: Comparison) -> Worth | None:
    if pair.compared is None or pair.gpu is None:
        return None
    timings, answer = pair.gpu.timings, _by_interval(pair)
    whole = pair.compared.speedups["end_to_end"]
    of_gpu = answer != "Yes"
    reason = _reason(pair, "gpu" if of_gpu else "cpu")
    if answer == "Can't tell" and _slow_seconds(pair.cpu.timings) <= SHORT_JOB_SECONDS:
        answer, reason = "No", "short job"
    gpu = Candidate(
        timings.device_name,
        "measured",
        whole.device_seconds,
        job_interval(timings),
        timings=timings,
    )
    return replace(
        _worth(pair, answer, reason),
        here_seconds=whole.cpu_seconds,
        gpu=gpu,
        interval=whole.interval,
        of_gpu=of_gpu,
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


def _recorded(pair: Comparison) -> Worth | None:
    """Decide by the GPU in references that is surely fastest, or return None if it is unclear."""
    found = [
        (job_speedup(pair.cpu.timings, each.timings), each)
        for each in recorded(pair)
        if each.timings
    ]
    if not found:
        return None
    best, gpu = max(found, key=lambda each: each[0].interval or (0.0, math.inf))
    if best.is_faster is None or gpu.timings is None:
        return None
    gpu = replace(gpu, seconds=best.device_seconds, interval=job_interval(gpu.timings))
    answer: Answer = "Probably yes" if best.is_faster else "Probably no"
    decision = _worth(pair, answer, _reason(pair, "cpu"))
    return replace(decision, here_seconds=best.cpu_seconds, gpu=gpu, interval=best.interval)


def _short(pair: Comparison) -> Worth | None:
    """Answer No if the job with its further seeds is too short, else return None."""
    if _slow_seconds(pair.cpu.timings) > SHORT_JOB_SECONDS:
        return None
    return _worth(pair, "No", "short job")


def _slow_seconds(timings: JobTimes) -> float:
    """Return the time of a slow run of the job with its further seeds."""
    return job_interval(timings)[1] + timings.seeds_seconds


def _estimated(pair: Comparison) -> Worth | None:
    """Decide by the cheapest accelerator that is worth it, or else by the fastest."""
    found = estimated(pair)
    if not found:
        return None
    worth_it, here = pair.settings.worth_it, job_interval(pair.cpu.timings)
    worthwhile = [each for each in found if each.speedup(here)[0] > worth_it]
    answer: Answer = "Probably yes"
    best = min(worthwhile, key=lambda each: each.value, default=None)
    if best is None:
        best = min(found, key=lambda each: each.seconds)
        answer = "Probably no" if best.speedup(here)[1] < worth_it else "Can't tell"
    decision = _worth(pair, answer, _reason(pair, "cpu"))
    return replace(decision, gpu=best, interval=best.speedup(here))


def _bounded(pair: Comparison) -> Worth:
    """Answer No if no GPU in this machine can be much faster, else "Can't tell"."""
    if highest_limit(pair) < max(WORTHWHILE_BOUND, pair.settings.worth_it):
        reason: Reason = "loading" if loads_longer_than_it_starts(pair) else "start-up"
        return _worth(pair, "No", reason)
    return _worth(pair, "Can't tell", _reason(pair, "cpu"))


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


def _reason(pair: Comparison, device: DeviceLabel) -> Reason | None:
    """Return the likely main part of the device's job, or else of its epoch."""
    diagnoses = pair.diagnoses[device]
    return _REASONS.get(diagnoses[0].likely or diagnoses[0].cause) if diagnoses else None


def is_likely(pair: Comparison, decision: Worth) -> bool:
    """Return True if the reason comes from unreliable figures, such as on a busy machine."""
    first = pair.diagnoses["gpu" if decision.of_gpu else "cpu"][:1]
    return any(each.likely and _REASONS.get(each.likely) == decision.reason for each in first)
