"""Findings as tables that a person reads: units, a sensible number of digits, a word where there is no figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from photofinish.comparing.elsewhere import Elsewhere
from photofinish.comparing.parity import THE_SAME, Layer
from photofinish.comparing.payback import Cost, Outlay, TimeToTarget, outlay, payback
from photofinish.comparing.scaling import all_series, break_evens
from photofinish.comparing.speedups import NAMES, Speedup
from photofinish.comparing.table import DeviceResult, Trained
from photofinish.comparing.verdict import Verdict, in_words
from photofinish.machine.fingerprint import CpuHost, GpuHost
from photofinish.params.compare import Comparing, Watts
from photofinish.wording import energy, listed, money, ratio, seconds, utc_minute

_SHOWN = {
    "experiment": "experiment",
    "device": "device",
    "device_name": "hardware",
    "precision": "precision",
    "test_accuracy": "test accuracy",
    "test_loss": "test loss",
    "step_seconds": "step (median)",
    "epoch_seconds": "epoch (median)",
    "images_per_second": "images/s",
    "startup_seconds": "start-up",
    "total_seconds": "total",
    "overhead": "between epochs",
    "measured": "measured",
    "doubts": "to be taken with care",
}


def speedup_table(verdicts: list[Verdict]) -> pd.DataFrame:
    """Three rows for each experiment that a GPU trained."""
    rows = [
        {
            "experiment": each.experiment,
            "of": NAMES[speedup.kind],
            "CPU": seconds(speedup.cpu_seconds),
            "GPU": seconds(speedup.device_seconds),
            "speed-up": f"{ratio(speedup.ratio)}x",
            "95 % interval": _interval(speedup),
            "verdict": in_words(speedup),
        }
        for each in verdicts
        for speedup in each.speedups
    ]
    return pd.DataFrame(rows)


def speedup_figures(verdicts: list[Verdict]) -> pd.DataFrame:
    """The same for programs: a row for each speed-up, every digit."""
    columns = ["experiment", "of", "speedup", "low", "high", "cpu_seconds", "gpu_seconds", "verdict"]
    rows = [
        (each.experiment, speedup.kind, speedup.ratio, *(speedup.interval or (None, None)), speedup.cpu_seconds,
         speedup.device_seconds, in_words(speedup))
        for each in verdicts
        for speedup in each.speedups
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns).astype({"low": float, "high": float})


def why_table(verdicts: list[Verdict]) -> pd.DataFrame:
    """A row for each cause: of an epoch, and of the job where it is mostly start-up."""
    rows = [
        {
            "experiment": found.experiment,
            "device": found.device,
            "of": found.of,
            "cause": found.cause,
            "evidence": f"{found.sentence}; {found.evidence}",
            "remedy": f"{found.remedy.line} ({found.remedy.why})" if found.remedy else f"none: {found.no_remedy}",
            "predicted gain": found.remedy.prediction if found.remedy else "n/a",
        }
        for each in verdicts
        for found in each.diagnoses
    ]
    return pd.DataFrame(rows)


def parity_table(verdicts: list[Verdict]) -> pd.DataFrame:
    """What is the same in one row; then the rest, from the start of the training to its end."""
    rows = []
    for each in verdicts:
        layers = each.parity.layers if each.parity else ()
        plain = [layer.name for layer in layers if layer.finding == THE_SAME]
        found = [(layer.name, layer.finding, _likeness(layer)) for layer in layers if layer.finding != THE_SAME]
        if plain:
            found.insert(0, (listed(plain), "bit for bit", THE_SAME))
        rows += [{"experiment": each.experiment, "compared": a, "found": b, "verdict": c} for a, b, c in found]
    return pd.DataFrame(rows)


def shown_table(table: pd.DataFrame) -> pd.DataFrame:
    """All figures; of a device that was unavailable, that it was."""
    table = table.assign(
        measured=table.apply(_measured, axis="columns"), overhead=table.apply(_overhead, axis="columns")
    )
    shown = pd.DataFrame({column: table[column].map(_cell(_FORMATS.get(column, str))) for column in _SHOWN})
    unavailable = table["status"] == "unavailable"
    shown.loc[unavailable, "device_name"] = "unavailable"
    shown.loc[~unavailable & table["doubts"].isna(), "doubts"] = "nothing noticed"
    return shown.rename(columns=_SHOWN)


def _likeness(layer: Layer) -> str:
    return THE_SAME if layer.same else "within rounding" if layer.within_rounding else "different"


def _measured(row: pd.Series[Any]) -> str | None:
    """When, where, and whether in the run that made this report."""
    if pd.isna(row["measured_at_unix_seconds"]):
        return None
    run = f" ({row['measured_in']})" if pd.notna(row["measured_in"]) else ""
    return f"{utc_minute(row['measured_at_unix_seconds'])}, {row['host_name']}{run}"


def _overhead(row: pd.Series[Any]) -> str | None:
    if pd.isna(row["overhead_share"]):
        return None
    return f"{seconds(row['overhead_seconds'])} ({row['overhead_share']:.1%})"


def _interval(speedup: Speedup) -> str:
    return " to ".join(map(ratio, speedup.interval)) if speedup.interval else "n/a"


def _cell(write: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "n/a" if pd.isna(value) else write(value)


_FORMATS: dict[str, Callable[[Any], str]] = {
    "test_accuracy": "{:.2%}".format,
    "test_loss": "{:.4f}".format,
    "step_seconds": seconds,
    "epoch_seconds": seconds,
    "images_per_second": "{:,.0f}".format,
    "startup_seconds": seconds,
    "total_seconds": seconds,
}


_NOTHING = "n/a"
_PAYING = ("experiment", "of", "CPU", "GPU", "finding")
_Row = tuple[str, str, str, str, str]


def paying_table(results: Sequence[DeviceResult], settings: Comparing) -> pd.DataFrame:
    """A few rows for each experiment, then one for each series of sizes."""
    names = dict.fromkeys(result.experiment for result in results)
    trained = {name: _devices_of(name, results) for name in names}
    rows = [row for name in names for row in _experiment_rows(name, trained[name], settings)]
    for found in break_evens(results):
        rows.append((found.series, f"break-even {found.x_name}", _NOTHING, _NOTHING, found.finding))
    in_series = {point.experiment for series in all_series(results) for point in series.points}
    for name in names:
        if len(trained[name]) > 1 and name not in in_series:
            told = "one size only: no other experiment differs in its batch size or a width alone"
            rows.append((name, "break-even size", _NOTHING, _NOTHING, told))
    return pd.DataFrame(_told_once(rows, len(names)), columns=list(_PAYING))


def elsewhere_table(found: Sequence[Elsewhere], settings: Comparing) -> pd.DataFrame:
    """A row for each record of another machine, beside this one's CPU."""
    return pd.DataFrame([_elsewhere_row(each, settings) for each in found])


