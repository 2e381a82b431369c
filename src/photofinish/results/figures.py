"""Figures: how each is declared, with all places where it is shown, and those of a job's times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from photofinish.config.base import Record
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


def _of_times(attribute: str, label: str | None = None, **places: Any) -> Figure[Record]:
    """Return a figure that is an attribute of a job's times, None if they do not have it."""
    places = {"name": attribute, "write": seconds, "mlflow": attribute, **places}
    return Figure(value=lambda times: getattr(times, attribute, None), label=label, **places)


_OF_STEPS = {"dvc": True, "needs_steps": True}
FIGURES = (
    _of_times("median_step_seconds", "step (median)", name="step_seconds", **_OF_STEPS),
    _of_times("median_epoch_seconds", "epoch (median)", name="epoch_seconds", **_OF_STEPS),
    _of_times(
        "images_per_second",
        "samples/s",
        write=thousands,
        mlflow="median_images_per_second",
        needs_steps=True,
    ),
    _of_times("startup_seconds", "start-up", needs_steps=True),
    _of_times("total_seconds", "total", dvc=True),
    _of_times("peak_memory_bytes", "memory (peak)", write=byte_size),
    _of_times("peak_host_memory_bytes"),
    _of_times("data_seconds", csv=False),
    _of_times("warm_up_seconds", csv=False),
)


def figures_in(times: Record, *, has_steps: bool) -> list[tuple[Figure[Record], Any]]:
    """Return each figure with its value, which is None if it was not measured."""
    return [
        (each, each.value(times) if has_steps or not each.needs_steps else None) for each in FIGURES
    ]
