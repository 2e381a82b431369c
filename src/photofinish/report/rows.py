"""The rows of the report's CSV files, with every digit, as pandas, DVC and MLflow read them."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields
from functools import wraps
from itertools import accumulate
from typing import Any, TypeVar

from photofinish.comparing.device_results import PARTS, NotTrained, Trained
from photofinish.comparing.pairs import Compared, Comparison
from photofinish.comparing.scaling import Series, Shared
from photofinish.comparing.speedups import Interval
from photofinish.machine.load import load_warnings
from photofinish.report.sentences import in_words
from photofinish.results import EpochMetrics
from photofinish.wording import at_most, seconds, utc_minute

Rows = list[dict[str, Any]]
"""One dictionary per row, all with the same keys; None where there is no figure."""
_SPREADSHEET_FORMULA = ("=", "+", "-", "@", "\t", "\r")

_percent = "{:.2%}".format


def _column(
    label: str = "",
    write: Callable[[Any], str] = str,
    *,
    unit: str = "",
    dvc: bool = False,
) -> Any:
    """Describe a column of comparison.csv.

    A column with a label stands on the page, written by `write`. One with `dvc` is a metric of DVC's.
    """
    metadata = {"label": label, "write": lambda value: f"{write(value)}{unit}", "dvc": dvc}
    return field(default=None, metadata=metadata)


@dataclass(kw_only=True)
class ComparisonRow:
    """One row of comparison.csv: what one device made of an experiment. The fields' order is the file's."""

    experiment: str = _column()
    device: str = _column()
    status: str = _column()
    device_name: str | None = _column("hardware")
    precision: str | None = _column("precision")
    parameters: int | None = _column("weights", "{:,}".format)
    epochs: int = _column("epochs")
    repeats: int | None = _column("timed passes of them")
    test_accuracy: float | None = _column("test accuracy", _percent, dvc=True)
    test_loss: float | None = _column("test loss", "{:.4f}".format, dvc=True)
    macro_f1: float | None = _column("macro F1", "{:.4f}".format, dvc=True)
    test_metrics: str | None = _column("test metrics")
    step_seconds: float | None = _column("step (median)", seconds, dvc=True)
    epoch_seconds: float | None = _column("epoch (median)", seconds, dvc=True)
    images_per_second: float | None = _column("images/s", "{:,.0f}".format)
    startup_seconds: float | None = _column("start-up", seconds)
    total_seconds: float | None = _column("total", seconds, dvc=True)
    step_speedup: float | None = _column(dvc=True)
    step_speedup_low: float | None = _column()
    step_speedup_high: float | None = _column()
    epoch_speedup: float | None = _column(dvc=True)
    epoch_speedup_low: float | None = _column()
    epoch_speedup_high: float | None = _column()
    end_to_end_speedup: float | None = _column(dvc=True)
    end_to_end_speedup_low: float | None = _column()
    end_to_end_speedup_high: float | None = _column()
    same_model: str | None = _column()
    first_divergence: str | None = _column()
    mcnemar_p: float | None = _column()
    same_initial_weights: bool | None = _column()
    payback_epochs: float | None = _column()
    payback_epochs_low: float | None = _column()
    payback_epochs_high: float | None = _column()
    target_accuracy: float | None = _column()
    target_epoch: int | None = _column()
    target_seconds: float | None = _column()
    energy_joules: float | None = _column()
    energy_status: str | None = _column()
    energy_counted: str | None = _column()
    target_energy_joules: float | None = _column()
    cost: float | None = _column()
    cost_currency: str | None = _column()
    cost_counted: str | None = _column()
    target_cost: float | None = _column()
    overhead_seconds: float | None = _column("between epochs", seconds)
    overhead_share: float | None = _column()
    epoch_ceiling: float | None = _column("an epoch at most (bound)", at_most, unit="x")
    job_ceiling: float | None = _column("the job at most (bound)", at_most, unit="x")
    cause: str | None = _column()
    epoch_cause: str | None = _column()
    busy_share: float | None = _column("device busy", "{:.0%}".format)
    waiting_share: float | None = _column()
    copying_share: float | None = _column()
    forward_share: float | None = _column()
    backward_share: float | None = _column()
    optimizer_share: float | None = _column()
    rest_share: float | None = _column()
    load_warnings: str | None = _column("take with care")
    resumed_at_epochs: str | None = _column("resumed at epochs")
    host_name: str | None = _column("machine")
    measured_at_unix_seconds: float | None = _column("began", utc_minute)
    reason: str | None = _column("why not trained")


def comparison_rows(pairs: Iterable[Comparison]) -> Rows:
    """Return a row for each experiment and device. A speed-up of 2 is half the CPU's time."""
    rows = []
    for pair in pairs:
        cpu = _trained_row(pair, pair.cpu)
        cpu.epoch_ceiling = pair.ceiling.epoch.at_most if pair.ceiling.epoch else None
        cpu.job_ceiling = pair.ceiling.job.at_most if pair.ceiling.job else None
        rows.append(cpu)
        if pair.compared:
            gpu = _trained_row(pair, pair.compared.gpu)
            _add_comparison(gpu, pair.compared)
            rows.append(gpu)
        elif isinstance(pair.gpu, NotTrained):
            gpu = ComparisonRow(**_identity(pair.gpu), reason=pair.gpu.record.reason)
            rows.append(gpu)
    return [vars(row) for row in rows]


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return interval or (None, None)