def _devices_of(name: str, results: Sequence[DeviceResult]) -> dict[str, Trained]:
    return {each.device: each for each in results if isinstance(each, Trained) and each.experiment == name}


def _experiment_rows(name: str, trained: Mapping[str, Trained], settings: Comparing) -> list[_Row]:
    spent = {device: outlay(each.device, each.timings, each.history, settings) for device, each in trained.items()}

    def row(of: str, figure: Callable[[Outlay], str], told: Callable[[Outlay], str]) -> _Row:
        cells = [figure(spent[device]) if device in spent else _NOTHING for device in ("cpu", "gpu")]
        return name, of, cells[0], cells[1], _of_each({device: told(each) for device, each in spent.items()})

    rows = []
    if len(trained) > 1:
        cpu, gpu = trained["cpu"].timings, trained["gpu"].timings
        started = seconds(cpu.startup_seconds), seconds(gpu.startup_seconds)
        rows.append((name, "start-up repaid", *started, payback(cpu, gpu).finding))
    rows.append(row("energy of the epochs", lambda each: _joules(each.energy.joules), _energy_told))
    rows.append(row("cost of the run", lambda each: _money(each, each.cost), lambda each: each.cost.counted))
    if settings.target_accuracy is None:
        return rows
    goal = f"to {settings.target_accuracy:g} validation accuracy"
    rows.append(row(f"time {goal}", lambda each: _time(each.target), lambda each: _time_told(each.target)))
    if any(each.joules_to_target for each in spent.values()):
        rows.append(row(f"energy {goal}", lambda each: _joules(each.joules_to_target), lambda _: "by the epochs' time"))
    if any(each.cost_to_target and each.cost_to_target.amount is not None for each in spent.values()):
        told = "as for the run"
        rows.append(row(f"cost {goal}", lambda each: _money(each, each.cost_to_target), lambda _: told))
    return rows


def _told_once(rows: list[_Row], experiment_count: int) -> list[_Row]:
    """What has no figure for the same reason is one row for all that it is so of, at the end."""
    without: dict[_Row, list[str]] = {}
    for row in rows:
        if row[2:4] == (_NOTHING, _NOTHING):
            without.setdefault(("", *row[1:]), []).append(row[0])
    several = {row: names for row, names in without.items() if len(names) > 1}
    kept = [row for row in rows if ("", *row[1:]) not in several]
    return kept + [
        ("all experiments" if len(names) == experiment_count else listed(names), *row[1:])
        for row, names in several.items()
    ]


def _elsewhere_row(found: Elsewhere, settings: Comparing) -> dict[str, str]:
    reference = found.reference
    timings, history = reference.timings, pd.DataFrame(reference.history)
    measured_only = settings.model_copy(update={"watts": Watts()})  # those given are of this machine
    spent = outlay(reference.training.device, timings, history, measured_only)
    row = {
        "experiment": found.experiment,
        "hardware": found.hardware,
        "recorded elsewhere": f"{found.recorded_on} ({reference.machine})",
        "torch": timings.packages.get("torch", _NOTHING),
        "epoch (median)": seconds(found.against_cpu.device_seconds),
        "of this CPU's speed": f"{ratio(found.against_cpu.ratio)}x",
        "start-up": seconds(timings.startup_seconds),
        "total": seconds(timings.total_seconds),
        "energy of the epochs": f"{_joules(spent.energy.joules)}, {spent.energy.status}",
        "test accuracy": f"{reference.scores.test_accuracy:.2%}",
    }
    return row | ({"time to target": _time(spent.target)} if spent.target else {})


def _of_each(told: Mapping[str, str]) -> str:
    """Once, where it is the same of every device."""
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return "; ".join(f"{device.upper()}: {text}" for device, text in told.items())


def _energy_told(spent: Outlay) -> str:
    return f"{spent.energy.status}: {spent.energy.counted}"


def _joules(joules: float | None) -> str:
    return _NOTHING if joules is None else energy(joules)


def _money(spent: Outlay, cost: Cost | None) -> str:
    return _NOTHING if cost is None or cost.amount is None else money(cost.amount, spent.currency)


def _time(target: TimeToTarget | None) -> str:
    return seconds(target.seconds) if target and target.seconds is not None else _NOTHING


def _time_told(target: TimeToTarget | None) -> str:
    if target is None or target.epoch is None:
        return f"not reached; {target.best:.4g} is the best" if target else _NOTHING
    return f"in epoch {target.epoch}, start-up included"


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
        "freed memory": "kept" if isinstance(timings.host, CpuHost) and timings.host.keep_freed_memory else "as usual",
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
