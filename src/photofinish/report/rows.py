"""The findings for programs, with every digit: what `dvc plots`, `dvc metrics` and pandas read, and pictures are of."""

from __future__ import annotations

import csv
import io
import math
import platform
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import accumulate
from typing import Any

from photofinish.comparing.device_results import NotTrained, Trained
from photofinish.comparing.pairs import Compared, Pair
from photofinish.comparing.renting import Offer
from photofinish.comparing.scaling import Series, Shared
from photofinish.comparing.speedups import NAMES, Interval
from photofinish.comparing.step_costs import PARTS
from photofinish.comparing.verdict import in_words
from photofinish.machine.load import doubts
from photofinish.results import EpochMetrics

Rows = list[dict[str, Any]]
"""a dictionary each, all with the same keys; None where there is no figure"""
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
_RUN = ("experiment", "device", "run")
COLUMNS: dict[str, tuple[str, ...]] = {
    "comparison.csv": COMPARISON,
    "history.csv": (*(field.name for field in fields(EpochMetrics)), "training_seconds_so_far", *_RUN),
    "confusion.csv": (*_RUN, "actual", "predicted", "images"),
    "speedups.csv": ("experiment", "of", "speedup", "low", "high", "cpu_seconds", "gpu_seconds", "verdict"),
    "seeds.csv": ("experiment", "device", "seed", "score", "score_name", "test_loss", "target_epoch", "target_seconds"),
    "attribution.csv": ("experiment", "device", "part", "median_seconds", "share"),
    "scaling.csv": ("series", "x_name", "x", "experiment", "speedup", "speedup_low", "speedup_high"),
    "sharing.csv": (
        "experiment", "device", "device_name", "machine", "devices", "nodes", "epoch_seconds", "fewest", "speedup",
        "efficiency", "efficiency_low", "efficiency_high",
    ),
    "elsewhere.csv": (
        "experiment", "device", "provenance", "machine", "hardware", "measured_at_unix_seconds", "git_commit",
        "test_accuracy", "epoch_seconds", "startup_seconds", "total_seconds", "epoch_speedup_over_this_cpu", "doubts",
    ),
    "renting.csv": (
        "experiment", "accelerator", "full_name", "fits", "needed_bytes_at_least", "step_seconds_at_least",
        "arithmetic_seconds", "memory_seconds", "link_seconds", "epoch_seconds_at_least", "job_seconds_at_least",
        "epoch_times_as_fast_at_most", "job_times_as_fast_at_most", "hour_price", "currency", "price_of", "price_as_of",
        "price_is_old", "cost_at_least", "target_seconds_at_least", "target_cost_at_least", "epoch_seconds_estimated",
        "job_seconds_estimated", "cost_estimated",
    ),
}  # fmt: skip
"""of the report's files"""
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
            if present := {figure: row[figure] for figure in _METRICS if is_known(row[figure])}:
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
        **_ends(compared.payback.interval, "payback_epochs_"),
    }
    for kind, speedup in compared.speedups.items():
        row |= {f"{kind}_speedup": speedup.ratio, **_ends(speedup.interval, f"{kind}_speedup_")}
    return row


def history_rows(pairs: Iterable[Pair]) -> Rows:
    """Every epoch of every run, one below the other, with the time its training had taken by then."""
    return [
        {**vars(epoch), "training_seconds_so_far": seconds, **run}
        for result in _trained(pairs)
        for run in [_run(result)]
        for epoch, seconds in zip(
            result.history,
            accumulate(epoch.training_seconds for epoch in result.timings.epochs),
            strict=True,
        )
    ]


def confusion_rows(pairs: Iterable[Pair]) -> Rows:
    """One row for each pair of true and predicted class of each run, with how many images it holds."""
    return [
        {**run, "actual": actual, "predicted": predicted, "images": count}
        for result in _trained(pairs)
        if result.scores.confusion
        for run in [_run(result)]
        for actual, counts in zip(result.record.class_names, result.scores.confusion, strict=True)
        for predicted, count in zip(result.record.class_names, counts, strict=True)
    ]


def _trained(pairs: Iterable[Pair]) -> Iterator[Trained]:
    return (result for pair in pairs for result in pair.trained)


def _run(result: Trained) -> dict[str, str]:
    """Which run a row is of: by its two names, and by one for tools that group by a single column."""
    name = f"{result.experiment} {result.device}"
    return {"experiment": result.experiment, "device": result.device, "run": name}


def speedup_rows(pairs: Iterable[Pair]) -> Rows:
    """Three rows for each experiment that a GPU trained."""
    return [
        {
            "experiment": pair.experiment,
            "of": speedup.kind,
            "speedup": speedup.ratio,
            **_ends(speedup.interval),
            "cpu_seconds": speedup.cpu_seconds,
            "gpu_seconds": speedup.device_seconds,
            "verdict": in_words(speedup),
        }
        for pair in pairs
        if pair.compared
        for speedup in pair.compared.speedups.values()
    ]


