"""Rows of comparison.csv: one for each experiment or script on each device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from operator import itemgetter
from typing import Any

from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import Decision
from photofinish.answer.spending import ResourceUse
from photofinish.answer.step_costs import PARTS, StepCosts, shares, step_costs
from photofinish.answer.times import job_time
from photofinish.answer.uncertainty import Interval
from photofinish.machine.load import load_warnings
from photofinish.reporting.extrapolated import timed_text
from photofinish.reporting.say import say
from photofinish.reporting.sentences import metric_texts
from photofinish.results.figures import FIGURES, Figure, figures_in
from photofinish.results.job import Job
from photofinish.results.trained import DEVICE_LABELS, DeviceLabel, Trained
from photofinish.wording import seconds, utc_minute

Rows = list[dict[str, Any]]
"""Rows, each a dictionary with equal keys. A value is None if there is no figure."""


@dataclass(frozen=True)
class _DeviceRow:
    """Experiment or script on one device. What it does not have is None."""

    pair: Comparison
    device: DeviceLabel
    decision: Decision | None

    @property
    def run(self) -> Job | None:
        return self.pair.cpu if self.device == "cpu" else self.pair.gpu

    @property
    def trained(self) -> Trained | None:
        return self.run.trained if self.run else None

    @property
    def limited(self) -> Job | None:
        """Job whose whole job's time is extrapolated."""
        return self.run if self.run and self.run.untimed_epochs else None

    @property
    def spent(self) -> ResourceUse | None:
        return self.pair.uses[self.device] if self.run else None

    @property
    def of_cpu(self) -> Comparison | None:
        """Comparison, for figures that only the CPU's row has."""
        return self.pair if self.device == "cpu" else None

    @property
    def of_gpu(self) -> Comparison | None:
        return self.pair if self.device == "gpu" else None

    @property
    def epochs(self) -> int:
        """Epochs of the job, or 0 for a script without steps or result."""
        if settings := (self.run or self.pair.cpu).settings:
            return int(settings.values["epochs"])
        return round(self.run.epochs) * self.run.has_steps if self.run else 0

    @property
    def job_interval(self) -> Interval | None:
        job = self.limited
        return job_time(job).interval if job and not job.busy else None

    @property
    def causes(self) -> list[str] | None:
        found = self.pair.diagnoses[self.device] if self.run else ()
        return [each.cause for each in found] or None

    @property
    def costs(self) -> StepCosts | None:
        return step_costs(self.run) if self.run else None

    @cached_property
    def shares(self) -> dict[str, float]:
        return shares(self.run) if self.run else {}

    @cached_property
    def figures(self) -> dict[str, Any]:
        found = figures_in(self.run) if self.run else []
        return {figure.name: value or None for figure, value in found}


def _precision(run: Job) -> str | None:
    return run.precision if run.settings or run.operations else None


def _joined(texts: Iterable[str]) -> str | None:
    return "; ".join(texts) or None


def _column(
    name: str,
    path: str = "",
    label: str | None = None,
    write: Callable[[Any], str] = str,
    *,
    then: Callable[[Any], Any] = lambda found: found,
    dvc: bool = False,
) -> Figure[_DeviceRow]:
    """Return a column: `then` of the value at a path of attributes, or None if the path ends."""
    keys = (path or name).split(".")

    def value(row: _DeviceRow) -> Any:
        found: Any = row
        for key in keys:
            if isinstance(found, dict):
                found = found.get(key)
            elif found is not None:
                found = getattr(found, key)
        return None if found is None else then(found)

    return Figure(name, value, label, write, dvc=dvc)


def _interval(name: str, path: str) -> tuple[Figure[_DeviceRow], ...]:
    """Return the columns of both ends of an interval."""
    ends = (("low", itemgetter(0)), ("high", itemgetter(1)))
    return tuple(_column(f"{name}_{end}", path, then=then) for end, then in ends)


def _speedup(name: str) -> tuple[Figure[_DeviceRow], ...]:
    """Return the columns of a speed-up and its interval."""
    path, column = f"of_gpu.compared.speedups.{name}", f"{name}_speedup"
    return (
        _column(column, f"{path}.ratio", dvc=True),
        *_interval(column, f"{path}.interval"),
    )


