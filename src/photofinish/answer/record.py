"""Answers with their evidence, tables and figures: the only input of every output.

An output imports only this module of `answer`. What a job itself doesn't hold is computed here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from photofinish.answer.candidates import (
    MOST_RUNS,
    About,
    Answer,
    Basis,
    Candidate,
    Worth,
    short_name,
)
from photofinish.answer.comparison import Comparison, SameModel, same_model
from photofinish.answer.decision import Action, Decision, decide_all, gpu_of_yours
from photofinish.answer.diagnosis import BUSY, Cause, Diagnosis, Remedy
from photofinish.answer.parity import Layer, Parity
from photofinish.answer.prices import SECONDS_AN_HOUR, Price, cost_of, resource_use
from photofinish.answer.renting import RentalOption
from photofinish.answer.seeds import OverSeeds, ScoreDifference, Spread
from photofinish.answer.speedups import Kind, Speedup, epoch_speedup
from photofinish.answer.step_costs import MOST_OF_IT, PARTS, EpochStep, launching_share
from photofinish.answer.times import Interval, job_time
from photofinish.answer.word import loads_longer_than_it_starts, of_one_training
from photofinish.results.figures import figures_in
from photofinish.results.job import Job
from photofinish.results.trained import DEVICE_LABELS, DeviceLabel

__all__ = [
    "BUSY", "MOST_OF_IT", "MOST_RUNS", "PARTS", "SECONDS_AN_HOUR", "About", "Answer", "Basis",
    "Candidate", "Cause", "DeviceLabel", "Diagnosis", "EpochStep", "Grid", "Interval", "Job",
    "Kind", "Layer", "OverSeeds", "Parity", "Price", "Remedy", "RentalOption", "ScoreDifference",
    "Speedup", "Spread", "Worth", "cost_of", "epoch_speedup", "grid", "metric_texts",
    "short_name",
]  # fmt: skip


@dataclass(frozen=True)
class JobRecord(Comparison):
    """Comparison of one experiment or script, with its answer."""

    is_script: bool
    worth: Worth
    action: Action
    one_training: Worth
    """Answer with the times of one training instead of all seeds and the sweep."""
    launching_share: float
    """Least share of a script's step that launching takes on the GPU here."""
    figures: Mapping[DeviceLabel, Mapping[str, Any]]
    """Known figures of each device by their names in comparison.csv."""
    model: SameModel
    stays_share: float
    """Share of the job or of an epoch that stays on the CPU."""
    loads_longer: bool
    """True if most of that is loading, not start-up."""
    own_speedup: tuple[float, Interval] | None
    """Speed-up by the answer's GPU if it needed no rent."""


@dataclass(frozen=True)
class Cell:
    """Speed-up of one experiment in a grid, or its bound."""

    figure: float
    is_bound: bool
    answer: Answer


@dataclass(frozen=True)
class Grid:
    """Experiments that differ in two settings, with an experiment for each pair of values."""

    row_key: str
    column_key: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]


def answer_record(pairs: Sequence[Comparison]) -> tuple[JobRecord, ...]:
    return tuple(map(job_record, pairs, decide_all(pairs)))


def grid(jobs: Sequence[JobRecord]) -> Grid | None:
    """Return the experiments as a grid, or None if not exactly two settings vary."""
    experiments = [(job, job.cpu.settings.values) for job in jobs if job.cpu.settings]
    settings = [chosen for _, chosen in experiments]
    values: dict[str, list[str]] = defaultdict(list)
    for key in dict.fromkeys(key for chosen in settings for key in chosen):
        values[key] = list(dict.fromkeys(str(chosen.get(key)) for chosen in settings))
    varying = [key for key, texts in values.items() if len(texts) > 1]
    if len(varying) != 2:
        return None
    row_key, column_key = sorted(varying, key=lambda key: len(values[key]))
    cells = {}
    for job, chosen in experiments:
        speedup = job.one_training.speedup
        figure = speedup or job.bounds.job.as_measured
        place = str(chosen.get(row_key)), str(chosen.get(column_key))
        cells[place] = Cell(figure, speedup is None, job.worth.answer)
    rows, columns = values[row_key], values[column_key]
    if len(cells) < len(rows) * len(columns):
        return None
    return Grid(row_key, column_key, tuple(rows), tuple(columns), cells)


def job_record(pair: Comparison, decision: Decision) -> JobRecord:
    worth, stays = decision.worth, pair.bounds.job
    share = pair.cpu.startup_seconds / stays.whole_seconds
    loads_longer = loads_longer_than_it_starts(pair)
    if loads_longer and (epoch := pair.bounds.epoch):
        share = epoch.staying_seconds / epoch.whole_seconds
    return JobRecord(
        **vars(pair),
        is_script=pair.cpu.settings is None,
        worth=worth,
        action=decision.action,
        one_training=of_one_training(pair, worth),
        launching_share=launching_share(pair.gpu) if pair.gpu else 0.0,
        figures={device: figures_of(pair, worth, device) for device in DEVICE_LABELS},
        model=same_model(pair),
        stays_share=min(1.0, share),
        loads_longer=loads_longer,
        own_speedup=gpu_of_yours(pair, worth),
    )


