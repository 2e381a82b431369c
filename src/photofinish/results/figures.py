"""Figures: how each is declared, with all places where it is shown, and those of a job's times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from photofinish.results.job import Job
from photofinish.wording import byte_size, seconds

T = TypeVar("T")
thousands = "{:,.0f}".format


@dataclass(frozen=True)
class Figure(Generic[T]):
    """Figure of a `T`, and the places where it is shown."""

    name: str
    """Name of its column in comparison.csv, and in `dvc metrics`."""
    value: Callable[[T], Any]
    label: str | None = None
    """Heading of its row on the page, or None if it has no row."""
    write: Callable[[Any], str] = str
    """Function that formats a value for the page."""
    csv: bool = True
    """True if it is a column of comparison.csv."""
    dvc: bool = False
    """True if `dvc metrics` shows it."""
    mlflow: str | None = None
    """Metric of the run in MLflow, or None."""
    needs_steps: bool = False
    """True if it is missing for a job that is timed as a whole."""


def _of_job(
    name: str, value: Callable[[Job], Any], label: str | None = None, **places: Any
) -> Figure[Job]:
    places = {"write": seconds, "mlflow": name, **places}
    return Figure(name, value, label, **places)


_OF_STEPS = {"dvc": True, "needs_steps": True}
FIGURES = (
    _of_job(
        "step_seconds",
        lambda job: job.median_step_seconds if job.step_seconds else None,
        "step (median)",
        mlflow="median_step_seconds",
        **_OF_STEPS,
    ),
    _of_job(
        "epoch_seconds",
        lambda job: job.median_epoch_seconds,
        "epoch (median)",
        mlflow="median_epoch_seconds",
        **_OF_STEPS,
    ),
    _of_job(
        "images_per_second",
        lambda job: job.samples_per_second,
        "samples/s",
        write=thousands,
        mlflow="median_images_per_second",
        needs_steps=True,
    ),
    _of_job("startup_seconds", lambda job: job.startup_seconds, "start-up", needs_steps=True),
    _of_job("total_seconds", lambda job: job.total_seconds, "total", dvc=True),
    _of_job(
        "peak_memory_bytes", lambda job: job.peak_memory_bytes, "memory (peak)", write=byte_size
    ),
    _of_job("peak_host_memory_bytes", lambda job: job.peak_host_memory_bytes),
    _of_job("data_seconds", lambda job: job.data_seconds, csv=False),
    _of_job("warm_up_seconds", lambda job: job.warm_up_seconds, csv=False),
)


def figures_in(job: Job) -> list[tuple[Figure[Job], Any]]:
    """Return each figure with its value, which is None if it was not measured."""
    return [
        (figure, figure.value(job) if job.has_steps or not figure.needs_steps else None)
        for figure in FIGURES
    ]
