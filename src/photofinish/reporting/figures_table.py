"""Table of all measured figures, the hardware and the software, with a column for each device."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from photofinish.comparing.pairs import Comparison
from photofinish.comparing.result import Result, Trained
from photofinish.machine.fingerprint import GpuTarget
from photofinish.reporting.comparison_rows import COLUMNS, comparison_rows, is_known
from photofinish.reporting.page import Table
from photofinish.reporting.templates import NOTHING, say
from photofinish.results.measurements import Operations
from photofinish.wording import listed, seconds

_COMMIT_CHARACTERS = 10
_MISTAKES_NAMED = 3


def figures_table(pair: Comparison) -> Table:
    """Return a row for each figure, with a column for each device that trained."""
    trained = {run.device for run in pair.trained}
    by_device = {row["device"]: row for row in comparison_rows([pair]) if row["device"] in trained}
    figures: dict[str, dict[str, str]] = defaultdict(lambda: defaultdict(lambda: NOTHING))
    for column in COLUMNS:
        for device, row in by_device.items() if column.label else ():
            if column.label and is_known(row[column.name]):
                figures[column.label][device] = column.write(row[column.name])
    for result in pair.trained:
        if result.trained and result.trained.scores.confusion:
            figures["most mistaken"][result.device] = _most_mistaken(result.trained)
        for label, text in _hardware_and_software(result).items():
            figures[label][result.device] = text
    return [
        {"": label, **{device.upper(): cells[device] for device in by_device}}
        for label, cells in figures.items()
    ]


def _most_mistaken(result: Trained) -> str:
    """Return the pairs of classes that the network mistakes most often."""
    names, wrong = result.record.class_names, np.array(result.scores.confusion)
    np.fill_diagonal(wrong, 0)
    mistakes = []
    for index in np.argsort(-wrong, axis=None, kind="stable")[:_MISTAKES_NAMED].tolist():
        actual, predicted = divmod(index, len(names))
        if count := wrong[actual, predicted]:
            mistakes.append(f"{names[actual]} as {names[predicted]} ({count:,})")
    return listed(mistakes) or NOTHING


def _hardware_and_software(result: Result) -> dict[str, str]:
    """Return hardware and software, and how steps are launched or what was counted."""
    timings, host = result.timings, result.timings.host
    versions = dict(timings.packages)
    if host.software:
        versions = {"Python": host.software.python, "torch": host.software.torch}
        if isinstance(host, GpuTarget) and host.accelerators:
            versions["CUDA"] = host.software.cuda or "none"
            versions["driver"] = host.accelerators[0].driver
    commit, _, dirty = (timings.git_commit or "").partition("-")
    cpu = host.cpu
    return {
        "CPU": f"{cpu.model}, {cpu.usable_cores} cores, {cpu.system}" if cpu else NOTHING,
        "threads": str(host.threads or NOTHING),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "commit": (commit[:_COMMIT_CHARACTERS] or NOTHING) + (" with changes" if dirty else ""),
        **_launching(result),
        **_counted_step(timings.operations),
    }


def _launching(result: Result) -> dict[str, str]:
    """Return how the trainer launched its steps. Empty for scripts."""
    if result.trained is None:
        return {}
    timings, steps = result.trained.timings, say("one by one", why=None)
    taken = timings.steps_taken
    if result.device == "gpu" and taken:
        kind = "in graphs of" if taken.kind == "graph" else "one by one"
        steps = say(kind, at_once=taken.at_once, why=taken.why)
    devices = str(timings.device_count)
    return {"devices": devices, "steps": steps, "warm-up": seconds(timings.warm_up_seconds)}


def _counted_step(operations: Operations | None) -> dict[str, str]:
    if operations is None:
        return {}
    return {
        "operations a step": f"{operations.flops / 1e9:.3g} GFLOP",
        "operators a step": f"{operations.kernels:,}",
    }
