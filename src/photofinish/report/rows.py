"""The findings for programs, with every digit: what `dvc plots`, `dvc metrics` and pandas read, and pictures are of."""

from __future__ import annotations

import csv
import io
import platform
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, fields
from functools import wraps
from itertools import accumulate
from typing import Any, ParamSpec

from pandas import notna

from photofinish.comparing.device_results import PARTS, NotTrained, Trained
from photofinish.comparing.pairs import Compared, Pair
from photofinish.comparing.scaling import Series, Shared
from photofinish.comparing.speedups import NAMES, Interval
from photofinish.comparing.verdict import in_words
from photofinish.machine.load import doubts
from photofinish.results import EpochMetrics

Rows = list[dict[str, Any]]
"""a dictionary each, all with the same keys; None where there is no figure"""
InOrder = Iterator[tuple[object, ...]]
"""what is in each row, without the columns' names"""
_Arguments = ParamSpec("_Arguments")
COMPARISON = (
    "experiment", "device", "status", "device_name", "precision", "parameters", "epochs", "repeats", "test_accuracy",
    "test_loss", "macro_f1", "test_metrics", "step_seconds", "epoch_seconds", "images_per_second", "startup_seconds",
    "total_seconds",
    "step_speedup", "step_speedup_low", "step_speedup_high", "epoch_speedup", "epoch_speedup_low",
    "epoch_speedup_high", "end_to_end_speedup", "end_to_end_speedup_low", "end_to_end_speedup_high", "same_model",
    "parts_at", "mcnemar_p", "same_initial_weights", "payback_epochs", "payback_epochs_low", "payback_epochs_high",
    "target_accuracy", "target_epoch", "target_seconds", "energy_joules", "energy_status", "energy_counted",
    "target_energy_joules", "cost", "cost_currency", "cost_counted", "target_cost", "overhead_seconds",
    "overhead_share", "epoch_ceiling", "job_ceiling", "cause", "epoch_cause", "busy_share", "waiting_share",
    "copying_share", "forward_share", "backward_share", "optimizer_share", "rest_share", "doubts",
    "resumed_at_epochs", "host_name", "measured_at_unix_seconds", "measured_in", "reason",
)  # fmt: skip
COLUMNS: dict[str, tuple[str, ...]] = {"comparison.csv": COMPARISON}
"""of each of the report's files"""
_RUN = ("experiment", "device", "run")
_AS_RECORDED = {
    "device_name", "host_name", "images_per_second", "startup_seconds", "total_seconds", "test_accuracy", "test_loss",
    "macro_f1",
}  # fmt: skip
_TAKEN_AS_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_METRICS = (
    "test_accuracy", "test_loss", "macro_f1", "step_seconds", "epoch_seconds", "total_seconds",
    *(f"{kind}_speedup" for kind in NAMES),
)  # fmt: skip


def comparison_rows(pairs: Iterable[Pair], run_began_at_unix_seconds: float | None = None) -> Rows:
    """A row for each experiment and device; a speed-up of 2 is half the CPU's time.

    Given when the run of dvc began that this is part of, it tells which figures were measured in it.
    """
    rows = []
    for pair in pairs:
        rows += [_measured(pair, result, run_began_at_unix_seconds) for result in pair.trained]
        ceilings = {"epoch_ceiling": pair.ceiling.epoch, "job_ceiling": pair.ceiling.job}
        cpu_row = rows[-len(pair.trained)]
        cpu_row |= {column: bound.at_most for column, bound in ceilings.items() if bound}
        if pair.compared:
            rows[-1] |= _against_cpu(pair.compared)  # the GPU's row
        elif isinstance(pair.gpu, NotTrained):
            rows.append(_identity(pair.gpu) | {"reason": pair.gpu.record.reason})
    return [{column: row.get(column) for column in COMPARISON} for row in rows]


def comparison_metrics(pairs: Iterable[Pair]) -> dict[str, Any]:
    """Its figures for `dvc metrics`: experiment, device, figure."""
    metrics: dict[str, Any] = {}
    for pair in pairs:
        further = {result.device: result.scores.metrics for result in pair.trained}
        for row in comparison_rows([pair]):
            if present := {figure: row[figure] for figure in _METRICS if notna(row[figure])}:
                metrics.setdefault(pair.experiment, {})[row["device"]] = {**further.get(row["device"], {}), **present}
    return metrics


def _identity(result: Trained | NotTrained) -> dict[str, object]:
    record = result.record
    return {
        "experiment": result.experiment,
        "device": record.device,
        "status": record.status,
        "epochs": record.experiment.epochs,
    }


