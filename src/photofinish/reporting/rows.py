"""Rows of the report's CSV files, with every digit, as pandas, DVC and MLflow read them."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, field, fields
from itertools import accumulate, zip_longest
from typing import Any

from photofinish.comparing.decision import AnyComparison, Decision
from photofinish.comparing.device_results import PARTS, NotTrained, Trained
from photofinish.comparing.pairs import Compared, Comparison
from photofinish.comparing.script_pairs import ScriptComparison, ScriptResult
from photofinish.comparing.speedups import Kind, Speedup
from photofinish.machine.load import load_warnings
from photofinish.reporting.sentences import in_words
from photofinish.results import EpochMetrics
from photofinish.wording import at_most, seconds, utc_minute

Rows = list[dict[str, Any]]
"""One dictionary per row, all with the same keys; None where there is no figure."""
_SPREADSHEET_FORMULA = ("=", "+", "-", "@", "\t", "\r")

_percent = "{:.2%}".format
_thousands = "{:,.0f}".format


def _column(label: str, write: Callable[[Any], str] = str, *, dvc: bool = False) -> Any:
    """Describe a column that the page shows, written by `write`, and perhaps `dvc metrics`."""
    return field(default=None, metadata={"label": label, "write": write, "dvc": dvc})


def _metric() -> Any:
    """Describe a column that `dvc metrics` shows and the page has in another table."""
    return field(default=None, metadata={"dvc": True})


def _bound(value: float) -> str:
    return f"{at_most(value)}x"


@dataclass(kw_only=True)
class ComparisonRow:
    """One row of comparison.csv: an experiment on one device. The fields' order is the file's."""

    experiment: str
    device: str
    status: str
    answer: str | None = None
    answer_by: str | None = None
    answer_reason: str | None = None
    device_name: str | None = _column("hardware")
    precision: str | None = _column("precision")
    parameters: int | None = _column("weights", _thousands)
    epochs: int = _column("epochs")
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
    epoch_ceiling: float | None = _column("an epoch at most (bound)", _bound)
    job_ceiling: float | None = _column("the job at most (bound)", _bound)
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


_RUN = ("experiment", "device", "run")
COLUMNS: dict[str, tuple[str, ...]] = {
    "comparison.csv": tuple(column.name for column in fields(ComparisonRow)),
    "history.csv": (
        *(column.name for column in fields(EpochMetrics)), "training_seconds_so_far", *_RUN,
    ),
    "confusion.csv": (*_RUN, "actual", "predicted", "images"),
    "speedups.csv": (
        "experiment", "of", "speedup", "low", "high", "cpu_seconds", "gpu_seconds", "verdict",
    ),
    "seeds.csv": (
        "experiment", "device", "seed", "score", "score_name", "test_loss", "target_epoch",
        "target_seconds",
    ),
    "renting.csv": (
        "experiment", "accelerator", "full_name", "fits", "needed_bytes_at_least",
        "step_seconds_at_least", "arithmetic_seconds", "memory_seconds", "link_seconds",
        "epoch_seconds_at_least", "job_seconds_at_least", "epoch_times_as_fast_at_most",
        "job_times_as_fast_at_most", "hour_price", "currency", "price_of", "price_as_of",
        "price_is_old", "cost_at_least", "target_seconds_at_least", "target_cost_at_least",
        "epoch_seconds_estimated", "job_seconds_estimated", "cost_estimated",
    ),
}  # fmt: skip
"""Columns of each of the report's CSV files."""


def comparison_rows(pairs: Iterable[AnyComparison], decisions: Iterable[Decision] = ()) -> Rows:
    """Return a row for each experiment and device, with the answers that are decided.

    A speed-up of 2 is half the CPU's time.
    """
    rows = []
    for pair, decision in zip_longest(pairs, decisions):
        found = _script_rows(pair) if isinstance(pair, ScriptComparison) else _rows(pair)
        for row in found if decision else ():
            row.answer, row.answer_by = decision.answer, decision.basis
            row.answer_reason = decision.reason
        rows += found
    return [vars(row) for row in rows]


def _rows(pair: Comparison) -> list[ComparisonRow]:
    cpu = _trained_row(pair, pair.cpu)
    cpu.epoch_ceiling = pair.ceiling.epoch.at_most if pair.ceiling.epoch else None
    cpu.job_ceiling = pair.ceiling.job.at_most
    if pair.compared:
        gpu = _trained_row(pair, pair.compared.gpu)
        _add_comparison(gpu, pair.compared)
        return [cpu, gpu]
    if isinstance(pair.gpu, NotTrained):
        return [cpu, ComparisonRow(**_identity(pair.gpu), reason=pair.gpu.record.reason)]
    return [cpu]


