"""Training speeds that others published, each with its source, to test bounds and estimates.

`training.csv` has a row for each: images per second of a network, batch and accelerator.
`networks.csv` and `products.csv` have the operations, the traffic and the saved memory of each
network's step. `python -m benchmarks.published.count` counts them with timm's networks.

`fp16` rows are mixed precision. `tf32` rows are published as FP32 by NVIDIA, in whose containers
TF32 is on. Rows without an optimizer are forward and backward passes alone.

`measured.csv` has steps of this trainer on an H100 (torch 2.11.0, driver 580.159.04, 2026-11-26),
launched by the host (`eager`) or captured in CUDA graphs. Each is the median of one training's
steady steps, deterministic unless its job says otherwise.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from photofinish.comparing.bounds import MinimumStepTime, least_steps
from photofinish.config.compare import Accelerator, accelerators
from photofinish.results.measurements import Operations, Product

FOLDER = Path(__file__).parent
_XEON = Accelerator(
    "2x-Xeon-E5-2630-v3", "2x Intel Xeon E5-2630 v3", "cpu", 64, 118.0, {"fp32": 1.64}, 40, None
)
"""Two processors with 16 cores in all.

A core does 32 operations a cycle at 3.2 GHz. A processor has 20 MiB of cache and four channels of
DDR4-1866.
"""
_COUNTS = "images", "flops", "kernels", "convolutions", "time_steps", "saved_tensor_bytes"
_NOTHING = Operations(
    images=0, flops=0, kernels=0, products=(), parameter_bytes=0, gradient_bytes=0,
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

    @property
    def floor(self) -> MinimumStepTime:
        """Minimum time of a step by the data sheet."""
        return least_steps(self.operations, self.accelerator, self.precision)


def held_by(floor: MinimumStepTime) -> str:
    """Return the name of the longest part of a minimum time."""
    if floor.link_seconds > floor.computing_seconds:
        return "the link"
    parts = {
        "arithmetic": floor.arithmetic_seconds,
        "memory": floor.memory_seconds,
        "kernels": floor.kernel_seconds,
    }
    return max(parts, key=lambda name: parts[name])


def published() -> list[Published]:
    """All of them."""
    networks = {(row["model"], row["image_size"]): row for row in rows("networks.csv")}
    products: dict[tuple[str, str], list[dict[str, int]]] = {}
    for row in rows("products.csv"):
        counts = {
            name: int(text) for name, text in row.items() if name not in ("model", "image_size")
        }
        products.setdefault((row["model"], row["image_size"]), []).append(counts)
    known = {_XEON.name: _XEON, **accelerators()}
    return [
        Published(
            row["model"],
            row["precision"],
            row["layout"],
            known[row["accelerator"]],
            _step(networks[name], products[name], int(row["batch_size"]), row["steps"] == "whole"),
            float(row["images_per_second"]),
            row["source"],
        )
        for row in rows("training.csv")
        for name in [(row["model"], row["image_size"])]
    ]


class Measured(NamedTuple):
    """Step of this trainer on an H100."""

    job: str
    is_captured: bool
    precision: str
    operations: Operations
    step_seconds: float


def measured() -> list[Measured]:
    """Return the steps of measured.csv."""
    found = []
    for row in rows("measured.csv"):
        step = _NOTHING.model_copy(update={name: int(row[name]) for name in _COUNTS})
        is_captured, seconds = row["steps"] == "graph", float(row["step_seconds"])
        found.append(Measured(row["job"], is_captured, row["precision"], step, seconds))
    return found


def rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a table."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _step(
    network: dict[str, str], products: list[dict[str, int]], images: int, has_optimizer: bool
) -> Operations:
    """Return the step's operations without the optimizer's state, which is not always published."""
    times, parameter_bytes = images / int(network["images"]), int(network["parameter_bytes"])
    return Operations(
        images=images,
        flops=round(times * int(network["flops"])),
        kernels=int(network["kernels"]),
        convolutions=int(network["convolutions"]),
        products=tuple(_product(each, images) for each in products),
        parameter_bytes=parameter_bytes,
        gradient_bytes=parameter_bytes if has_optimizer else 0,
        optimizer_bytes=0,
        saved_activations=round(times * int(network["kept_values"])),
        saved_tensor_bytes=round(times * int(network["all_kept_bytes"])),
        batch_bytes=0,
        resident_bytes=0,
    )


def _product(counts: dict[str, int], images: int) -> Product:
    return Product(
        count=counts["count"],
        least_flops=images * counts["least_flops"],
        read_values=counts["read_values"] + images * counts["read_values_an_image"],
        written_values=counts["written_values"] + images * counts["written_values_an_image"],
    )
