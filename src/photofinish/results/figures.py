"""Measured figures: one table, with all places where each is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from photofinish.config.base import Record


@dataclass(frozen=True)
class Figure:
    """Measured figure of a job's times, and the places where it is shown."""

    attribute: str
    """Attribute of the times. A figure that the times do not have is None."""
    label: str | None = None
    """Heading of the figure's row on the page, or None if it has no row."""
    unit: Literal["seconds", "bytes", "a second"] = "seconds"
    csv: str | None = None
    """Column of comparison.csv, or None."""
    dvc: bool = False
    """True if `dvc metrics` shows the figure, under the name of its column."""
    mlflow: str | None = None
    """Metric of the run in MLflow, or None."""
    needs_steps: bool = False
    """True if the figure is missing for a job that is timed as a whole."""


def _shown(
    attribute: str, label: str, unit: Literal["seconds", "bytes", "a second"] = "seconds", **at: Any
) -> Figure:
    """Return a figure that is a column of comparison.csv and a metric in MLflow."""
    return Figure(attribute, label, unit, **{"csv": attribute, "mlflow": attribute, **at})


FIGURES = (
    _shown("median_step_seconds", "step (median)", csv="step_seconds", dvc=True, needs_steps=True),
    _shown(
        "median_epoch_seconds", "epoch (median)", csv="epoch_seconds", dvc=True, needs_steps=True
    ),
    _shown(
        "images_per_second",
        "samples/s",
        "a second",
        mlflow="median_images_per_second",
        needs_steps=True,
    ),
    _shown("startup_seconds", "start-up", needs_steps=True),
    _shown("total_seconds", "total", dvc=True),
    _shown("peak_memory_bytes", "memory (peak)", "bytes"),
    _shown("peak_host_memory_bytes", "host memory (peak)", "bytes"),
    Figure("data_seconds", mlflow="data_seconds"),
    Figure("warm_up_seconds", mlflow="warm_up_seconds"),
)


def figures_in(times: Record, *, has_steps: bool) -> list[tuple[Figure, Any]]:
    """Return each figure with its value, which is None if it was not measured."""
    return [
        (each, getattr(times, each.attribute, None) if has_steps or not each.needs_steps else None)
        for each in FIGURES
    ]