def comparison_metrics(pairs: Iterable[Comparison]) -> dict[str, Any]:
    """Return what `dvc metrics` shows: experiment, device, figure."""
    shown = [column.name for column in fields(ComparisonRow) if column.metadata["dvc"]]
    metrics: dict[str, Any] = {}
    for pair in pairs:
        custom = {result.device: result.scores.metrics for result in pair.trained}
        for row in comparison_rows([pair]):
            present = {name: row[name] for name in shown if is_known(row[name])}
            if present:
                device = row["device"]
                metrics.setdefault(pair.experiment, {})[device] = {**custom.get(device, {}), **present}
    return metrics


def is_known(value: object) -> bool:
    """Return False for None and NaN."""
    return value is not None and value == value  # NaN is unequal to itself


def _identity(result: Trained | NotTrained) -> dict[str, Any]:
    record = result.record
    return {
        "experiment": result.experiment,
        "device": record.device,
        "status": record.status,
        "epochs": record.experiment.epochs,
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
        row.target_accuracy, row.target_epoch, row.target_seconds = target.target, target.epoch, target.seconds
    if diagnoses := pair.diagnoses[result.device]:
        row.cause, row.epoch_cause = diagnoses[0].cause, diagnoses[-1].cause
    if costs := result.costs:
        row.busy_share = costs.busy_share
        for part, name in PARTS.items():
            setattr(row, name.replace("_seconds", "_share"), costs.shares[part])
    return row


def _add_comparison(row: ComparisonRow, compared: Compared) -> None:
    parity, payback = compared.parity, compared.payback
    initial_weights = {run.record.initial_weights_sha256 for run in (compared.cpu, compared.gpu)}
    row.same_model = parity.likeness
    row.first_divergence = parity.first_divergence.name if parity.first_divergence else None
    row.mcnemar_p = parity.mcnemar_p
    row.same_initial_weights = len(initial_weights) == 1
    row.payback_epochs = payback.epochs
    row.payback_epochs_low, row.payback_epochs_high = _ends(payback.interval)
    for kind, speedup in compared.speedups.items():
        low, high = _ends(speedup.interval)
        for name, value in (("", speedup.ratio), ("_low", low), ("_high", high)):
            setattr(row, f"{kind}_speedup{name}", value)


COLUMNS: dict[str, tuple[str, ...]] = {"comparison.csv": tuple(column.name for column in fields(ComparisonRow))}
"""The columns of each of the report's CSV files."""
_RUN = ("experiment", "device", "run")
_Items = TypeVar("_Items")
Values = Iterator[tuple[object, ...]]


def _file(name: str, *columns: str) -> Callable[[Callable[[_Items], Values]], Callable[[_Items], Rows]]:
    """Decorate a function that yields the values of each row of a file, in the order of `columns`."""
    COLUMNS[name] = columns

    def decorate(values: Callable[[_Items], Values]) -> Callable[[_Items], Rows]:
        @wraps(values)
        def rows(items: _Items) -> Rows:
            return [dict(zip(columns, row, strict=True)) for row in values(items)]

        return rows

    return decorate


@_file("history.csv", *(column.name for column in fields(EpochMetrics)), "training_seconds_so_far", *_RUN)
def history_rows(pairs: Iterable[Comparison]) -> Values:
    """Yield every epoch of every run, with the time its training had taken by then."""
    for result in _trained(pairs):
        so_far = accumulate(epoch.training_seconds for epoch in result.timings.epochs)
        for epoch, training_seconds in zip(result.history, so_far, strict=True):
            yield *astuple(epoch), training_seconds, *_run(result)


@_file("confusion.csv", *_RUN, "actual", "predicted", "images")
def confusion_rows(pairs: Iterable[Comparison]) -> Values:
    """Yield how many test images of each class each run took for each class."""
    for result in _trained(pairs):
        names, confusion = result.record.class_names, result.scores.confusion
        for actual, counts in zip(names, confusion, strict=True) if confusion else ():
            for predicted, count in zip(names, counts, strict=True):
                yield *_run(result), actual, predicted, count


def _trained(pairs: Iterable[Comparison]) -> Iterator[Trained]:
    return (result for pair in pairs for result in pair.trained)


def _run(result: Trained) -> tuple[str, ...]:
    """Return experiment, device, and both in one, for tools that group by a single column."""
    return result.experiment, result.device, f"{result.experiment} {result.device}"


@_file("speedups.csv", "experiment", "of", "speedup", "low", "high", "cpu_seconds", "gpu_seconds", "verdict")
def speedup_rows(pairs: Iterable[Comparison]) -> Values:
    """Yield three rows for each experiment that a GPU trained."""
    for pair in pairs:
        for each in pair.compared.speedups.values() if pair.compared else ():
            times = each.cpu_seconds, each.device_seconds
            yield pair.experiment, each.kind, each.ratio, *_ends(each.interval), *times, in_words(each)


@_file(
    "seeds.csv", "experiment", "device", "seed", "score", "score_name", "test_loss", "target_epoch", "target_seconds"
)
def seed_rows(pairs: Iterable[Comparison]) -> Values:
    """Yield a row for each seed of an experiment that was trained from several."""
    for pair in pairs:
        for device, found in pair.seeds.items():
            for index, seed in enumerate(found.seeds):
                score, loss = found.score.values[index], found.test_loss.values[index]
                target = found.targets[index] if found.targets else None
                reached = (target.epoch, target.seconds) if target else (None, None)
                yield pair.experiment, device, seed, score, found.score_name, loss, *reached


@_file("attribution.csv", "experiment", "device", "part", "median_seconds", "share")
def attribution_rows(pairs: Iterable[Comparison]) -> Values:
    """Yield a row for each part of a step. `share` is of an epoch's mean step, so it counts slow first steps."""
    for result in _trained(pairs):
        if costs := result.costs:
            medians = costs.attribution.parts.median_seconds
            for part, name in PARTS.items():
                yield result.experiment, result.device, part, medians[name], costs.shares[part]


@_file("scaling.csv", "series", "x_name", "x", "experiment", "speedup", "speedup_low", "speedup_high")
def scaling_rows(series: Iterable[Series]) -> Values:
    """Yield a row for each size of each series."""
    for each in series:
        for point in each.points:
            speedup = point.speedup
            yield each.name, each.x_name, point.x, point.experiment, speedup.ratio, *_ends(speedup.interval)


@_file(
    "sharing.csv", "experiment", "device", "device_name", "machine", "devices", "epoch_seconds", "fewest", "speedup",
    "efficiency", "efficiency_low", "efficiency_high",
)  # fmt: skip
def sharing_rows(shared: Iterable[Shared]) -> Values:
    """Yield a row for each number of devices that shared a training. `machine` is that of a record."""
    for each in shared:
        yield (
            each.experiment, each.device, each.timings.device_name, each.machine, each.count,
            each.speedup.device_seconds, each.fewest, each.speedup.ratio, each.efficiency,
            *_ends(each.efficiency_interval),
        )  # fmt: skip


@_file(
    "elsewhere.csv", "experiment", "device", "provenance", "machine", "hardware", "measured_at_unix_seconds",
    "git_commit", "test_accuracy", "epoch_seconds", "startup_seconds", "total_seconds", "epoch_speedup_over_this_cpu",
    "doubts",
)  # fmt: skip
def elsewhere_rows(pairs: Iterable[Comparison]) -> Values:
    """Yield what other machines recorded, in a separate file so that nothing takes it for this machine's."""
    for pair in pairs:
        for each in pair.elsewhere:
            reference, timings = each.reference, each.reference.timings
            yield (
                pair.experiment, reference.training.device, "reference", reference.machine, each.hardware,
                timings.started_at_unix_seconds, timings.git_commit, reference.scores.test_accuracy,
                each.against_cpu.device_seconds, timings.startup_seconds, timings.total_seconds, each.against_cpu.ratio,
                "; ".join(load_warnings(timings.load)) or None,
            )  # fmt: skip


@_file(
    "renting.csv", "experiment", "accelerator", "full_name", "fits", "needed_bytes_at_least", "step_seconds_at_least",
    "arithmetic_seconds", "memory_seconds", "link_seconds", "epoch_seconds_at_least", "job_seconds_at_least",
    "epoch_times_as_fast_at_most", "job_times_as_fast_at_most", "hour_price", "currency", "price_of", "price_as_of",
    "price_is_old", "cost_at_least", "target_seconds_at_least", "target_cost_at_least", "epoch_seconds_estimated",
    "job_seconds_estimated", "cost_estimated",
)  # fmt: skip
def renting_rows(pairs: Iterable[Comparison]) -> Values:
    """Yield a row for each experiment and accelerator: bounds and estimates, none of them measured."""
    for pair in pairs:
        for offer in pair.renting.offers:
            accelerator, step, price, about = offer.accelerator, offer.step, offer.price, offer.estimate
            yield (
                pair.experiment, accelerator.name, accelerator.full_name, offer.fits, offer.needed_bytes,
                step.seconds, step.arithmetic_seconds, step.memory_seconds, step.link_seconds,
                offer.epoch_seconds, offer.job_seconds, offer.epoch_at_most, offer.job_at_most,
                price and price.amount, price and price.currency, price and price.where,
                price and price.as_of and price.as_of.isoformat(), price and price.is_old(pair.renting.trained_on),
                offer.cost, offer.target_seconds, offer.target_cost,
                about and about.epoch_seconds, about and about.job_seconds, about and about.cost,
            )  # fmt: skip


def grouped(rows: Rows, *columns: str) -> dict[tuple[str, ...], Rows]:
    """Return the rows by their values in `columns`, in their order."""
    groups: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def as_csv(rows: Rows, columns: Sequence[str]) -> str:
    """Return a CSV with every digit. An apostrophe keeps a spreadsheet from computing what looks like a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row[column]) for column in columns])
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str) and value.startswith(_SPREADSHEET_FORMULA):
        return f"'{value}"
    return value if is_known(value) else None