def _measured(pair: Pair, result: Trained, run_began_at_unix_seconds: float | None) -> dict[str, object]:
    """What one training took, learned and was held up by."""
    timings, scores, outlay = result.timings, result.scores, pair.outlays[result.device]
    row = _identity(result) | {
        **timings.model_dump(include=_AS_RECORDED),
        **scores.model_dump(include=_AS_RECORDED),
        "test_metrics": "; ".join(f"{name} {value:.4g}" for name, value in scores.metrics.items()) or None,
        "precision": result.record.precision,
        "parameters": result.record.parameter_count,
        "epoch_seconds": timings.median_epoch_seconds,
        "step_seconds": statistics.median(timings.steady_state.step_seconds),
        "repeats": len(timings.repeats) + 1,
        "overhead_seconds": timings.overhead.seconds,
        "overhead_share": timings.overhead.share,
        "doubts": "; ".join(doubts(timings.load)) or None,
        "resumed_at_epochs": " ".join(map(str, timings.resumed_at_epochs)) or None,
        "measured_at_unix_seconds": timings.started_at_unix_seconds,
        "energy_joules": outlay.energy.joules,
        "energy_status": outlay.energy.status,
        "energy_counted": outlay.energy.counted,
        "cost": outlay.cost.amount,
        "cost_currency": None if outlay.cost.amount is None else outlay.currency,
        "cost_counted": outlay.cost.counted,
        "target_energy_joules": outlay.joules_to_target,
        "target_cost": outlay.cost_to_target.amount if outlay.cost_to_target else None,
    }
    if target := outlay.target:
        row |= {"target_accuracy": target.target, "target_epoch": target.epoch, "target_seconds": target.seconds}
    if run_began_at_unix_seconds is not None:  # or taken over from before, or from a cache
        now, here = timings.started_at_unix_seconds >= run_began_at_unix_seconds, timings.host_name == platform.node()
        row["measured_in"] = "this run" if now and here else "an earlier run"
    if diagnoses := pair.diagnoses[result.device]:
        row |= {"cause": diagnoses[0].cause, "epoch_cause": diagnoses[-1].cause}
    if costs := result.costs:
        row |= {PARTS[part].replace("_seconds", "_share"): share for part, share in costs.shares.items()}
        row["busy_share"] = costs.busy_share
    return row


def _against_cpu(compared: Compared) -> dict[str, object]:
    cpu, gpu, parts_at = compared.cpu.record, compared.gpu.record, compared.parity.parts_at
    row: dict[str, object] = {
        "same_model": compared.parity.likeness,
        "parts_at": parts_at.name if parts_at else None,
        "mcnemar_p": compared.parity.mcnemar_p,
        "same_initial_weights": gpu.initial_weights_sha256 == cpu.initial_weights_sha256,
        "payback_epochs": compared.payback.epochs,
    }
    row["payback_epochs_low"], row["payback_epochs_high"] = _ends(compared.payback.interval)
    for kind, speedup in compared.speedups.items():
        row[f"{kind}_speedup"] = speedup.ratio
        row[f"{kind}_speedup_low"], row[f"{kind}_speedup_high"] = _ends(speedup.interval)
    return row


