"""Where the figures come from: machine, versions, commit and time of each run, as a table."""

from __future__ import annotations

import pandas as pd

from photofinish.comparison.table import DeviceResult, Trained
from photofinish.hardware.hosts import CpuHost, GpuHost
from photofinish.wording import seconds, utc_minute

_COMMIT_CHARACTERS = 10


def measured_table(results: list[DeviceResult]) -> pd.DataFrame:
    """A row for each run. How often: epochs and repeats, then samples of the step and steps in each."""
    return pd.DataFrame([_row(result) for result in results if isinstance(result, Trained)])


def _row(result: Trained) -> dict[str, str]:
    timings = result.timings
    state = timings.steady_state
    return {
        "experiment": result.experiment,
        "device": result.device,
        "hardware": _times(timings.device_count, timings.device_name),
        "machine": f"{timings.host_name}: {_cpu(timings.host)}",
        "threads": str(timings.host.threads or "n/a"),
        "versions": _versions(timings.host, timings.packages),
        "commit": _commit(timings.git_commit),
        "began": utc_minute(timings.started_at_unix_seconds),
        "epochs timed": _times(len(timings.repeats) + 1, str(len(timings.epochs))),
        "steps timed": f"{len(state.sample_seconds)} x {state.steps_per_sample}",
        "warm-up": seconds(timings.warm_up_seconds),
    }


def _times(count: int, what: str) -> str:
    return what if count == 1 else f"{count} x {what}"


def _cpu(host: CpuHost | GpuHost) -> str:
    return f"{host.cpu.model}, {host.cpu.usable_cores} cores, {host.cpu.system}" if host.cpu else "n/a"


def _versions(host: CpuHost | GpuHost, packages: dict[str, str]) -> str:
    """What computes: Python, torch, and for a GPU CUDA and the driver."""
    named = {"Python": host.software.python, "torch": host.software.torch} if host.software else dict(packages)
    if isinstance(host, GpuHost) and host.software and host.accelerators:
        named |= {"CUDA": host.software.cuda or "none", "driver": host.accelerators[0].driver}
    return ", ".join(f"{name} {version}" for name, version in named.items())


def _commit(commit: str | None) -> str:
    if not commit:
        return "n/a"
    digest, _, dirty = commit.partition("-")
    return digest[:_COMMIT_CHARACTERS] + (" with changes" if dirty else "")
