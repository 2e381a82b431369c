"""Records in, one table out: a row for each experiment and device. No torch here."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from photofinish import records
from photofinish.records import DeviceLabel

COLUMNS = (
    "experiment", "device", "status", "device_name", "precision", "parameters", "epochs", "test_accuracy",
    "test_loss", "macro_f1", "epoch_seconds", "images_per_second", "startup_seconds", "total_seconds",
    "epoch_speedup", "end_to_end_speedup", "same_initial_weights", "resumed_at_epochs", "host_name",
    "measured_at_unix_seconds", "reason",
)  # fmt: skip


@dataclass(frozen=True)
class DeviceResult:
    """All that is on disk of one experiment on one device; only the record where the device was unavailable."""

    experiment: str
    device: DeviceLabel
    record: records.Training | records.Unavailable
    timings: records.Timings | None
    scores: records.DeviceEvaluation | None
    history: pd.DataFrame | None


def read_results(names: Iterable[str], results: Path) -> list[DeviceResult]:
    return [_read_result(name, device, results) for name in names for device in records.DEVICE_LABELS]


def comparison_table(results: list[DeviceResult]) -> pd.DataFrame:
    """The CPU is what every other device is compared with: a speed-up of 2 is half the CPU's time."""
    cpu_results = {result.experiment: result for result in results if result.device == "cpu"}
    rows = [_row(result, cpu_results.get(result.experiment)) for result in results]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def history_table(results: list[DeviceResult]) -> pd.DataFrame:
    """Every epoch of every run, one below the other."""
    parts = [
        result.history.assign(run=f"{result.experiment} {result.device}")
        for result in results
        if result.history is not None
    ]
    return pd.concat(parts, ignore_index=True)


def confusion_table(results: list[DeviceResult]) -> pd.DataFrame:
    """One row for each pair of true and predicted class of each run, with how many images it holds."""
    rows = [
        {"run": f"{result.experiment} {result.device}", "actual": actual, "predicted": predicted, "images": count}
        for result in results
        if result.scores is not None and isinstance(result.record, records.Training)
        for actual, counts in zip(result.record.class_names, result.scores.confusion, strict=True)
        for predicted, count in zip(result.record.class_names, counts, strict=True)
    ]
    return pd.DataFrame(rows, columns=["run", "actual", "predicted", "images"])


def comparison_metrics(table: pd.DataFrame) -> dict[str, Any]:
    """The table's figures for `dvc metrics`: experiment, device, figure."""
    figures = ["epoch_seconds", "total_seconds", "epoch_speedup", "end_to_end_speedup"]
    metrics: dict[str, Any] = {}
    for row in table.to_dict("records"):
        present = {figure: row[figure] for figure in figures if pd.notna(row[figure])}
        if present:
            metrics.setdefault(str(row["experiment"]), {})[str(row["device"])] = present
    return metrics


def epoch_seconds(timings: records.Timings) -> float:
    return statistics.median(epoch.training_seconds for epoch in timings.epochs)


def _read_result(name: str, device: DeviceLabel, results: Path) -> DeviceResult:
    folder = results / name / device
    record = records.read_training(folder / records.LEARNED)
    if isinstance(record, records.Unavailable):
        return DeviceResult(name, device, record, None, None, None)
    evaluation = records.read_record(results / name / records.EVALUATED / records.EVALUATION, records.Evaluation)
    return DeviceResult(
        name,
        device,
        record,
        records.read_record(folder / records.TIMED / records.TIMINGS, records.Timings),
        evaluation.devices.get(device),
        pd.DataFrame(records.read_history(folder / records.LEARNED)),
    )


def _row(result: DeviceResult, cpu: DeviceResult | None) -> dict[str, object]:
    row: dict[str, object] = {
        "experiment": result.experiment,
        "device": result.device,
        "status": result.record.status,
        "epochs": result.record.experiment.epochs,
    }
    if isinstance(result.record, records.Unavailable) or result.timings is None:
        reason = result.record.reason if isinstance(result.record, records.Unavailable) else None
        return row | {"reason": reason}
    timings, scores = result.timings, result.scores
    row |= {
        "device_name": timings.device_name,
        "precision": result.record.precision,
        "parameters": result.record.parameter_count,
        "test_accuracy": scores.test_accuracy if scores else None,
        "test_loss": scores.test_loss if scores else None,
        "macro_f1": scores.macro_f1 if scores else None,
        "epoch_seconds": epoch_seconds(timings),
        "images_per_second": timings.images_per_second,
        "startup_seconds": timings.startup_seconds,
        "total_seconds": timings.total_seconds,
        "resumed_at_epochs": " ".join(map(str, timings.resumed_at_epochs)) or None,
        "host_name": timings.host_name,
        "measured_at_unix_seconds": timings.started_at_unix_seconds,
    }
    return row | (_against_cpu(result.record, timings, cpu) if cpu and result.device != "cpu" else {})


def _against_cpu(record: records.Training, timings: records.Timings, cpu: DeviceResult) -> dict[str, object]:
    if cpu.timings is None or not isinstance(cpu.record, records.Training):
        return {}
    return {
        "epoch_speedup": epoch_seconds(cpu.timings) / epoch_seconds(timings),
        "end_to_end_speedup": cpu.timings.total_seconds / timings.total_seconds,
        "same_initial_weights": record.initial_weights_sha256 == cpu.record.initial_weights_sha256,
    }
