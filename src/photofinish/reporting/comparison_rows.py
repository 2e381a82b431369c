"""Rows of comparison.csv: one for each experiment or script on each device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any

from photofinish.comparing.decision import Decision
from photofinish.comparing.pairs import Compared, Comparison
from photofinish.comparing.result import Result
from photofinish.comparing.step_costs import PARTS
from photofinish.comparing.times import job_interval
from photofinish.machine.load import load_warnings
from photofinish.reporting.extrapolated import timed_text
from photofinish.reporting.sentences import metric_texts
from photofinish.results.figures import FIGURES, figures_in
from photofinish.wording import byte_size, seconds, utc_minute

Rows = list[dict[str, Any]]
"""Rows, each a dictionary with equal keys. A value is None if there is no figure."""
_percent = "{:.2%}".format
_thousands = "{:,.0f}".format
_WRITE = {"seconds": seconds, "bytes": byte_size, "a second": _thousands}
"""Functions that format measured figures for the page, by unit."""


def _column(label: str, write: Callable[[Any], str] = str, *, dvc: bool = False) -> Any:
    """Describe a column of the page, formatted by `write`. If `dvc`, `dvc metrics` has it, too."""
    return field(default=None, metadata={"label": label, "write": write, "dvc": dvc})


def _metric() -> Any:
    """Describe a column that `dvc metrics` shows, but the page only in another table."""
    return field(default=None, metadata={"dvc": True})


@dataclass(kw_only=True)
class ComparisonRow:
    """Row of comparison.csv: an experiment on one device. Fields are in the order of the file."""

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
    figures: dict[str, Any] = field(default_factory=dict)
    """Measured figures by column, described in results/figures.py."""
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
    cost: float | None = None
    cost_currency: str | None = None
    cost_counted: str | None = None
    target_cost: float | None = None
    overhead_seconds: float | None = _column("between epochs", seconds)
    overhead_share: float | None = None
    checkpoint_seconds: float | None = _column("checkpoints", seconds)
    epoch_ceiling: float | None = None
    job_ceiling: float | None = None
    cause: str | None = None
    epoch_cause: str | None = None
    busy_share: float | None = _column("device busy", "{:.0%}".format)
    waiting_share: float | None = _column("waiting for batches", "{:.0%}".format)
    copying_share: float | None = None
    forward_share: float | None = None
    backward_share: float | None = None
    optimizer_share: float | None = None
    rest_share: float | None = None
    load_warnings: str | None = _column("unreliable because")
    resumed_at_epochs: str | None = _column("resumed at epochs")
    host_name: str | None = _column("machine")
    measured_at_unix_seconds: float | None = _column("began", utc_minute)
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the row's values by column."""
        values = vars(self) | self.figures
        return {column.name: values.get(column.name) for column in COLUMNS}


@dataclass(frozen=True)
class ComparisonColumn:
    """Column of comparison.csv."""

    name: str
    label: str | None = None
    """Heading of the row on the page, or None if the page has no such row."""
    write: Callable[[Any], str] = str
    """Writes a value on the page."""
    dvc: bool = False
    """True if `dvc metrics` shows the column."""


def _columns() -> Iterator[ComparisonColumn]:
    for each in fields(ComparisonRow):
        if each.name != "figures":
            yield ComparisonColumn(each.name, **each.metadata)
            continue
        for figure in FIGURES:
            if figure.csv:
                yield ComparisonColumn(figure.csv, figure.label, _WRITE[figure.unit], figure.dvc)


COLUMNS = tuple(_columns())


def comparison_rows(pairs: Iterable[Comparison], decisions: Iterable[Decision] = ()) -> Rows:
    """Return a row for each experiment and device, with its answer.

    A speed-up of 2 means half the CPU's time.
    """
    rows = []
    for pair, decision in zip_longest(pairs, decisions):
        found = _rows(pair)
        for row in found if decision else ():
            row.answer, row.answer_for = decision.answer, decision.about
            row.answer_by, row.answer_reason = decision.basis, decision.reason
        rows += found
    return [row.as_dict() for row in rows]


