"""Table of all measured figures, the hardware and the software, with a column for each device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from photofinish.answer.comparison import Comparison
from photofinish.answer.result import Result
from photofinish.machine.fingerprint import GpuTarget
from photofinish.reporting.comparison_rows import COLUMNS, comparison_rows, is_known
from photofinish.reporting.page import Table
from photofinish.reporting.say import say
from photofinish.reporting.templates import NOTHING
from photofinish.results import passed_seconds
from photofinish.results.figures import Figure
from photofinish.wording import listed, seconds

_COMMIT_CHARACTERS = 10
_MISTAKES_NAMED = 3


def figures_table(pair: Comparison) -> Table:
    """Return a row for each known figure, with a column for each device that trained."""
    by_device = {row["device"]: row for row in comparison_rows([pair])}
    figures: dict[str, dict[str, str]] = defaultdict(lambda: defaultdict(lambda: NOTHING))
    for column in COLUMNS:
        for run in pair.trained if column.label else ():
            if column.label and is_known(value := by_device[run.device][column.name]):
                figures[column.label][run.device] = column.write(value)
    for figure in PAGE_FIGURES:
        for run in pair.trained:
            if figure.label and (value := figure.value(run)) is not None:
                figures[figure.label][run.device] = figure.write(value)
    devices = [run.device for run in pair.trained]
    return [
        {"": label, **{device.upper(): cells[device] for device in devices}}
        for label, cells in figures.items()
        if {*cells.values()} != {NOTHING}
    ]


def _most_mistaken(result: Result) -> str | None:
    """Return the pairs of classes that the network mistakes most often."""
    if not result.trained or not result.trained.scores.confusion:
        return None
    names, wrong = result.trained.record.class_names, np.array(result.trained.scores.confusion)
    np.fill_diagonal(wrong, 0)
    mistakes = []
    for index in np.argsort(-wrong, axis=None, kind="stable")[:_MISTAKES_NAMED].tolist():
        actual, predicted = divmod(index, len(names))
        if count := wrong[actual, predicted]:
            mistakes.append(f"{names[actual]} as {names[predicted]} ({count:,})")
    return listed(mistakes) or NOTHING


def _cpu(result: Result) -> str:
    cpu = result.timings.host.cpu
    return f"{cpu.model}, {cpu.usable_cores} cores, {cpu.system}" if cpu else NOTHING


def _versions(result: Result) -> str:
    host, versions = result.timings.host, dict(result.timings.packages)
    if host.software:
        versions = {"Python": host.software.python, "torch": host.software.torch}
        if isinstance(host, GpuTarget) and host.accelerators:
            versions["CUDA"] = host.software.cuda or "none"
            versions["driver"] = host.accelerators[0].driver
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _commit(result: Result) -> str:
    commit, _, dirty = (result.timings.git_commit or "").partition("-")
    return (commit[:_COMMIT_CHARACTERS] or NOTHING) + (" with changes" if dirty else "")


def _steps(result: Result) -> str | None:
    """Return how the trainer launched its steps. None for scripts."""
    if result.trained is None:
        return None
    taken = result.trained.timings.steps_taken
    if result.device == "cpu" or not taken:
        return say("one by one", why=None)
    kind = "in graphs of" if taken.kind == "graph" else "one by one"
    return say(kind, at_once=taken.at_once, why=taken.why)


def _lowest_loss(result: Result) -> float | None:
    """Return the time to the lowest validation loss, if early stopping follows it."""
    if not result.stops_early or not result.trained:
        return None
    timings = result.trained.timings
    losses = [loss for epoch in result.history if (loss := epoch.validation_loss) is not None]
    lowest = losses.index(min(losses))
    return timings.startup_seconds + passed_seconds(timings.epochs[: lowest + 1])


def _trained(attribute: str) -> Callable[[Result], Any]:
    return lambda run: getattr(run.trained.timings, attribute) if run.trained else None


def _counted(attribute: str) -> Callable[[Result], Any]:
    """Return a count of a step's operations, or None if they were not counted."""
    return lambda run: getattr(run.timings.operations, attribute, None)


PAGE_FIGURES: tuple[Figure[Result], ...] = (
    Figure("most_mistaken", _most_mistaken, "most mistaken"),
    Figure("lowest_loss", _lowest_loss, "time to the lowest loss", seconds),
    Figure("cpu", _cpu, "CPU"),
    Figure("threads", lambda run: run.timings.host.threads or NOTHING, "threads"),
    Figure("versions", _versions, "versions"),
    Figure("commit", _commit, "commit"),
    Figure("devices", _trained("device_count"), "devices"),
    Figure("steps", _steps, "steps"),
    Figure("warm_up", _trained("warm_up_seconds"), "warm-up", seconds),
    Figure("flops", _counted("flops"), "operations a step", lambda it: f"{it / 1e9:.3g} GFLOP"),
    Figure("kernels", _counted("kernels"), "operators a step", "{:,}".format),
)
"""Figures that the page has and comparison.csv does not."""
