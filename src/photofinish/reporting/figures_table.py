"""Table of all measured figures, the hardware and the software, with a column for each device."""

from __future__ import annotations

from collections import defaultdict

from photofinish.answer.comparison import Comparison
from photofinish.answer.result import Result
from photofinish.machine.fingerprint import GpuTarget
from photofinish.reporting.comparison_rows import COLUMNS, comparison_rows, is_known
from photofinish.reporting.page import Table
from photofinish.reporting.say import say
from photofinish.reporting.templates import NOTHING
from photofinish.results import passed_seconds
from photofinish.results.figures import Figure
from photofinish.wording import seconds

_COMMIT_CHARACTERS = 10


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
    """Return how a GPU was given its steps, if in graphs or if there is a reason why not."""
    taken = result.trained.timings.steps_taken if result.trained else None
    if result.device == "cpu" or not taken:
        return None
    if taken.kind == "graph":
        return say("in graphs of", at_once=taken.at_once)
    return say("one by one", why=taken.why) if taken.why else None


def _lowest_loss(result: Result) -> float | None:
    """Return the time to the lowest validation loss, if early stopping follows it."""
    if not result.stops_early or not result.trained:
        return None
    timings = result.trained.timings
    losses = [loss for epoch in result.history if (loss := epoch.validation_loss) is not None]
    lowest = losses.index(min(losses))
    return timings.startup_seconds + passed_seconds(timings.epochs[: lowest + 1])


def _devices(result: Result) -> int | None:
    """Return the number of GPUs, if there were several."""
    count = result.trained.timings.device_count if result.trained else 1
    return count if count > 1 else None


def _warm_up_seconds(result: Result) -> float | None:
    return result.trained.timings.warm_up_seconds if result.trained else None


PAGE_FIGURES: tuple[Figure[Result], ...] = (
    Figure("lowest_loss", _lowest_loss, "time to the lowest loss", seconds),
    Figure("cpu", _cpu, "CPU"),
    Figure("threads", lambda run: run.timings.host.threads or NOTHING, "threads"),
    Figure("versions", _versions, "versions"),
    Figure("commit", _commit, "commit"),
    Figure("devices", _devices, "devices"),
    Figure("steps", _steps, "steps"),
    Figure("warm_up", _warm_up_seconds, "warm-up", seconds),
)
"""Figures that the page has and comparison.csv does not."""