def _rows(pair: Comparison) -> list[ComparisonRow]:
    rows = [_row(pair, run) for run in pair.trained]
    rows[0].epoch_ceiling = pair.bounds.epoch.at_most if pair.bounds.epoch else None
    rows[0].job_ceiling = pair.bounds.job.at_most
    if pair.gpu is None:
        rows.append(
            ComparisonRow(
                experiment=pair.experiment,
                device="gpu",
                status="unavailable",
                epochs=pair.cpu.settings.epochs if pair.cpu.settings else 0,
                reason=pair.why_no_gpu,
            )
        )
    if parity := pair.parity:
        first_divergence = parity.first_divergence
        rows[1].same_model = parity.likeness
        rows[1].first_divergence = first_divergence.name if first_divergence else None
    if pair.compared:
        _add_comparison(rows[1], pair.compared)
    if pair.gpu and pair.cpu.record and pair.gpu.record:
        initial = {run.record.initial_weights_sha256 for run in pair.trained if run.record}
        rows[1].same_initial_weights = len(initial) == 1
    return rows


def _row(pair: Comparison, run: Result) -> ComparisonRow:
    timings, spent = run.timings, pair.uses[run.device]
    row = ComparisonRow(
        experiment=pair.experiment,
        device=run.device,
        status="trained",
        device_name=timings.device_name,
        parameters=run.parameter_count,
        precision=run.precision if run.record or timings.operations else None,
        epochs=run.settings.epochs if run.settings else round(timings.timed.done) * run.has_steps,
        test_metrics="; ".join(metric_texts(run)) or None,
        repeats=len(timings.end_to_end_seconds),
        figures={
            figure.csv: value or None
            for figure, value in figures_in(timings, has_steps=run.has_steps)
            if figure.csv
        },
        load_warnings="; ".join(load_warnings(timings.load)) or None,
        host_name=timings.host_name,
        measured_at_unix_seconds=timings.started_at_unix_seconds,
        energy_joules=spent.energy.joules,
        energy_status=spent.energy.status,
        energy_counted=spent.energy.counted,
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
    if trained := run.trained:
        scores, times = trained.scores, trained.timings
        row.test_accuracy, row.test_loss = scores.test_accuracy, scores.test_loss
        row.macro_f1 = scores.macro_f1
        row.epochs_trained = len(times.epochs)
        row.resumed_at_epochs = " ".join(map(str, times.resumed_at_epochs)) or None
        row.overhead_seconds, row.overhead_share = times.overhead.seconds, times.overhead.share
        row.checkpoint_seconds = times.overhead.checkpoint_seconds
    if timings.untimed_epochs:
        row.job_seconds = timings.whole_seconds
        row.job_seconds_low, row.job_seconds_high = job_interval(timings)
        row.job_extrapolated = f"from {timed_text(timings)}"
    row.busy_share = run.costs.busy_share if run.costs else None
    for part, name in PARTS.items():
        setattr(row, name.replace("_seconds", "_share"), run.shares.get(part))
    return row


def _add_comparison(row: ComparisonRow, compared: Compared) -> None:
    if found := compared.break_even:
        row.payback_epochs = found.epochs
        row.payback_epochs_low, row.payback_epochs_high = found.interval or (None, None)
    for kind, speedup in compared.speedups.items():
        low, high = speedup.interval or (None, None)
        for name, value in (("", speedup.ratio), ("_low", low), ("_high", high)):
            setattr(row, f"{kind}_speedup{name}", value)


def comparison_metrics(pairs: Iterable[Comparison]) -> dict[str, Any]:
    """Return the figures for `dvc metrics`, by experiment and device."""
    shown = [column.name for column in COLUMNS if column.dvc]
    metrics: dict[str, Any] = {}
    for pair in pairs:
        custom: dict[str, dict[str, float]] = {}
        for result in pair.trained:
            metrics_here = result.metrics.items()
            custom[result.device] = {key: value for key, value in metrics_here if value is not None}
        for row in comparison_rows([pair]):
            present = {name: row[name] for name in shown if is_known(row[name])}
            if present:
                by_device = metrics.setdefault(pair.experiment, {})
                by_device[row["device"]] = {**custom.get(row["device"], {}), **present}
    return metrics


def is_known(value: object) -> bool:
    """Return False for None and NaN."""
    return value is not None and value == value  # NaN does not equal itself
