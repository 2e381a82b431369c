"""Answers of `photofinish ask` as text: the answer for each job, then the measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from photofinish.answer.candidates import Candidate, Worth, estimated
from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import decide
from photofinish.answer.own_gpu import decide_own
from photofinish.answer.prices import SECONDS_AN_HOUR
from photofinish.answer.result import Result
from photofinish.answer.times import Interval
from photofinish.machine.load import LoadWindow, load_warnings
from photofinish.reporting.answer_words import action_text, answer_text
from photofinish.reporting.ask_json import JobAnswer
from photofinish.reporting.causes import advice
from photofinish.reporting.tables import renting_table
from photofinish.reporting.templates import say
from photofinish.scripts.run_script import Watched

_MOST_GPUS = 5
_FEW_STEPS = 5
_MUCH_WAITING = 0.1


def answer_lines(answer: JobAnswer, title: str) -> Iterator[str]:
    """Yield the job, its answer, and what to do now, with commands that need no report."""
    action = answer.decision.action
    now = say("ask again")
    if action.kind != "measure again":
        now = action_text(answer.pair, replace(action, accelerator=None))
    yield from (f"{title}:", answer_text(answer.pair, answer.decision), say("now", action=now))


def repaid_lines(hour: JobAnswer) -> Iterator[str]:
    """Yield how much training repays a GPU's start, from the answer for an hour."""
    compared, rented = hour.pair.compared, hour.decision.rented
    if compared and compared.break_even:
        least_seconds = SECONDS_AN_HOUR * compared.break_even.epochs
        if math.isfinite(least_seconds):
            yield say("own repaid", after=least_seconds)
    if rented and rented.gpu and rented.here:
        yield _rented_repaid(rented, rented.gpu, rented.here)


def _rented_repaid(rented: Worth, gpu: Candidate, here: Interval) -> str:
    def least_seconds(saved_seconds: float, here_seconds: float) -> float:
        return rented.start_seconds * here_seconds / saved_seconds

    (low, high), (fast, slow) = rented.saved, here
    middle = rented.here_seconds - gpu.seconds
    if middle <= 0:
        return say("never repaid", gpu=gpu.name)
    return say(
        "rented repaid" if low > 0 else "perhaps repaid",
        rented=rented,
        after=least_seconds(middle, rented.here_seconds),
        soonest=least_seconds(high, slow),
        latest=least_seconds(low, fast),
    )


def best_gpus(pair: Comparison) -> list[str]:
    """Return a table of time, cost and memory on the fastest GPUs and on the answer's."""
    options = sorted(estimated(pair), key=lambda each: each.seconds)
    answer = decide(pair).shown.gpu_name
    answers = [each for each in options[_MOST_GPUS:] if each.name == answer]
    rows = {row["accelerator"]: row for row in renting_table(pair)}
    columns = "the job, estimated", "cost with its start", "fits, memory at least"
    table = [["GPU", *columns]] if options else []
    for option in [*options[:_MOST_GPUS], *answers]:
        row = rows[option.name]
        table.append([row["accelerator"], *(row[column] for column in columns)])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def where_time_goes(watched: Watched, device_name: str, startup_seconds: float) -> Iterator[str]:
    figures = watched.figures
    assert figures
    yield say(
        "script's steps" if figures.loader is None else "script's steps by a loader",
        device=device_name,
        startup=startup_seconds,
        figures=figures,
        waiting=None if figures.waiting_share is None else f"{figures.waiting_share:.0%}",
    )
    if validation_seconds := figures.validation_step_seconds:
        share = validation_seconds / (validation_seconds + figures.step_seconds)
        yield say("validation seen", share=share)
    else:
        yield say("no validation seen")
    if figures.steps < _FEW_STEPS:
        yield say("few steps seen", steps=figures.steps)
    yield from _if_busy(watched.load)


def _if_busy(load: Sequence[LoadWindow]) -> Iterator[str]:
    if warnings := load_warnings(load):
        yield say("busy while asked", why=warnings[0])


def where_epochs_go(run: Result) -> Iterator[str]:
    """Yield lines on the time of an experiment's start-up and epochs on a device."""
    timings = run.timings
    yield say(
        "epochs asked",
        it=timings,
        waiting=f"{run.loading_share:.0%}" if run.shares else None,
        validation=timings.validation_share * timings.median_epoch_seconds,
    )
    yield from _if_busy(timings.load)


def suggestion_of_setting(pair: Comparison) -> Iterator[str]:
    """Yield the first change of a setting that may help, and the reason for missing estimates."""
    found = [each for causes in pair.diagnoses.values() for each in causes if each.remedy]
    if found and decide_own(pair).reason != "short job":
        yield advice(found[0])
    yield from _if_not_estimated(pair)


def _if_not_estimated(pair: Comparison) -> Iterator[str]:
    if not_counted := pair.renting.not_counted:
        yield say("no estimates asked", why=not_counted)


def suggestion(watched: Watched, pair: Comparison) -> Iterator[str]:
    """Yield what may shorten waits for batches, and why there are no estimates."""
    figures, loader = watched.figures, None
    if figures and watched.process and figures.loader is not None:
        loader = watched.process.loaders[figures.loader]
    if figures and loader and not loader.workers and (figures.waiting_share or 0) > _MUCH_WAITING:
        yield say("untried workers of a script")
    yield from _if_not_estimated(pair)
