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
that took them is in git's history (commit 11197e9a, benchmarks/probe/unseen.py).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from photofinish.config.compare import Accelerator, accelerators
from photofinish.results.measurements import Operations

FOLDER = Path(__file__).parent
COUNTS = "images", "flops", "kernels", "convolutions", "time_steps", "saved_tensor_bytes"
_NOTHING = Operations(
    images=0, flops=0, kernels=0, parameter_bytes=0, gradient_bytes=0,
    optimizer_bytes=0, saved_activations=0, saved_tensor_bytes=0, batch_bytes=0, resident_bytes=0,
)  # fmt: skip


@dataclass(frozen=True)
class Published:
    """Speed of one training step."""

    model: str
    precision: str
    layout: str
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
    networks = {(row["model"], row["image_size"]): row for row in rows("networks.csv")}
    return [
        Published(
            row["model"],
            row["precision"],
            row["layout"],
            accelerators()[row["accelerator"]],
            _step(networks[name], int(row["batch_size"]), row["steps"] == "whole"),
            float(row["images_per_second"]),
            row["source"],
        )
        for row in rows("training.csv")
        for name in [(row["model"], row["image_size"])]
    ]


class Measured(NamedTuple):
    """Step of this trainer on a GPU."""

    accelerator: Accelerator
    job: str
    is_captured: bool
    precision: str
    operations: Operations
    step_seconds: float


def measured() -> list[Measured]:
    """Return the steps of measured.csv."""
    return _measured("measured.csv", "H100")


def unseen() -> list[Measured]:
    """Return the steps of unseen.csv."""
    return _measured("unseen.csv", "H200")


def _measured(name: str, accelerator: str) -> list[Measured]:
    found = []
    for row in rows(name):
        step = _NOTHING.model_copy(update={count: int(row[count]) for count in COUNTS})
        is_captured, seconds = row["steps"] == "graph", float(row["step_seconds"])
        sheet, precision = accelerators()[accelerator], row["precision"]
        found.append(Measured(sheet, row["job"], is_captured, precision, step, seconds))
    return found


def rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a table."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _step(network: dict[str, str], images: int, has_optimizer: bool) -> Operations:
    """Return the step's operations without the optimizer's state, which is not always published."""
    times, parameter_bytes = images / int(network["images"]), int(network["parameter_bytes"])
    return Operations(
        images=images,
        flops=round(times * int(network["flops"])),
        kernels=int(network["kernels"]),
        convolutions=int(network["convolutions"]),
        parameter_bytes=parameter_bytes,
        gradient_bytes=parameter_bytes if has_optimizer else 0,
        optimizer_bytes=0,
        saved_activations=round(times * int(network["kept_values"])),
        saved_tensor_bytes=round(times * int(network["all_kept_bytes"])),
        batch_bytes=0,
        resident_bytes=0,
    )
