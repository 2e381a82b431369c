"""Records in, one table out: a row for each experiment and device. No torch here."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pandas as pd

from photofinish.comparing.diagnosis import costs_of, diagnose
from photofinish.comparing.parity import parity
from photofinish.comparing.payback import outlay, payback
from photofinish.comparing.speedups import NAMES, speedups
from photofinish.comparing.step_costs import PARTS
from photofinish.errors import UserError
from photofinish.machine.load import doubts
from photofinish.params.compare import Comparing
from photofinish.results import records
from photofinish.results.records import DeviceLabel

COLUMNS = (
    "experiment", "device", "status", "device_name", "precision", "parameters", "epochs", "repeats", "test_accuracy",
    "test_loss", "macro_f1", "step_seconds", "epoch_seconds", "images_per_second", "startup_seconds", "total_seconds",
    "step_speedup", "step_speedup_low", "step_speedup_high", "epoch_speedup", "epoch_speedup_low",
    "epoch_speedup_high", "end_to_end_speedup", "end_to_end_speedup_low", "end_to_end_speedup_high", "same_model",
    "parts_at", "mcnemar_p", "same_initial_weights", "payback_epochs", "payback_epochs_low", "payback_epochs_high",
    "target_accuracy", "target_epoch", "target_seconds", "energy_joules", "energy_status", "energy_counted",
    "target_energy_joules", "cost", "cost_currency", "cost_counted", "target_cost", "overhead_seconds",
    "overhead_share", "cause", "epoch_cause", "busy_share", "waiting_share", "copying_share", "forward_share",
    "backward_share", "optimizer_share", "rest_share", "doubts", "resumed_at_epochs", "host_name",
    "measured_at_unix_seconds", "measured_in", "reason",
)  # fmt: skip
THIS_RUN, EARLIER_RUN = "this run", "an earlier run"


@dataclass(frozen=True)
class Trained:
    """All that is on disk of one experiment on one device."""

    experiment: str
    device: DeviceLabel
    record: records.Training
    timings: records.Timings
    scores: records.DeviceEvaluation
    history: pd.DataFrame
    first_step: records.FirstStep
    predictions: pd.DataFrame
    """`actual` and `predicted`, a row for each test image"""


@dataclass(frozen=True)
class NotTrained:
    """The same where the device was unavailable."""

    experiment: str
    device: DeviceLabel
    record: records.Unavailable


DeviceResult = Trained | NotTrained


def read_results(names: Iterable[str], results: Path) -> list[DeviceResult]:
    return [_read_result(name, device, results) for name in names for device in records.DEVICE_LABELS]


def comparison_table(
    results: list[DeviceResult],
    run_began_at_unix_seconds: float | None = None,
    settings: Comparing | None = None,
) -> pd.DataFrame:
    """The CPU is what every other device is compared with: a speed-up of 2 is half the CPU's time.

    Given when the run of dvc began that this is part of, it tells which figures were measured in it.
    """
    cpu_results = {result.experiment: result for result in _trained(results) if result.device == "cpu"}
    rows = [
        _row(result, run_began_at_unix_seconds)
        | _spent(result, settings or Comparing())
        | _against_cpu(result, cpu_results.get(result.experiment))
        for result in results
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def history_table(results: list[DeviceResult]) -> pd.DataFrame:
    """Every epoch of every run, one below the other, with the time its training had taken by then."""
    parts = [
        result.history.assign(
            training_seconds_so_far=list(accumulate(epoch.training_seconds for epoch in result.timings.epochs)),
            **_run(result),
        )
        for result in _trained(results)
    ]
    return pd.concat(parts, ignore_index=True)


def confusion_table(results: list[DeviceResult]) -> pd.DataFrame:
    """One row for each pair of true and predicted class of each run, with how many images it holds."""
    rows = [
        {**_run(result), "actual": actual, "predicted": predicted, "images": count}
        for result in _trained(results)
        for actual, counts in zip(result.record.class_names, result.scores.confusion, strict=True)
        for predicted, count in zip(result.record.class_names, counts, strict=True)
    ]
    return pd.DataFrame(rows, columns=["experiment", "device", "run", "actual", "predicted", "images"])


def comparison_metrics(table: pd.DataFrame) -> dict[str, Any]:
    """The table's figures for `dvc metrics`: experiment, device, figure."""
    scores = ["test_accuracy", "test_loss", "macro_f1"]
    figures = [*scores, "step_seconds", "epoch_seconds", "total_seconds", *(f"{kind}_speedup" for kind in NAMES)]
    metrics: dict[str, Any] = {}
    for row in table.to_dict("records"):
        present = {figure: row[figure] for figure in figures if pd.notna(row[figure])}
        if present:
            metrics.setdefault(str(row["experiment"]), {})[str(row["device"])] = present
    return metrics


def _run(result: Trained) -> dict[str, str]:
    """Which run a row is of: by its two names, and by one for tools that group by a single column."""
    name = f"{result.experiment} {result.device}"
    return {"experiment": result.experiment, "device": result.device, "run": name}


def _trained(results: list[DeviceResult]) -> list[Trained]:
    return [result for result in results if isinstance(result, Trained)]


