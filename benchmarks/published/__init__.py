"""Training speeds that others published, each with its source, to test estimates.

`training.csv` has a row for each: images per second of a network, batch and accelerator.
`networks.csv` has the operations and the saved memory of each network's step.
`python -m benchmarks.published.count` counts them with timm's networks.

`fp16` rows are mixed precision. `tf32` rows are published as FP32 by NVIDIA, in whose containers
TF32 is on. Rows without an optimizer are forward and backward passes alone.

`measured.csv` has steps of this trainer on an H100 (torch 2.11.0, driver 580.159.04, 2026-11-26),
launched by the host (`eager`) or captured in CUDA graphs. Each is the median of one training's
steady steps, deterministic unless its job says otherwise. `unseen.csv` has steps of networks on
which no constant was fitted, on an H200 (2026-11-27), counted as a user's are: on a CPU. The probe
that took them is in git's history (commit 11197e9a, benchmarks/probe/unseen.py). Steps of language
models are published ones: the optimizer is Adam, and gpt2's README trains on an A100.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from photofinish.answer.estimates import with_batch
from photofinish.config.compare import Accelerator, accelerators
from photofinish.results.measurements import Operations

FOLDER = Path(__file__).parent
COUNTS = (
    "images", "flops", "kernels", "convolutions", "time_steps", "saved_tensor_bytes",
    "optimizer_bytes",
)  # fmt: skip
_NOTHING = Operations(images=0, flops=0, kernels=0, saved_tensor_bytes=0)


@dataclass(frozen=True)
class Published:
    """Speed of one training step."""

    model: str
    precision: str
    accelerator: Accelerator
    operations: Operations
    images_per_second: float
    source: str

    @property
    def step_seconds(self) -> float:
        """Measured time of a step."""
        return self.operations.images / self.images_per_second


def published() -> list[Published]:
    """All of them."""
    networks = {(row["model"], row["image_size"]): _counted(row) for row in rows("networks.csv")}
    found = []
    for row in rows("training.csv"):
        step = with_batch(networks[row["model"], row["image_size"]], int(row["batch_size"]))
        sheet, speed = accelerators()[row["accelerator"]], float(row["images_per_second"])
        found.append(Published(row["model"], row["precision"], sheet, step, speed, row["source"]))
    return found


class Measured(NamedTuple):
    """Step of this trainer on a GPU."""

    accelerator: Accelerator
    job: str
    is_captured: bool
    precision: str
    operations: Operations
    step_seconds: float


def measured(name: str = "measured") -> list[Measured]:
    """Return the steps of measured.csv, or of unseen.csv."""
    found = []
    for row in rows(f"{name}.csv"):
        sheet = accelerators()[row.get("accelerator", "H100")]
        is_captured, seconds = row["steps"] == "graph", float(row["step_seconds"])
        step = sheet, row["job"], is_captured, row["precision"], _counted(row), seconds
        found.append(Measured(*step))
    return found


def rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a table."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _counted(row: dict[str, str]) -> Operations:
    counts = {name: int(row[name]) for name in COUNTS if name in row}
    return _NOTHING.model_copy(update=counts)
