"""Accelerators by their data sheets, and list prices of machines that have them: facts, each with its source and date.

`tables/README.md` tells what the columns hold and how they are brought up to date.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

_TABLES = Path(__file__).parent / "tables"
SHORT_LIST = ("T4", "L4", "A10G", "L40S", "A100", "H100")
"""what is told of unless params.yaml names others: those that clouds let by the one and that have a dated price"""


@dataclass(frozen=True)
class Accelerator:
    """One, as its maker describes it; what isn't known, or what it can't do, is None."""

    name: str
    full_name: str
    """as its driver calls it"""
    kind: str
    """as PyTorch does"""
    memory_gib: float
    memory_gb_per_s: float
    tflops: dict[str, float]
    """dense, at the boost clock, by precision"""
    cache_mib: float
    """the last one before memory, whichever side it is on"""
    link_gb_per_s: float | None
    """from the host, one way; None where both share the memory"""
    board_watts: float | None

    def best_tflops(self, precision: str) -> float | None:
        """No computing in that precision is faster: where its rate isn't known, that of the next shorter type."""
        wanted = _PRECISIONS[_PRECISIONS.index(precision) :]
        return next((self.tflops[each] for each in wanted if each in self.tflops), None)


_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""none is slower than those before it"""


@dataclass(frozen=True)
class ListPrice:
    """Of an hour of a whole machine, on demand."""

    accelerator: str
    cloud: str
    instance: str
    gpus: int
    """all of them are paid for"""
    usd_per_hour: float
    region: str
    as_of: date


@cache
def accelerators() -> dict[str, Accelerator]:
    """All that are known, by name."""
    known = {}
    for row in _rows("accelerators.csv"):
        figures = {key: float(text) for key, text in row.items() if text and key.endswith(_UNITS)}
        known[row["name"]] = Accelerator(
            row["name"],
            row["full_name"],
            row["kind"],
            figures["memory_gib"],
            figures["memory_gb_per_s"],
            {each: figures[f"{each}_tflops"] for each in _PRECISIONS if f"{each}_tflops" in figures},
            figures["cache_mib"],
            figures.get("link_gb_per_s"),
            figures.get("board_watts"),
        )
    return known


_UNITS = ("_gib", "_mib", "_gb_per_s", "_tflops", "_watts")


@cache
def list_prices() -> tuple[ListPrice, ...]:
    """All that are known."""
    return tuple(
        ListPrice(
            row["accelerator"],
            row["cloud"],
            row["instance"],
            int(row["gpus"]),
            float(row["usd_per_hour"]),
            row["region"],
            date.fromisoformat(row["as_of"]),
        )
        for row in _rows("prices.csv")
    )


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (_TABLES / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
