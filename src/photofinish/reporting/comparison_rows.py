"""Rows of comparison.csv: one for each experiment or script on each device."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any

from photofinish.comparing.decision import Decision
from photofinish.comparing.device_results import PARTS, NotTrained, ScriptResult, Trained
from photofinish.comparing.pairs import AnyComparison, Compared
from photofinish.comparing.speedups import job_interval
from photofinish.machine.load import load_warnings
from photofinish.reporting.extrapolated import epochs_of
from photofinish.results import records
from photofinish.wording import seconds, utc_minute

Rows = list[dict[str, Any]]
"""One dictionary per row, all with the same keys; None where there is no figure."""
_percent = "{:.2%}".format
_thousands = "{:,.0f}".format


def _column(label: str, write: Callable[[Any], str] = str, *, dvc: bool = False) -> Any:
    """Describe a column that the page shows, written by `write`, and perhaps `dvc metrics`."""
    return field(default=None, metadata={"label": label, "write": write, "dvc": dvc})


def _metric() -> Any:
    """Describe a column that `dvc metrics` shows and the page has in another table."""
    return field(default=None, metadata={"dvc": True})


@dataclass(kw_only=True)
class ComparisonRow:
    """One row of comparison.csv: an experiment on one device. The fields' order is the file's."""

    experiment: str
    device: str
    status: str
    answer: str | None = None
    answer_for: str | None = None
    answer_by: str | None = None
    answer_reason: str | None = None
    device_name: str | None = _column("hardware")
    precision: str | None = _column("precision")
    parameters: int | None = _column("weights", _thousands)
    epochs: int = _column("epochs")
    epochs_trained: int | None = _column("epochs trained")
    repeats: int | None = _column("trainings")
    test_accuracy: float | None = _column("test accuracy", _percent, dvc=True)
    test_loss: float | None = _column("test loss", "{:.4f}".format, dvc=True)
    macro_f1: float | None = _column("macro F1", "{:.4f}".format, dvc=True)
    test_metrics: str | None = _column("test metrics")
    step_seconds: float | None = _column("step (median)", seconds, dvc=True)
    epoch_seconds: float | None = _column("epoch (median)", seconds, dvc=True)
    images_per_second: float | None = _column("samples/s", _thousands)
    startup_seconds: float | None = _column("start-up", seconds)
    total_seconds: float | None = _column("total", seconds, dvc=True)
    job_seconds: float | None = _column("whole job", seconds, dvc=True)
    job_seconds_low: float | None = None
    job_seconds_high: float | None = None
    job_extrapolated: str | None = _column("whole job extrapolated")
    step_speedup: float | None = _metric()
    step_speedup_low: float | None = None
    step_speedup_high: float | None = None
    epoch_speedup: float | None = _metric()
    epoch_speedup_low: float | None = None
    epoch_speedup_high: float | None = None
    end_to_end_speedup: float | None = _metric()
    end_to_end_speedup_low: float | None = None
    end_to_end_speedup_high: float | None = None
    same_model: str | None = None
    first_divergence: str | None = None
    mcnemar_p: float | None = None
    same_initial_weights: bool | None = None
    payback_epochs: float | None = None
    payback_epochs_low: float | None = None
    payback_epochs_high: float | None = None
    target_accuracy: float | None = None
    target_epoch: int | None = None
    target_seconds: float | None = None
    energy_joules: float | None = None
    energy_status: str | None = None
    energy_counted: str | None = None
    target_energy_joules: float | None = None
    cost: float | None = None
    cost_currency: str | None = None
    cost_counted: str | None = None
    target_cost: float | None = None
    overhead_seconds: float | None = _column("between epochs", seconds)
    overhead_share: float | None = None
    epoch_ceiling: float | None = None
    job_ceiling: float | None = None
    cause: str | None = None
    epoch_cause: str | None = None
    busy_share: float | None = _column("device busy", "{:.0%}".format)
    waiting_share: float | None = None
    copying_share: float | None = None
    forward_share: float | None = None
    backward_share: float | None = None
    optimizer_share: float | None = None
    rest_share: float | None = None
    load_warnings: str | None = _column("unreliable because")
    resumed_at_epochs: str | None = _column("resumed at epochs")
    host_name: str | None = _column("machine")
    measured_at_unix_seconds: float | None = _column("began", utc_minute)
    reason: str | None = _column("why not trained")


def comparison_rows(pairs: Iterable[AnyComparison], decisions: Iterable[Decision] = ()) -> Rows:
    """Return a row for each experiment and device, with the answers that are decided.

    A speed-up of 2 is half the CPU's time.
    """
    rows = []
    for pair, decision in zip_longest(pairs, decisions):
        found = _rows(pair)
        for row in found if decision else ():
            row.answer, row.answer_for = decision.answer, decision.about
            row.answer_by, row.answer_reason = decision.own.basis, decision.own.reason
        rows += found
    return [vars(row) for row in rows]


def _rows(pair: AnyComparison) -> list[ComparisonRow]:
    rows = [_row(pair, run) for run in pair.trained]
    rows[0].epoch_ceiling = pair.ceiling.epoch.at_most if pair.ceiling.epoch else None
    rows[0].job_ceiling = pair.ceiling.job.at_most
    if isinstance(pair.gpu, NotTrained):
        missing, epochs = pair.gpu.record, 0
        if isinstance(missing, records.Unavailable):
            epochs = missing.experiment.epochs
        rows.append(
            ComparisonRow(
                experiment=pair.experiment,
                device=missing.device,
                status=missing.status,
                epochs=epochs,
                reason=missing.reason,
            )
        )
    if pair.compared:
        _add_comparison(rows[1], pair.compared)
    if pair.compared and isinstance(pair.cpu, Trained) and isinstance(pair.gpu, Trained):
        initial_weights = pair.cpu.record.initial_weights_sha256
        rows[1].same_initial_weights = pair.gpu.record.initial_weights_sha256 == initial_weights
    return rows


def _row(pair: AnyComparison, run: Trained | ScriptResult) -> ComparisonRow:
    timings, spent = run.timings, pair.outlays[run.device]
    row = ComparisonRow(
        experiment=pair.experiment,
        device=run.device,
        status=run.record.status,
        device_name=timings.device_name,
        parameters=run.record.parameter_count,
        epochs=0,
        repeats=len(timings.repeats) + 1,
        startup_seconds=timings.startup_seconds,
        total_seconds=timings.total_seconds,
        load_warnings="; ".join(load_warnings(timings.load)) or None,
        host_name=timings.host_name,
        measured_at_unix_seconds=timings.started_at_unix_seconds,
        energy_joules=spent.energy.joules,
        energy_status=spent.energy.status,
        energy_counted=spent.energy.counted,
        target_energy_joules=spent.joules_to_target,
        cost=spent.cost.amount,
        cost_currency=None if spent.cost.amount is None else spent.currency,
        cost_counted=spent.cost.counted,
        target_cost=spent.cost_to_target.amount if spent.cost_to_target else None,
    )
    if target := spent.target:
        row.target_accuracy, row.target_epoch = target.target, target.epoch
        row.target_seconds = target.seconds
    if diagnoses := pair.diagnoses[run.device]:
        row.cause, row.epoch_cause = diagnoses[0].cause, diagnoses[-1].cause
    if isinstance(run, ScriptResult):
        _add_script(row, run)
    else:
        _add_training(row, run)
    return row


def _add_training(row: ComparisonRow, run: Trained) -> None:
    timings, scores = run.timings, run.scores
    metrics = [f"{name} {value:.4g}" for name, value in scores.metrics.items()]
    row.epochs, row.precision = run.record.experiment.epochs, run.record.precision
    row.epochs_trained = len(timings.epochs)
    if timings.epochs_left:
        row.job_seconds = timings.whole_seconds
        row.job_seconds_low, row.job_seconds_high = job_interval(timings)
        row.job_extrapolated = f"from {epochs_of(timings)}"
    row.test_accuracy, row.test_loss = scores.test_accuracy, scores.test_loss
    row.macro_f1, row.test_metrics = scores.macro_f1, "; ".join(metrics) or None
    row.resumed_at_epochs = " ".join(map(str, timings.resumed_at_epochs)) or None
    row.overhead_seconds, row.overhead_share = timings.overhead.seconds, timings.overhead.share
    row.images_per_second = timings.images_per_second
    _add_times(row, timings)
    if costs := run.costs:
        row.busy_share = costs.busy_share
        for part, share in costs.shown_shares.items():
            setattr(row, PARTS[part].replace("_seconds", "_share"), share)


def _add_script(row: ComparisonRow, run: ScriptResult) -> None:
    """Add the figures of a script, with those of its epochs if it uses `photofinish.steps`."""
    epochs, timings = run.record.epochs, run.timings
    row.epochs, row.test_metrics = len(epochs), "; ".join(run.metric_texts) or None
    row.startup_seconds = timings.startup_seconds or None
    if run.has_steps:
        row.precision = run.record.experiment.precision if timings.operations else None
        row.waiting_share = run.waiting_share
        if all(epoch.samples for epoch in epochs):
            row.images_per_second = timings.images_per_second
        _add_times(row, timings)


def _add_times(row: ComparisonRow, timings: records.Timings) -> None:
    row.step_seconds = statistics.median(timings.steady_state.step_seconds)
    row.epoch_seconds = timings.median_epoch_seconds


def _add_comparison(row: ComparisonRow, compared: Compared) -> None:
    if parity := compared.parity:
        row.same_model, row.mcnemar_p = parity.likeness, parity.mcnemar_p
        row.first_divergence = parity.first_divergence.name if parity.first_divergence else None
    if payback := compared.payback:
        row.payback_epochs = payback.epochs
        row.payback_epochs_low, row.payback_epochs_high = payback.interval or (None, None)
    for kind, speedup in compared.speedups.items():
        low, high = speedup.interval or (None, None)
        for name, value in (("", speedup.ratio), ("_low", low), ("_high", high)):
            setattr(row, f"{kind}_speedup{name}", value)


def comparison_metrics(pairs: Iterable[AnyComparison]) -> dict[str, Any]:
    """Return what `dvc metrics` shows: experiment, device, figure."""
    shown = [column.name for column in fields(ComparisonRow) if column.metadata.get("dvc")]
    metrics: dict[str, Any] = {}
    for pair in pairs:
        custom: dict[str, dict[str, float]] = {}
        for result in pair.trained:
            if isinstance(result, ScriptResult):
                figures = result.record.metrics
                custom[result.device] = {k: v for k, v in figures.items() if v is not None}
            else:
                custom[result.device] = result.scores.metrics
        for row in comparison_rows([pair]):
            present = {name: row[name] for name in shown if is_known(row[name])}
            if present:
                by_device = metrics.setdefault(pair.experiment, {})
                by_device[row["device"]] = {**custom.get(row["device"], {}), **present}
    return metrics


def is_known(value: object) -> bool:
    """Return False for None and NaN."""
    return value is not None and value == value  # NaN is unequal to itself
