"""Two tables of the report as a person reads them: when the GPU pays, and what other machines recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from photofinish.comparison.costs import Cost
from photofinish.comparison.outlay import Outlay, outlay
from photofinish.comparison.payback import TimeToTarget, payback
from photofinish.comparison.references import Elsewhere
from photofinish.comparison.scaling import all_series, break_evens
from photofinish.comparison.table import DeviceResult, Trained
from photofinish.params.comparing import Comparing, Watts
from photofinish.wording import energy, listed, money, ratio, seconds

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
