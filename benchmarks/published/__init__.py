"""Training speeds that others published, each with its source, to test estimates.

`training.csv` has a row for each: images per second of a network, batch and accelerator.
`networks.csv` has the operations and the saved memory of each network's step.
`python -m benchmarks.published.count` counts them with timm's networks. `steps.csv` has counted
steps of language models and of NeuMF, a multilayer perceptron on embeddings of ML-20m's users and
films. Their optimizer is Adam, which NeuMF takes fused.

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


class Step(NamedTuple):
    """A training step that was timed on a GPU."""

    job: str
    accelerator: Accelerator
    precision: str
    operations: Operations
    seconds: float
    source: str
    is_captured: bool


def published() -> list[Step]:
    networks = {(row["model"], row["image_size"]): _counted(row) for row in rows("networks.csv")}
    steps = measured("steps")
    for row in rows("training.csv"):
        operations = with_batch(networks[row["model"], row["image_size"]], int(row["batch_size"]))
        seconds = operations.images / float(row["images_per_second"])
        sheet, precision = accelerators()[row["accelerator"]], row["precision"]
        step = Step(row["model"], sheet, precision, operations, seconds, row["source"], False)
        steps.append(step)
    return steps


def measured(name: str = "measured") -> list[Step]:
    """Return the steps of measured.csv, unseen.csv or steps.csv."""
    steps = []
    for row in rows(f"{name}.csv"):
        sheet = accelerators()[row.get("accelerator", "H100")]
        seconds, is_captured = float(row["step_seconds"]), row.get("steps") == "graph"
        source, counted = row.get("source", ""), _counted(row)
        step = Step(row["job"], sheet, row["precision"], counted, seconds, source, is_captured)
        steps.append(step)
    return steps


def rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a table."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _counted(row: dict[str, str]) -> Operations:
    counts = {name: int(row[name]) for name in COUNTS if name in row}
    return _NOTHING.model_copy(update=counts)
