"""Figures of a job, with the places where each is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from photofinish.results.job import Job
from photofinish.wording import byte_size, seconds


@dataclass(frozen=True)
class Figure:
    """Figure with the places where it is shown."""

    name: str
    """Name of its column in comparison.csv, and in `dvc metrics` and `JobRecord.figures`."""
    label: str | None = None
    """Heading of its row on the page, or None if it has no row."""
    write: Callable[[Any], str] = str
    """Function that formats a value for the page."""
    csv: bool = True
    """True if it is a column of comparison.csv."""
    dvc: bool = False
    """True if `dvc metrics` shows it."""
    value: Callable[[Job], Any] = lambda _job: None
    mlflow: str = ""
    """Metric of the run in MLflow, for a row of FIGURES. By default its name."""
    needs_steps: bool = False
    """True if it is missing for a job that is timed as a whole."""


FIGURES = (
    Figure(
        "step_seconds", "step (median)", seconds, dvc=True, needs_steps=True,
        value=lambda job: (
            job.median_step_seconds if job.step_seconds and not job.has_busy_steps else None
        ),
        mlflow="median_step_seconds",
    ),
    Figure(
        "epoch_seconds", "epoch (median)", seconds, dvc=True, needs_steps=True,
        value=lambda job: job.median_epoch_seconds, mlflow="median_epoch_seconds",
    ),
    Figure(
        "images_per_second", "samples/s", "{:,.0f}".format, needs_steps=True,
        value=lambda job: job.samples_per_second, mlflow="median_images_per_second",
    ),
    Figure(
        "startup_seconds", "start-up", seconds, needs_steps=True,
        value=lambda job: job.startup_seconds,
    ),
    Figure("total_seconds", "total", seconds, dvc=True, value=lambda job: job.total_seconds),
    Figure(
        "peak_memory_bytes", "memory (peak)", byte_size, value=lambda job: job.peak_memory_bytes
    ),
    Figure("peak_host_memory_bytes", value=lambda job: job.peak_host_memory_bytes),
    Figure("data_seconds", csv=False, value=lambda job: job.data_seconds),
    Figure("warm_up_seconds", csv=False, value=lambda job: job.warm_up_seconds),
)  # fmt: skip
"""Figures of a job alone, which MLflow also shows."""


def figures_in(job: Job) -> list[tuple[Figure, Any]]:
    """Return each figure with its value, which is None if it was not measured."""
    return [
        (figure, figure.value(job) if job.has_steps or not figure.needs_steps else None)
        for figure in FIGURES
    ]
