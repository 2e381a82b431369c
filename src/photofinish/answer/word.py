"""The word of an answer: for a GPU here, for one rented or used elsewhere, and for any GPU.

A machine is rented once for all seeds of an experiment and all experiments of a sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from photofinish.answer.candidates import (
    Answer,
    Candidate,
    Reason,
    Worth,
    by_data_sheets,
    for_all,
    short_name,
)
from photofinish.answer.comparison import Comparison
from photofinish.answer.diagnosis import Cause
from photofinish.answer.prices import GpuTerms, terms_of
from photofinish.answer.times import ByLoad, Interval, UncertainTime, time_by_load, total_by_load
from photofinish.config.compare import accelerators
from photofinish.results.job import Job

_REASONS: dict[Cause, Reason] = {
    "start-up-bound": "start-up",
    "input-bound": "loading",
    "copy-bound": "copying",
    "launch-bound": "launch overhead",
    "compute-bound": "arithmetic",
    "CPU held back": "arithmetic",
}
_CLOSE_WIDTH = 1.6
"""Largest ratio of an interval's ends that is a close call, by hand.

Two measured times have 1.44, so measuring longer changes nothing. If it were less, close calls of
noisy jobs would read *Can't tell yet*.
"""
_RANKS: dict[Answer, int] = {"Probably yes": 0, "Close call": 1, "Can't tell": 1, "No": 2}


def of_gpu_here(pair: Comparison) -> Worth | None:
    """Decide by the job's time on the GPU here, or return None if none trained it."""
    if pair.gpu is None:
        return None
    gpu = pair.gpu
    on_cpu, on_gpu = pair.time_here, time_by_load(gpu)
    ratios = on_cpu.busy.over(on_gpu.busy), on_cpu.idle.over(on_gpu.idle)
    answer = _common(_by_interval(ratio, 1.0, "Yes") for ratio in ratios)
    diagnoses = pair.causes["gpu" if answer == "No" else "cpu"]
    main = diagnoses[0].likely or diagnoses[0].cause if diagnoses else None
    return Worth(
        "the GPU here",
        answer,
        _REASONS.get(main) if main else None,
        on_cpu,
        Candidate(short_name(gpu.device_name), "measured", on_gpu.shown, job=gpu),
        None if on_cpu.is_busy or on_gpu.is_busy else ratios[0],
    )


def _common(words: Iterable[Answer]) -> Answer:
    """Return the word that a busy machine and an idle one have in common."""
    first, other = words
    return first if first == other else "Can't tell"


def _by_interval(interval: Interval, limit: float, yes: Answer) -> Answer:
    low, high = interval
    if low >= limit:
        return yes
    if high < limit:
        return "No"
    return "Close call" if high <= _CLOSE_WIDTH * low else "Can't tell"


def of_rented(on_cpu: UncertainTime, on_gpu: UncertainTime, terms: GpuTerms) -> Answer:
    """Return the word for a GPU elsewhere, which may have to save minutes."""
    if terms.least_seconds:
        return _by_interval(on_cpu.minus(on_gpu), terms.least_seconds, "Probably yes")
    return _by_interval(on_cpu.over(on_gpu), 1.0, "Probably yes")


def bounded(pair: Comparison) -> Worth | None:
    """Answer No if no GPU can make the job much faster, else return None."""
    if pair.bounds.job.at_most >= pair.settings.worth_it:
        return None
    reason: Reason = "loading" if loads_longer_than_it_starts(pair) else "start-up"
    return Worth("any GPU", "No", reason, pair.time_here)


def not_estimated(pair: Comparison) -> Worth:
    """Return the answer if nothing is known of a GPU."""
    return Worth("any GPU", "Can't tell", "no estimate", pair.time_here)


def loads_longer_than_it_starts(pair: Comparison) -> bool:
    """Return True if most of the time that stays on the CPU is loading, not start-up."""
    return pair.bounds.job.staying_seconds > 2 * pair.cpu.startup_seconds