def under(*columns: str) -> Callable[[Callable[_Arguments, InOrder]], Callable[_Arguments, Rows]]:
    """Of a function that tells what is in each row, in order, one that gives rows with these columns."""

    def named(rows_of: Callable[_Arguments, InOrder]) -> Callable[_Arguments, Rows]:
        @wraps(rows_of)
        def rows(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Rows:
            return [dict(zip(columns, row, strict=True)) for row in rows_of(*args, **kwargs)]

        return rows

    return named


def _file(name: str, *columns: str) -> Callable[[Callable[_Arguments, InOrder]], Callable[_Arguments, Rows]]:
    COLUMNS[name] = columns
    return under(*columns)


@_file("history.csv", *(field.name for field in fields(EpochMetrics)), "training_seconds_so_far", *_RUN)
def history_rows(pairs: Iterable[Pair]) -> InOrder:
    """Every epoch of every run, one below the other, with the time its training had taken by then."""
    for result in _trained(pairs):
        so_far = accumulate(epoch.training_seconds for epoch in result.timings.epochs)
        for epoch, seconds in zip(result.history, so_far, strict=True):
            yield *astuple(epoch), seconds, *_run(result)


@_file("confusion.csv", *_RUN, "actual", "predicted", "images")
def confusion_rows(pairs: Iterable[Pair]) -> InOrder:
    """One row for each pair of true and predicted class of each run, with how many images it holds."""
    for result in _trained(pairs):
        run, names, confusion = _run(result), result.record.class_names, result.scores.confusion
        for actual, counts in zip(names, confusion, strict=True) if confusion else ():
            for predicted, count in zip(names, counts, strict=True):
                yield *run, actual, predicted, count


def _trained(pairs: Iterable[Pair]) -> Iterator[Trained]:
    return (result for pair in pairs for result in pair.trained)


def _run(result: Trained) -> tuple[str, ...]:
    """Which run a row is of: by its two names, and by one for tools that group by a single column."""
    return result.experiment, result.device, f"{result.experiment} {result.device}"


@_file("speedups.csv", "experiment", "of", "speedup", "low", "high", "cpu_seconds", "gpu_seconds", "verdict")
def speedup_rows(pairs: Iterable[Pair]) -> InOrder:
    """Three rows for each experiment that a GPU trained."""
    for compared in (pair.compared for pair in pairs if pair.compared):
        for each in compared.speedups.values():
            times = each.cpu_seconds, each.device_seconds
            yield compared.cpu.experiment, each.kind, each.ratio, *_ends(each.interval), *times, in_words(each)


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return interval or (None, None)


@_file(
    "seeds.csv", "experiment", "device", "seed", "score", "score_name", "test_loss", "target_epoch", "target_seconds"
)
def seed_rows(pairs: Iterable[Pair]) -> InOrder:
    """A row for each seed of an experiment that was trained from several."""
    for pair in pairs:
        for device, found in pair.seeds.items():
            for place, seed in enumerate(found.seeds):
                score, loss = found.score.values[place], found.test_loss.values[place]
                reached = (found.targets[place].epoch, found.targets[place].seconds) if found.targets else (None, None)
                yield pair.experiment, device, seed, score, found.score_name, loss, *reached


@_file("attribution.csv", "experiment", "device", "part", "median_seconds", "share")
def attribution_rows(pairs: Iterable[Pair]) -> InOrder:
    """In the order of the results and of a step; none of runs whose steps were not taken apart.

    `share` is of a step taken apart, its mean over an epoch: so it counts what only an epoch's first step waits for.
    """
    for result in _trained(pairs):
        if costs := result.costs:
            medians = costs.attribution.parts.median_seconds
            for part, field in PARTS.items():
                yield result.experiment, result.device, part, medians[field], costs.shares[part]


@_file("scaling.csv", "series", "x_name", "x", "experiment", "speedup", "speedup_low", "speedup_high")
def scaling_rows(series: Iterable[Series]) -> InOrder:
    """A row for each size of each series."""
    for each in series:
        for point in each.points:
            speedup = point.speedup
            yield each.name, each.x_name, point.x, point.experiment, speedup.ratio, *_ends(speedup.interval)


@_file(
    "sharing.csv", "experiment", "device", "device_name", "machine", "devices", "epoch_seconds", "fewest",
    "speedup", "efficiency", "efficiency_low", "efficiency_high",
)  # fmt: skip
def sharing_rows(shared: Iterable[Shared]) -> InOrder:
    """A row for each number of devices that shared a training; `machine` is that of a record."""
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
def elsewhere_rows(pairs: Iterable[Pair]) -> InOrder:
    """What other machines recorded; in a file of its own, so that nothing takes it for this machine's."""
    for pair in pairs:
        for each in pair.elsewhere:
            reference, timings = each.reference, each.reference.timings
            yield (
                pair.experiment, reference.training.device, "reference", reference.machine, each.hardware,
                timings.started_at_unix_seconds, timings.git_commit, reference.scores.test_accuracy,
                each.against_cpu.device_seconds, timings.startup_seconds, timings.total_seconds, each.against_cpu.ratio,
                "; ".join(doubts(timings.load)) or None,
            )  # fmt: skip


@_file(
    "renting.csv", "experiment", "accelerator", "full_name", "fits", "needed_bytes_at_least", "step_seconds_at_least",
    "arithmetic_seconds", "memory_seconds", "link_seconds", "epoch_seconds_at_least", "job_seconds_at_least",
    "epoch_times_as_fast_at_most", "job_times_as_fast_at_most", "hour_price", "currency", "price_of", "price_as_of",
    "price_is_old", "cost_at_least", "target_seconds_at_least", "target_cost_at_least", "epoch_seconds_estimated",
    "job_seconds_estimated", "cost_estimated",
)  # fmt: skip
def renting_rows(pairs: Iterable[Pair]) -> InOrder:
    """A row for each experiment and accelerator: bounds, none of them measured."""
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
    """The rows by what they have in these columns, in their order."""
    groups: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def as_csv(rows: Rows, columns: Iterable[str]) -> str:
    """With every digit, and nothing where there is no figure. Text that a spreadsheet would compute gets the apostrophe
    that keeps it text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row[column]) for column in columns] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_TAKEN_AS_FORMULA) else value
    return None if value != value else value  # what isn't a number is unequal to itself