COLUMNS: tuple[Figure[_DeviceRow], ...] = (
    _column("experiment", "pair.experiment"),
    _column("device"),
    Figure("status", lambda row: "trained" if row.run else "unavailable"),
    _column("answer", "decision.answer"),
    _column("answer_for", "decision.about"),
    _column("answer_by", "decision.worth.basis"),
    _column("answer_reason", "decision.worth.reason"),
    _column("device_name", "run.device_name", "hardware"),
    _column("precision", "run", then=_precision),
    _column("parameters", "run.parameter_count"),
    _column("epochs", "epochs", "epochs"),
    _column("epochs_trained", "trained.epochs", "epochs trained", then=len),
    _column("repeats", "trained.repeats", then=lambda each: 1 + len(each)),
    _column(
        "test_accuracy", "trained.scores.test_accuracy", "test accuracy", "{:.2%}".format, dvc=True
    ),
    _column("test_loss", "trained.scores.test_loss", "test loss", "{:.4f}".format, dvc=True),
    _column("macro_f1", "trained.scores.macro_f1", "macro F1", "{:.4f}".format, dvc=True),
    _column("test_metrics", "run", "test metrics", then=lambda run: _joined(metric_texts(run))),
    *(
        _column(each.name, f"figures.{each.name}", each.label, each.write, dvc=each.dvc)
        for each in FIGURES
        if each.csv
    ),
    _column("job_seconds", "limited.whole_seconds", "whole job", seconds, dvc=True),
    *_interval("job_seconds", "job_interval"),
    _column(
        "job_extrapolated",
        "limited",
        "whole job extrapolated",
        then=lambda timings: say("from", timed=timed_text(timings)),
    ),
    *_speedup("step"),
    *_speedup("epoch"),
    *_speedup("end_to_end"),
    _column("same_model", "of_gpu.parity.likeness"),
    _column("first_divergence", "of_gpu.parity.first_divergence.name"),
    _column("payback_epochs", "of_gpu.compared.break_even.epochs"),
    *_interval("payback_epochs", "of_gpu.compared.break_even.interval"),
    _column("target_accuracy", "spent.target.target", "target accuracy"),
    _column("target_epoch", "spent.target.epoch"),
    _column("target_seconds", "spent.target.seconds", "time to the target", seconds),
    _column("cost", "spent.cost", "cost of the run", "{:.2g}".format),
    _column(
        "cost_currency",
        "spent",
        "currency of the cost",
        then=lambda spent: None if spent.cost is None else spent.currency,
    ),
    _column("target_cost", "spent.cost_to_target", "cost to the target", "{:.2g}".format),
    _column("overhead_seconds", "trained.overhead.seconds"),
    _column("checkpoint_seconds", "trained.overhead.checkpoint_seconds"),
    _column("epoch_ceiling", "of_cpu.bounds.epoch.at_most"),
    _column("job_ceiling", "of_cpu.bounds.job.at_most"),
    _column("cause", "causes", then=itemgetter(0)),
    _column("epoch_cause", "causes", then=itemgetter(-1)),
    _column("busy_share", "costs.busy_share", "device busy", "{:.0%}".format),
    *(
        _column(
            field.replace("_seconds", "_share"),
            f"shares.{part}",
            "waiting for batches" if field == "waiting_seconds" else None,
            "{:.0%}".format,
        )
        for part, field in PARTS.items()
    ),
    _column(
        "load_warnings",
        "run.load",
        "unreliable because",
        then=lambda load: _joined(load_warnings(load)),
    ),
    _column(
        "resumed_at_epochs",
        "trained.resumed_at_epochs",
        "resumed at epochs",
        then=lambda epochs: " ".join(map(str, epochs)) or None,
    ),
    _column("host_name", "run.host_name", "machine"),
    _column("measured_at_unix_seconds", "run.started_at_unix_seconds", "began", utc_minute),
    Figure("reason", lambda row: None if row.run else row.pair.why_no_gpu),
)
"""Columns of comparison.csv, in order. A new figure is one more line."""


def comparison_rows(pairs: Iterable[Comparison], decisions: Iterable[Decision] = ()) -> Rows:
    """Return a row for each experiment and device, with its answer.

    A speed-up of 2 means half the CPU's time.
    """
    rows = [
        _DeviceRow(pair, device, decision)
        for pair, decision in zip_longest(pairs, decisions)
        for device in DEVICE_LABELS
    ]
    return [{each.name: each.value(row) for each in COLUMNS} for row in rows]


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