def decide_rented(sweep: Sequence[Comparison]) -> Worth | None:
    """Decide for all experiments of a sweep. Return None if the settings name no accelerators."""
    settings = sweep[0].settings
    gpus = for_all([_with_seeds(pair.cpu, pair.candidates) for pair in sweep])
    if not gpus and not settings.accelerators:
        return None
    if set(settings.accelerators) == accelerators().keys():
        # Of all GPUs, one that can't be rented is only shown, unless the user has a record of it.
        known = [gpu for gpu in gpus if gpu.terms.is_rented or gpu.basis == "recorded"]
        gpus = known or gpus
    on_cpu = total_by_load([time_by_load(pair.cpu, with_seeds=True) for pair in sweep])
    if gpus:
        return _by_candidates(on_cpu, gpus, len(sweep))
    every = [terms_of(name, settings) for name in settings.accelerators]
    terms = min(every, key=lambda terms: terms.least_seconds)
    is_short = on_cpu.busy.interval[1] <= terms.least_seconds
    return Worth(
        "renting" if terms.is_rented else "using",
        "No" if is_short else "Can't tell",
        "too short" if is_short else "not known",
        on_cpu,
        terms=terms,
        jobs=len(sweep),
    )


def _by_candidates(on_cpu: ByLoad, gpus: Sequence[Candidate], jobs: int) -> Worth:
    """Decide by the cheapest GPU with the best answer, by its own time, then by data sheets."""

    def word(gpu: Candidate) -> Answer:
        return _common(of_rented(cpu, gpu.time, gpu.terms) for cpu in (on_cpu.busy, on_cpu.idle))

    def key(sides: tuple[Candidate, Candidate]) -> tuple[list[int], tuple[bool, float, float]]:
        return [_RANKS[word(gpu)] for gpu in sides], sides[1].value

    best, _ = min(zip(gpus, by_data_sheets(gpus), strict=True), key=key)
    answer = word(best)
    saves = on_cpu.busy.minus(best.time)[0] > 0
    reason: Reason = "saves too little" if saves else "saves nothing"
    if answer != "No":
        reason = "saves enough" if answer == "Probably yes" else "may save enough"
    worth = Worth(
        "renting" if best.terms.is_rented else "using",
        answer,
        reason,
        on_cpu,
        best,
        terms=best.terms,
        jobs=jobs,
    )
    return _of(worth, on_cpu, best)


def _of(worth: Worth, on_cpu: ByLoad, gpu: Candidate) -> Worth:
    return replace(
        worth,
        time_here=on_cpu,
        gpu=gpu,
        interval=None if on_cpu.is_busy else on_cpu.busy.over(gpu.time),
        saved=on_cpu.shown.minus(gpu.time),
    )


def of_one_training(pair: Comparison, worth: Worth) -> Worth:
    """Return the answer with the times of one training instead of all seeds and the sweep."""
    if not worth.is_elsewhere:
        return worth
    on_cpu = pair.time_here
    if worth.gpu is None:
        return replace(worth, time_here=on_cpu)
    own = next(gpu for gpu in pair.candidates if gpu.name == worth.gpu.name)
    return _of(worth, on_cpu, own)


def _with_seeds(cpu: Job, gpus: Sequence[Candidate]) -> list[Candidate]:
    """Return the GPUs with the time of all seeds. Further seeds have no start-up."""
    with_seeds = []
    for gpu in gpus:
        passes_seconds = 0.0
        if gpu.job:  # of a record, which may have other seeds
            passes_seconds = gpu.job.passes_seconds
        elif gpu.option and gpu.option.estimate:
            passes_seconds = gpu.time.seconds - gpu.option.estimate.once_seconds
        seeds_seconds = cpu.seeds_seconds / cpu.passes_seconds * passes_seconds
        time = replace(gpu.time, seconds=gpu.time.seconds + seeds_seconds)
        with_seeds.append(replace(gpu, time=time))
    return with_seeds