def _identity(result: Trained | NotTrained) -> dict[str, Any]:
    return {
        "experiment": result.experiment,
        "device": result.record.device,
        "status": result.record.status,
        "epochs": result.record.experiment.epochs,
    }


def _trained_row(pair: Comparison, result: Trained) -> ComparisonRow:
    timings, scores, spent = result.timings, result.scores, pair.outlays[result.device]
    metrics = [f"{name} {value:.4g}" for name, value in scores.metrics.items()]
    row = ComparisonRow(
        **_identity(result),
        device_name=timings.device_name,
        precision=result.record.precision,
        parameters=result.record.parameter_count,
        repeats=len(timings.repeats) + 1,
        test_accuracy=scores.test_accuracy,
        test_loss=scores.test_loss,
        macro_f1=scores.macro_f1,
        test_metrics="; ".join(metrics) or None,
        step_seconds=statistics.median(timings.steady_state.step_seconds),
        epoch_seconds=timings.median_epoch_seconds,
        images_per_second=timings.images_per_second,
        startup_seconds=timings.startup_seconds,
        total_seconds=timings.total_seconds,
        overhead_seconds=timings.overhead.seconds,
        overhead_share=timings.overhead.share,
        load_warnings="; ".join(load_warnings(timings.load)) or None,
        resumed_at_epochs=" ".join(map(str, timings.resumed_at_epochs)) or None,
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
    if diagnoses := pair.diagnoses[result.device]:
        row.cause, row.epoch_cause = diagnoses[0].cause, diagnoses[-1].cause
    if costs := result.costs:
        row.busy_share = costs.busy_share
        for part, name in PARTS.items():
            setattr(row, name.replace("_seconds", "_share"), costs.shares[part])
    return row


def _add_comparison(row: ComparisonRow, compared: Compared) -> None:
    cpu, gpu, parity, payback = compared.cpu, compared.gpu, compared.parity, compared.payback
    row.same_model = parity.likeness
    row.first_divergence = parity.first_divergence.name if parity.first_divergence else None
    row.mcnemar_p = parity.mcnemar_p
    initial_weights = cpu.record.initial_weights_sha256
    row.same_initial_weights = gpu.record.initial_weights_sha256 == initial_weights
    row.payback_epochs = payback.epochs
    row.payback_epochs_low, row.payback_epochs_high = payback.interval or (None, None)
    _add_speedups(row, compared.speedups)


def _add_speedups(row: ComparisonRow, speedups: dict[Kind, Speedup]) -> None:
    for kind, speedup in speedups.items():
        low, high = speedup.interval or (None, None)
        for name, value in (("", speedup.ratio), ("_low", low), ("_high", high)):
            setattr(row, f"{kind}_speedup{name}", value)


def _script_rows(pair: ScriptComparison) -> list[ComparisonRow]:
    """Return a row for each device, with what is known of a script."""
    rows = []
    for run in pair.trained:
        record, timings, spent = run.record, run.timings, pair.outlays[run.device]
        row = ComparisonRow(
            experiment=pair.experiment,
            device=run.device,
            status=record.status,
            device_name=timings.device_name,
            parameters=record.parameter_count,
            epochs=len(record.epochs),
            repeats=1,
            test_metrics="; ".join(metric_texts(run).values()) or None,
            startup_seconds=timings.startup_seconds or None,
            total_seconds=timings.total_seconds,
            job_ceiling=pair.ceiling.job.at_most if run.device == "cpu" else None,
            load_warnings="; ".join(load_warnings(timings.load)) or None,
            host_name=timings.host_name,
            measured_at_unix_seconds=timings.started_at_unix_seconds,
            energy_joules=spent.energy.joules,
            energy_status=spent.energy.status,
            energy_counted=spent.energy.counted,
            cost=spent.cost.amount,
            cost_currency=None if spent.cost.amount is None else spent.currency,
            cost_counted=spent.cost.counted,
        )
        if diagnoses := pair.diagnoses[run.device]:
            row.cause, row.epoch_cause = diagnoses[0].cause, diagnoses[-1].cause
        if run.has_steps:
            row.precision = record.experiment.precision if timings.operations else None
            row.step_seconds = statistics.median(timings.steady_state.step_seconds)
            row.epoch_seconds = timings.median_epoch_seconds
            row.waiting_share = run.waiting_share
            if all(epoch.samples for epoch in record.epochs):
                row.images_per_second = timings.images_per_second
        if pair.compared and run.device == "gpu":
            _add_speedups(row, pair.compared.speedups)
        rows.append(row)
    if not isinstance(pair.gpu, ScriptResult):
        missing = pair.gpu.record
        row = ComparisonRow(
            experiment=pair.experiment,
            device="gpu",
            status=missing.status,
            epochs=0,
            reason=missing.reason,
        )
        rows.append(row)
    return rows


def metric_texts(run: ScriptResult) -> dict[str, str]:
    """Return each number of a script's metrics file, with its name before it."""
    return {
        name: f"{name} {'not a number' if value is None else f'{value:.4g}'}"
        for name, value in run.record.metrics.items()
    }


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


def history_rows(pairs: Iterable[Comparison]) -> Rows:
    """Return every epoch of every run, with the time its training had taken by then."""
    rows = []
    for result in _trained(pairs):
        so_far = accumulate(epoch.training_seconds for epoch in result.timings.epochs)
        for epoch, training_seconds in zip(result.history, so_far, strict=True):
            rows.append((*astuple(epoch), training_seconds, *_run(result)))
    return _named("history.csv", rows)


def confusion_rows(pairs: Iterable[Comparison]) -> Rows:
    """Return how many test samples of each class each run took for each class."""
    rows = []
    for result in _trained(pairs):
        names = result.record.class_names
        for actual, counts in zip(names, result.scores.confusion, strict=False):
            for predicted, count in zip(names, counts, strict=True):
                rows.append((*_run(result), actual, predicted, count))
    return _named("confusion.csv", rows)


def _trained(pairs: Iterable[Comparison]) -> list[Trained]:
    return [result for pair in pairs for result in pair.trained]


def _run(result: Trained) -> tuple[str, ...]:
    """Return experiment, device, and both in one, for tools that group by a single column."""
    return result.experiment, result.device, f"{result.experiment} {result.device}"


def speedup_rows(pairs: Iterable[AnyComparison]) -> Rows:
    """Return three rows for each experiment that a GPU trained."""
    rows = []
    for pair in pairs:
        for speedup in pair.compared.speedups.values() if pair.compared else ():
            low, high = speedup.interval or (None, None)
            times = speedup.cpu_seconds, speedup.device_seconds
            ratios = speedup.ratio, low, high
            rows.append((pair.experiment, speedup.kind, *ratios, *times, in_words(speedup)))
    return _named("speedups.csv", rows)


def seed_rows(pairs: Iterable[Comparison]) -> Rows:
    """Return a row for each seed of an experiment that was trained from several."""
    rows: list[tuple[object, ...]] = []
    for pair in pairs:
        for device, over in pair.seeds.items():
            for index, seed in enumerate(over.seeds):
                target = over.targets[index] if over.targets else None
                rows.append((
                    pair.experiment, device, seed, over.score.values[index], over.score_name,
                    over.test_loss.values[index],
                    target and target.epoch, target and target.seconds,
                ))  # fmt: skip
    return _named("seeds.csv", rows)


def renting_rows(pairs: Iterable[AnyComparison]) -> Rows:
    """Return a row for each experiment and accelerator: bounds and estimates, none measured."""
    rows = []
    for pair in pairs:
        for offer in pair.renting.offers:
            accelerator, step, price = offer.accelerator, offer.step, offer.price
            about = offer.estimate
            rows.append((
                pair.experiment, accelerator.name, accelerator.full_name, offer.fits,
                offer.needed_bytes, step.seconds, step.arithmetic_seconds, step.memory_seconds,
                step.link_seconds, offer.epoch_seconds, offer.job_seconds, offer.epoch_at_most,
                offer.job_at_most, price and price.amount, price and price.currency,
                price and price.where, price and price.as_of and price.as_of.isoformat(),
                price and price.is_old(pair.renting.trained_on), offer.cost, offer.target_seconds,
                offer.target_cost, about and about.epoch_seconds, about and about.job_seconds,
                about and about.cost,
            ))  # fmt: skip
    return _named("renting.csv", rows)


def _named(file: str, rows: Iterable[tuple[object, ...]]) -> Rows:
    return [dict(zip(COLUMNS[file], row, strict=True)) for row in rows]


def grouped(rows: Rows, column: str) -> dict[str, Rows]:
    """Return the rows by their values in a column, in their order."""
    groups: dict[str, Rows] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def as_csv(file: str, rows: Rows) -> str:
    """Return the text of one of the report's CSV files, with every digit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS[file])
    for row in rows:
        writer.writerow([_cell(row[column]) for column in COLUMNS[file]])
    return text.getvalue()


def _cell(value: object) -> object:
    """Return a cell; an apostrophe keeps a spreadsheet from computing what looks like a formula."""
    if isinstance(value, str) and value.startswith(_SPREADSHEET_FORMULA):
        return f"'{value}"
    return value if is_known(value) else None