def _ends(interval: Interval | None, prefix: str = "") -> dict[str, float | None]:
    low, high = interval or (None, None)
    return {f"{prefix}low": low, f"{prefix}high": high}


def seed_rows(pairs: Iterable[Pair]) -> Rows:
    """A row for each seed of an experiment that was trained from several."""
    return [
        {
            "experiment": pair.experiment,
            "device": device,
            "seed": seed,
            "score": found.score.values[place],
            "score_name": found.score_name,
            "test_loss": found.test_loss.values[place],
            "target_epoch": found.targets[place].epoch if found.targets else None,
            "target_seconds": found.targets[place].seconds if found.targets else None,
        }
        for pair in pairs
        for device, found in pair.seeds.items()
        for place, seed in enumerate(found.seeds)
    ]


def attribution_rows(pairs: Iterable[Pair]) -> Rows:
    """In the order of the results and of a step; none of runs whose steps were not taken apart.

    `share` is of a step taken apart, its mean over an epoch: so it counts what only an epoch's first step waits for.
    """
    return [
        {
            "experiment": result.experiment,
            "device": result.device,
            "part": part,
            "median_seconds": medians[field],
            "share": result.costs.shares[part],
        }
        for result in _trained(pairs)
        if result.costs
        for medians in [result.costs.attribution.parts.median_seconds]
        for part, field in PARTS.items()
    ]


def scaling_rows(series: Iterable[Series]) -> Rows:
    """A row for each size of each series."""
    return [
        {
            "series": each.name,
            "x_name": each.x_name,
            "x": point.x,
            "experiment": point.experiment,
            "speedup": point.speedup.ratio,
            **_ends(point.speedup.interval, "speedup_"),
        }
        for each in series
        for point in each.points
    ]


def sharing_rows(shared: Iterable[Shared]) -> Rows:
    """A row for each number of devices that shared a training; `machine` is that of a record."""
    return [
        {
            "experiment": each.experiment,
            "device": each.device,
            "device_name": each.timings.device_name,
            "machine": each.machine,
            "devices": each.count,
            "nodes": each.timings.host.nodes,
            "epoch_seconds": each.speedup.device_seconds,
            "fewest": each.fewest,
            "speedup": each.speedup.ratio,
            "efficiency": each.efficiency,
            **_ends(each.efficiency_interval, "efficiency_"),
        }
        for each in shared
    ]


def elsewhere_rows(pairs: Iterable[Pair]) -> Rows:
    """What other machines recorded; in a file of its own, so that nothing takes it for this machine's."""
    return [
        {
            "experiment": pair.experiment,
            "device": each.reference.training.device,
            "provenance": "reference",
            "machine": each.reference.machine,
            "hardware": each.hardware,
            "measured_at_unix_seconds": timings.started_at_unix_seconds,
            "git_commit": timings.git_commit,
            "test_accuracy": each.reference.scores.test_accuracy,
            "epoch_seconds": each.against_cpu.device_seconds,
            "startup_seconds": timings.startup_seconds,
            "total_seconds": timings.total_seconds,
            "epoch_speedup_over_this_cpu": each.against_cpu.ratio,
            "doubts": "; ".join(doubts(timings.load)) or None,
        }
        for pair in pairs
        for each in pair.elsewhere
        for timings in [each.reference.timings]
    ]


def renting_rows(pairs: Iterable[Pair]) -> Rows:
    """A row for each experiment and accelerator: bounds, none of them measured."""
    return [_offered(pair, offer) for pair in pairs for offer in pair.renting.offers]


def _offered(pair: Pair, offer: Offer) -> dict[str, object]:
    price, about = offer.price, offer.estimate
    figures = (
        pair.experiment, offer.accelerator.name, offer.accelerator.full_name, offer.fits, offer.needed_bytes,
        offer.step.seconds, offer.step.arithmetic_seconds, offer.step.memory_seconds, offer.step.link_seconds,
        offer.epoch_seconds, offer.job_seconds, offer.epoch_at_most, offer.job_at_most,
        price and price.amount, price and price.currency, price and price.where,
        price and price.as_of and price.as_of.isoformat(), price and price.is_old(pair.renting.trained_on),
        offer.cost, offer.target_seconds, offer.target_cost,
        about and about.epoch_seconds, about and about.job_seconds, about and about.cost,
    )  # fmt: skip
    return dict(zip(COLUMNS["renting.csv"], figures, strict=True))


def grouped(rows: Rows, *columns: str) -> dict[tuple[str, ...], Rows]:
    """The rows by what they have in these columns, in their order."""
    groups: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def is_known(value: object) -> bool:
    """Whether it is a figure or a word: neither missing nor what a diverged training has for a number."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))


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