def _read_result(name: str, device: DeviceLabel, results: Path) -> DeviceResult:
    folder = results / name / device
    record = records.read_training(folder / records.LEARNED)
    if isinstance(record, records.Unavailable):
        return NotTrained(name, device, record)
    evaluation_file = results / name / records.EVALUATED / records.EVALUATION
    scores = records.read_record(evaluation_file, records.Evaluation).devices.get(device)
    if scores is None:
        raise UserError(f"{evaluation_file} has no scores of the {device}'s network: run `dvc repro`")
    return Trained(
        name,
        device,
        record,
        records.read_record(folder / records.TIMED / records.TIMINGS, records.Timings),
        scores,
        pd.DataFrame(records.read_history(folder / records.LEARNED)),
        records.read_record(folder / records.LEARNED / records.FIRST_STEP, records.FirstStep),
        _read_predictions(evaluation_file.with_name(records.PREDICTIONS), device),
    )


def _read_predictions(path: Path, device: DeviceLabel) -> pd.DataFrame:
    try:
        table = pd.read_csv(path, usecols=["actual", device], dtype="int64")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a table of predictions that can be read: run `dvc repro` ({error})") from error
    return table.rename(columns={device: "predicted"})


def _row(result: DeviceResult, run_began_at_unix_seconds: float | None) -> dict[str, object]:
    row: dict[str, object] = {
        "experiment": result.experiment,
        "device": result.device,
        "status": result.record.status,
        "epochs": result.record.experiment.epochs,
    }
    if isinstance(result, NotTrained):
        return row | {"reason": result.record.reason}
    timings, scores = result.timings, result.scores
    return row | {
        "device_name": timings.device_name,
        "precision": result.record.precision,
        "parameters": result.record.parameter_count,
        "test_accuracy": scores.test_accuracy,
        "test_loss": scores.test_loss,
        "macro_f1": scores.macro_f1,
        "epoch_seconds": timings.median_epoch_seconds,
        "images_per_second": timings.images_per_second,
        "startup_seconds": timings.startup_seconds,
        "step_seconds": statistics.median(timings.steady_state.step_seconds),
        "repeats": len(timings.repeats) + 1,
        "overhead_seconds": timings.overhead.seconds,
        "overhead_share": timings.overhead.share,
        "doubts": "; ".join(doubts(timings.load)) or None,
        "total_seconds": timings.total_seconds,
        **_where_it_goes(result),
        "resumed_at_epochs": " ".join(map(str, timings.resumed_at_epochs)) or None,
        "host_name": timings.host_name,
        "measured_at_unix_seconds": timings.started_at_unix_seconds,
        "measured_in": _run_of(timings, run_began_at_unix_seconds),
    }


def _spent(result: DeviceResult, settings: Comparing) -> dict[str, object]:
    if isinstance(result, NotTrained):
        return {}
    return outlay(result.device, result.timings, result.history, settings).columns


def _where_it_goes(result: Trained) -> dict[str, object]:
    """The cause of the job and that of its epochs, and what share of a step each part is."""
    found = diagnose(result.experiment, result.record, result.timings)
    row: dict[str, object] = {"cause": found[0].cause, "epoch_cause": found[-1].cause} if found else {}
    if costs := costs_of(result.record, result.timings):
        shares = {PARTS[part].replace("_seconds", "_share"): share for part, share in costs.shares.items()}
        row |= {"busy_share": costs.busy_share, **shares}
    return row


def _run_of(timings: records.Timings, run_began_at_unix_seconds: float | None) -> str | None:
    """Whether it was measured in the run of dvc that makes this report, or taken over from before, or from a cache."""
    if run_began_at_unix_seconds is None:
        return None
    here = timings.host_name == platform.node()
    return THIS_RUN if here and timings.started_at_unix_seconds >= run_began_at_unix_seconds else EARLIER_RUN


def _against_cpu(result: DeviceResult, cpu: Trained | None) -> dict[str, object]:
    if cpu is None or isinstance(result, NotTrained) or result.device == "cpu":
        return {}
    found = parity(cpu, result)
    row: dict[str, object] = {
        "same_model": found.likeness,
        "parts_at": found.parts_at.name if found.parts_at else None,
        "mcnemar_p": found.mcnemar_p,
        "same_initial_weights": result.record.initial_weights_sha256 == cpu.record.initial_weights_sha256,
    }
    repaid = payback(cpu.timings, result.timings)
    low, high = repaid.interval or (None, None)
    row |= {"payback_epochs": repaid.epochs, "payback_epochs_low": low, "payback_epochs_high": high}
    for speedup in speedups(cpu.timings, result.timings):
        low, high = speedup.interval or (None, None)
        name = f"{speedup.kind}_speedup"
        row |= {name: speedup.ratio, f"{name}_low": low, f"{name}_high": high}
    return row


_COLUMNS = ("experiment", "device", "part", "median_seconds", "share")


def attribution_table(results: list[DeviceResult]) -> pd.DataFrame:
    """In the order of the results and of a step; none of runs whose steps were not taken apart.

    `share` is of a synchronised step, its mean over an epoch: so it counts what only an epoch's first step waits for.
    """
    rows = [
        (result.experiment, result.device, part, attribution.parts.median_seconds[field], costs.shares[part])
        for result in results
        if isinstance(result, Trained)
        and (costs := costs_of(result.record, result.timings))
        and (attribution := result.timings.attribution)
        for part, field in PARTS.items()
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))
