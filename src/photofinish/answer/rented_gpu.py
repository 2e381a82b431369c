"""Answers for a rented GPU, from the minutes that it saves after its start.

A machine is rented once for all seeds of an experiment and all experiments of a sweep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from photofinish.answer.candidates import (
    Answer,
    Candidate,
    Reason,
    Worth,
    estimated,
    for_all,
    recorded,
    summed,
)
from photofinish.answer.comparison import Comparison
from photofinish.answer.times import RUN_TO_RUN, Interval, job_spread
from photofinish.results.job_times import JobTimes

MOST_RUNS = 1000
"""Largest number of runs that an answer suggests."""


def decide_rented(sweep: Sequence[Comparison]) -> Worth | None:
    """Decide for all experiments of a sweep. Return None if the settings name no accelerators."""
    settings = sweep[0].settings
    by_estimate = for_all([_with_seeds(pair, estimated(pair)) for pair in sweep])
    found = for_all([_with_seeds(pair, recorded(pair)) for pair in sweep]) or by_estimate
    if not found and not settings.accelerators:
        return None
    quickest = [_quickest(pair) for pair in sweep]
    here_seconds = sum(run.job_seconds for run in quickest)
    fast, slow = summed(map(_job_spread, quickest))
    here = fast / RUN_TO_RUN, slow * RUN_TO_RUN
    start_seconds, worth_seconds = 60 * settings.rental_minutes, 60 * settings.worth_saving
    is_short = here[1] <= start_seconds + worth_seconds
    undecided = Worth(
        "renting",
        "No" if is_short else "Can't tell",
        "short job" if is_short else "not known",
        here_seconds,
        here,
        start_seconds=start_seconds,
        worth_seconds=worth_seconds,
        jobs=len(sweep),
    )
    if not found:
        return undecided
    # A cheaper GPU that surely saves enough by estimate is better than a recorded one.
    names = {each.name for each in found}
    others = [each for each in by_estimate if each.full_name not in names]
    return _by_candidates(undecided, found, others)


def _by_candidates(
    undecided: Worth, found: Sequence[Candidate], others: Sequence[Candidate]
) -> Worth:
    """Decide by these GPUs. Others count only if they surely save enough."""
    here, here_seconds = undecided.here, undecided.here_seconds
    least_seconds = undecided.least_seconds
    assert here
    surely = [each for each in [*found, *others] if each.saved(here)[0] >= least_seconds]
    perhaps = [each for each in found if each.saved(here)[1] >= least_seconds]
    faster = [each for each in found if each.saved(here)[0] > 0]
    best = min(surely or faster or found, key=lambda each: each.value)
    is_short = undecided.reason == "short job"
    answer: Answer = "No" if is_short else "Probably no"
    reason: Reason = "short job" if is_short else "saves nothing"
    runs, depends_on_here = None, False
    if surely:
        answer, reason = "Probably yes", "saves enough"
    elif perhaps:
        answer, reason = "Can't tell", "may save enough"
        best = min(perhaps, key=lambda each: each.value)
        exact = here_seconds / RUN_TO_RUN, here_seconds * RUN_TO_RUN
        depends_on_here = _is_clear([each.saved(exact) for each in found], least_seconds)
    elif faster:
        reason = "saves too little"
        wanted = math.ceil(least_seconds / best.saved(here)[0])
        runs = wanted if wanted <= MOST_RUNS else None
    return replace(
        undecided,
        answer=answer,
        reason=reason,
        gpu=best,
        interval=best.speedup(here),
        saved=best.saved(here),
        runs=runs,
        depends_on_here=depends_on_here,
    )


def _is_clear(saved: Sequence[Interval], least_seconds: float) -> bool:
    """Return True if one of the GPUs surely saves enough, or none may."""
    is_sure = any(low >= least_seconds for low, _ in saved)
    return is_sure or all(high < least_seconds for _, high in saved)


def _quickest(pair: Comparison) -> JobTimes:
    """Return the times of the fastest device here."""
    return min((run.timings for run in pair.trained), key=lambda each: each.job_seconds)


def _with_seeds(pair: Comparison, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the GPUs with the time of all seeds. Further seeds have no start-up."""
    found, cpu = [], pair.cpu.timings
    for each in candidates:
        factor = 1.0
        if each.timings:
            factor = each.timings.job_seconds / each.timings.whole_seconds
        elif each.option and each.option.estimate:
            passes_seconds = each.seconds - each.option.estimate.startup_seconds
            seeds_seconds = cpu.seeds_seconds / cpu.passes_seconds * passes_seconds
            factor = 1 + seeds_seconds / each.seconds
        found.append(each.for_seeds(factor))
    return found


def _job_spread(run: JobTimes) -> Interval:
    """Return the times of a fast and a slow run of the job, including further seeds."""
    fast, slow = job_spread(run)
    factor = run.job_seconds / run.whole_seconds
    return factor * fast, factor * slow
