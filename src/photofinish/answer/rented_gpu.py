"""Answers for a rented GPU, from the minutes that it saves after its start.

A machine is rented once for all seeds of an experiment and all experiments of a sweep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from photofinish.answer.candidates import (
    MOST_RUNS,
    Answer,
    Candidate,
    Reason,
    Worth,
    candidates,
    for_all,
    is_close,
)
from photofinish.answer.comparison import Comparison
from photofinish.answer.times import job_time
from photofinish.answer.uncertainty import total

_RANKS: dict[Answer, int] = {"Probably yes": 0, "Close call": 1, "Can't tell": 1, "No": 2}


def decide_rented(sweep: Sequence[Comparison]) -> Worth | None:
    """Decide for all experiments of a sweep. Return None if the settings name no accelerators."""
    settings = sweep[0].settings
    found = for_all([_with_seeds(pair, candidates(pair)) for pair in sweep])
    if not found and not settings.accelerators:
        return None
    cpu = total([job_time(pair.cpu.timings, with_seeds=True) for pair in sweep])
    start_seconds, worth_seconds = 60 * settings.rental_minutes, 60 * settings.worth_saving
    is_short = cpu.interval[1] <= start_seconds + worth_seconds
    undecided = Worth(
        "renting",
        "No" if is_short else "Can't tell",
        "too short" if is_short else "not known",
        cpu,
        start_seconds=start_seconds,
        worth_seconds=worth_seconds,
        jobs=len(sweep),
    )
    return _by_candidates(undecided, found) if found else undecided


def _by_candidates(undecided: Worth, found: Sequence[Candidate]) -> Worth:
    """Decide by the cheapest GPU with the best answer."""
    cpu, least_seconds = undecided.here, undecided.least_seconds

    def answer_of(gpu: Candidate) -> Answer:
        low, high = saved = cpu.less(gpu.time)
        if low >= least_seconds:
            return "Probably yes"
        if high < least_seconds:
            return "No"
        return "Close call" if is_close(saved, least_seconds) else "Can't tell"

    def rank(gpu: Candidate) -> tuple[int, tuple[bool, float, float]]:
        return _RANKS[answer_of(gpu)], gpu.value(undecided.start_seconds)

    best = min(found, key=rank)
    answer, saved = answer_of(best), cpu.less(best.time)
    reason: Reason = "saves too little" if saved[0] > 0 else "saves nothing"
    runs = None
    if answer != "No":
        reason = "saves enough" if answer == "Probably yes" else "may save enough"
    if answer in ("No", "Close call") and saved[0] > 0:
        wanted = math.ceil(least_seconds / saved[0])
        runs = wanted if wanted <= MOST_RUNS else None
    return replace(
        undecided,
        answer=answer,
        reason=reason,
        gpu=best,
        interval=cpu.over(best.time),
        saved=saved,
        runs=runs,
    )


def of_one_training(pair: Comparison, worth: Worth) -> Worth:
    """Return the answer with the times of one training instead of all seeds and the sweep."""
    if worth.about != "renting":
        return worth
    here, gpu = job_time(pair.cpu.timings), worth.gpu
    if gpu is None:
        return replace(worth, here=here)
    own = next(each for each in candidates(pair) if each.name == gpu.name)
    interval, saved = here.over(own.time), here.less(own.time)
    return replace(worth, here=here, gpu=own, interval=interval, saved=saved)


def _with_seeds(pair: Comparison, gpus: Sequence[Candidate]) -> list[Candidate]:
    """Return the GPUs with the time of all seeds. Further seeds have no start-up."""
    found, cpu = [], pair.cpu.timings
    for each in gpus:
        passes_seconds = 0.0
        if each.timings:  # of a record, which may have other seeds
            passes_seconds = each.timings.passes_seconds
        elif each.option and each.option.estimate:
            passes_seconds = each.time.seconds - each.option.estimate.startup_seconds
        seeds_seconds = cpu.seeds_seconds / cpu.passes_seconds * passes_seconds
        time = replace(each.time, seconds=each.time.seconds + seeds_seconds)
        found.append(replace(each, time=time))
    return found
