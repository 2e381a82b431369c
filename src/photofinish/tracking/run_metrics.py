"""Metrics of MLflow's runs, computed from records only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from mlflow.entities import Metric

from photofinish.results import EpochMetrics, EpochTiming, records
from photofinish.results.figures import figures_in
from photofinish.results.job import Job
from photofinish.results.trained import DeviceEvaluation, SeedRun

ONCE = 0
"""Step of a value that a run has once. MLflow draws a bar for it."""
KEY = re.compile(r"[\w. -]{1,250}")
"""Names that MLflow allows."""


def epoch_metrics(
    metrics: EpochMetrics,
    timing: EpochTiming,
    training_images: int,
) -> list[Metric]:
    values = asdict(metrics) | asdict(timing)
    values["images_per_second"] = training_images / timing.training_seconds
    epoch = values.pop("epoch")
    ended_ms = milliseconds(values.pop("ended_at_unix_seconds"))
    return _at(values, ended_ms, epoch)


def training_metrics(
    history: Sequence[EpochMetrics],
    timings: records.TrainingTimes,
    seeds: Sequence[SeedRun],
    summary: Mapping[str, float | None],
) -> Iterator[Metric]:
    """Yield the metrics of each epoch, of each further seed, and of the whole training."""
    for epoch, timing in zip(history, timings.epochs, strict=True):
        yield from epoch_metrics(epoch, timing, timings.training_image_count)
    ended_ms = milliseconds(timings.epochs[-1].ended_at_unix_seconds)
    for run in seeds:
        if (loss := run.history[-1].validation_loss) is not None:
            yield Metric("seed_validation_loss", loss, ended_ms, run.seed)
    yield from _at(summary, ended_ms, ONCE)


def script_metrics(job: Job) -> Iterator[Metric]:
    """Yield the metrics of the whole script, then the mean step of each part."""
    ended_ms = milliseconds(job.started_at_unix_seconds + job.total_seconds)
    values = {**job_metrics(job), **job.metrics}
    yield from _at(
        {key: value for key, value in values.items() if KEY.fullmatch(key)}, ended_ms, ONCE
    )
    for number, part in enumerate(job.parts if job.has_steps else (), 1):
        waiting = part.waiting_seconds and part.waiting_seconds / part.steps
        values = {"step_seconds": part.seconds / part.steps, "waiting_seconds": waiting}
        yield from _at(values, ended_ms, number)


def _at(values: Mapping[str, float | None], ended_ms: int, step: int) -> list[Metric]:
    """Return the known values as metrics of one step."""
    return [
        Metric(key, float(value), ended_ms, step)
        for key, value in values.items()
        if value is not None
    ]


def test_scores(scores: DeviceEvaluation) -> dict[str, float]:
    ours = {
        "test_accuracy": scores.test_accuracy,
        "test_loss": scores.test_loss,
        "test_macro_f1": scores.macro_f1,
    }
    custom = {f"test_{metric}": value for metric, value in scores.metrics.items()}
    return custom | {key: value for key, value in ours.items() if value is not None}


def job_metrics(job: Job) -> dict[str, float | None]:
    return {figure.mlflow or figure.name: value for figure, value in figures_in(job)}


def milliseconds(value: float) -> int:
    return round(value * 1000)
