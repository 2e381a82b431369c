"""Epochs of small jobs, with their validation: how much of a GPU's time is launched by the host."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.probe.findings import Findings, here
from benchmarks.probe.trainers import LENET, LINEAR, how, mnist, trained, trainer

_JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "digits-linear": ("digits", {"model": LINEAR, "epochs": 60}),
    "MNIST linear": ("mnist", {"model": LINEAR, "epochs": 10}),
    "MNIST LeNet, batch 1000": ("mnist", {"model": LENET, "batch_size": 1000, "epochs": 8}),
    "pictures-resnet, fp32": ("pictures", {"model": {"name": "resnet18"}, "epochs": 12}),
    "pictures-resnet, tf32": (
        "pictures",
        {"model": {"name": "resnet18"}, "epochs": 12, "precision": "tf32"},
    ),
    "pictures-resnet, bf16": (
        "pictures",
        {"model": {"name": "resnet18"}, "epochs": 12, "precision": "bf16"},
    ),
}


def run(findings: Findings, _out: Path, folder: Path | None) -> None:
    """Train each, captured where that gives the same bits. Shorter without a GPU."""
    device = here()
    is_small = device.type == "cpu"
    images = {
        "digits": data.noise((1, 8, 8), 1257, 270),
        "mnist": mnist(folder, *((600, 200) if is_small else (50_000, 10_000))),
        "pictures": data.noise((3, 32, 32), *((160, 32) if is_small else (1120, 240))),
    }
    for name, (source, settings) in _JOBS.items():
        with findings.failures_kept(name):
            shorter = {"epochs": 2} if is_small else {}
            built = trained(
                trainer(images[source], device, cuda_graphs="auto", **settings | shorter)
            )
            timings = built.progress.timings[1:]
            training = statistics.median(timing.training_seconds for timing in timings)
            validation = statistics.median(timing.validation_seconds for timing in timings)
            loss = built.progress.metrics[-1].training_loss
            findings.add(name, training * 1e3, "ms", variant="an epoch", note=how(built))
            note = f"loss {loss!r} after {len(timings) + 1} epochs"
            findings.add(name, validation * 1e3, "ms", variant="its validation", note=note)
