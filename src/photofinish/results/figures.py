"""Measured figures. Each is one field of its record, which also names where it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_type_hints

from photofinish.config.base import Record


@dataclass(frozen=True)
class Figure:
    """Places where a figure is shown, as metadata of a field or of a property's type."""

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


@cache
def figures_of(record: type[Record]) -> dict[str, Figure]:
    """Return the figures by attribute. For each class, properties come before fields."""
    metadata: dict[str, Any] = {}
    for owner in record.__mro__:
        if not issubclass(owner, Record):
            continue
        for name, member in vars(owner).items():
            if isinstance(member, property):
                hint = get_type_hints(member.fget, include_extras=True).get("return")
                metadata[name] = getattr(hint, "__metadata__", ())
        for name in filter(record.model_fields.__contains__, owner.__annotations__):
            metadata[name] = record.model_fields[name].metadata
    return {
        name: part for name, parts in metadata.items() for part in parts if isinstance(part, Figure)
    }


def figures_in(times: Record, *, has_steps: bool) -> list[tuple[Figure, Any]]:
    """Return each figure with its value, which is None if it was not measured."""
    return [
        (figure, getattr(times, name) if has_steps or not figure.needs_steps else None)
        for name, figure in figures_of(type(times)).items()
    ]
