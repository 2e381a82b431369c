"""Figures of a job, with the places where each is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from photofinish.results.job import Job
from photofinish.wording import byte_size, seconds

thousands = "{:,.0f}".format


@dataclass(frozen=True)
class Figure:
    name: str
    """Name of its column in comparison.csv, and in `dvc metrics`."""
    value: Callable[[Job], Any]
    label: str | None = None
    """Heading of its row on the page, or None if it has no row."""
    mlflow: str = ""
    """Metric of the run in MLflow. By default its name."""
    write: Callable[[Any], str] = seconds
    """Function that formats a value for the page."""
    csv: bool = True
    """True if it is a column of comparison.csv."""
    dvc: bool = False
    """True if `dvc metrics` shows it."""
    needs_steps: bool = False
    """True if it is missing for a job that is timed as a whole."""


_OF_STEPS: dict[str, Any] = {"dvc": True, "needs_steps": True}
FIGURES = (
    Figure(
        "step_seconds",
        lambda job: job.median_step_seconds if job.step_seconds else None,
        "step (median)",
        "median_step_seconds",
        **_OF_STEPS,
    ),
    Figure(
        "epoch_seconds",
        lambda job: job.median_epoch_seconds,
        "epoch (median)",
        "median_epoch_seconds",
        **_OF_STEPS,
    ),
    Figure(
        "images_per_second",
        lambda job: job.samples_per_second,
        "samples/s",
        "median_images_per_second",
        thousands,
        needs_steps=True,
    ),
    Figure("startup_seconds", lambda job: job.startup_seconds, "start-up", needs_steps=True),
    Figure("total_seconds", lambda job: job.total_seconds, "total", dvc=True),
    Figure(
        "peak_memory_bytes", lambda job: job.peak_memory_bytes, "memory (peak)", write=byte_size
    ),
    Figure("peak_host_memory_bytes", lambda job: job.peak_host_memory_bytes),
    Figure("data_seconds", lambda job: job.data_seconds, csv=False),
    Figure("warm_up_seconds", lambda job: job.warm_up_seconds, csv=False),
)


def figures_in(job: Job) -> list[tuple[Figure, Any]]:
    """Return each figure with its value, which is None if it was not measured."""
    return [
        (figure, figure.value(job) if job.has_steps or not figure.needs_steps else None)
        for figure in FIGURES
    ]