def figures_of(pair: Comparison, worth: Worth, device: DeviceLabel) -> dict[str, Any]:
    """Return the figures of a device. A speed-up of 2 means half the CPU's time."""
    run = pair.cpu if device == "cpu" else pair.gpu
    settings = (run or pair.cpu).settings
    figures: dict[str, Any] = {
        "experiment": pair.name,
        "device": device,
        "status": "trained" if run else "unavailable",
        "answer": worth.answer,
        "answer_for": worth.about,
        "answer_by": worth.basis,
        "answer_reason": worth.reason,
        "epochs": int(settings.values["epochs"]) if settings else 0,
    }
    if run is None:
        return figures | {"reason": pair.why_no_gpu}
    if settings is None and run.has_steps:
        figures["epochs"] = round(run.epochs)
    if device == "gpu":
        for kind, speedup in pair.speedups.items():
            name = f"{kind}_speedup"
            figures |= {name: speedup.ratio, **_ends(name, speedup.interval)}
        if payback := pair.break_even:
            figures |= _ends("payback_epochs", payback.interval)
            figures["payback_epochs"] = payback.epochs
        if pair.parity:
            divergence = pair.parity.first_divergence
            figures["same_model"] = pair.parity.likeness
            figures["first_divergence"] = divergence and divergence.name
    elif device == "cpu":
        epoch, job = pair.bounds.epoch, pair.bounds.job
        figures |= {"epoch_ceiling": epoch and epoch.at_most, "job_ceiling": job.at_most}
    return figures | _figures_of_run(pair, run) | _figures_of_training(run)


def _ends(name: str, interval: Interval | None) -> dict[str, float]:
    return {f"{name}_low": interval[0], f"{name}_high": interval[1]} if interval else {}


def _figures_of_run(pair: Comparison, run: Job) -> dict[str, Any]:
    spent, causes = resource_use(run, pair.settings), pair.causes[run.device]
    step, target = pair.steps[run.device], spent.target
    figures = {figure.name: value or None for figure, value in figures_in(run)}
    if run.is_extrapolated:
        figures["job_seconds"] = run.whole_seconds
        figures["job_extrapolated"] = f"from {run.timed_text}"
        figures |= _ends("job_seconds", None if run.busy else job_time(run).interval)
    shares = {field: step.shares.get(part) for part, field in PARTS.items()}
    figures |= {field.replace("_seconds", "_share"): share for field, share in shares.items()}
    return figures | {
        "device_name": run.device_name,
        "precision": run.precision if run.settings or run.operations else None,
        "parameters": run.parameter_count,
        "test_metrics": "; ".join(metric_texts(run.metrics)) or None,
        "target_accuracy": target and target.target,
        "target_epoch": target and target.epoch,
        "target_seconds": target and target.seconds,
        "target_cost": spent.cost_to_target,
        "cost": spent.cost,
        "cost_currency": None if spent.cost is None else spent.currency,
        "cause": causes[0].cause if causes else None,
        "epoch_cause": causes[-1].cause if causes else None,
        "busy_share": step.costs and step.costs.busy_share,
        "load_warnings": "; ".join(run.busy) or None,
        "host_name": run.host_name,
        "measured_at_unix_seconds": run.started_at_unix_seconds,
    }


def metric_texts(metrics: Mapping[str, float | None]) -> list[str]:
    return [
        f"{name} {'not a number' if value is None else f'{value:.4g}'}"
        for name, value in metrics.items()
    ]


def _figures_of_training(run: Job) -> dict[str, Any]:
    if run.trained is None:
        return {}
    trained, scores = run.trained, run.trained.scores
    taken = trained.steps_taken if run.device == "gpu" else None
    steps = taken and taken.why and f"one by one: {taken.why}"
    if taken and taken.kind == "graph":
        steps = f"in graphs of {taken.at_once}"
    return {
        "epochs_trained": len(trained.epochs),
        "repeats": 1 + len(trained.repeats),
        "test_accuracy": scores.test_accuracy,
        "test_loss": scores.test_loss,
        "macro_f1": scores.macro_f1,
        "overhead_seconds": trained.overhead.seconds,
        "checkpoint_seconds": trained.overhead.checkpoint_seconds,
        "resumed_at_epochs": " ".join(map(str, trained.resumed_at_epochs)) or None,
        "steps": steps or None,
    }
