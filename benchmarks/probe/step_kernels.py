"""Kernels of one step on a GPU, by PyTorch's profiler: which ones its time goes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks import data
from benchmarks.probe.findings import Findings, here
from benchmarks.probe.trainers import LENET, LINEAR, mnist, trainer
from photofinish.measure.scratch import scratch_steps

_REPLAYS, _SHOWN = 20, 15
_JOBS: dict[str, dict[str, Any]] = {
    "linear, fp32": {"model": LINEAR},
    "linear, tf32": {"model": LINEAR, "precision": "tf32"},
    "lenet": {"model": LENET, "batch_size": 1000},
    "lenet, not deterministic": {"model": LENET, "batch_size": 1000, "deterministic": False},
    "resnet18, bf16": {"model": {"name": "resnet18"}, "precision": "bf16"},
}


def run(findings: Findings, out: Path, _data: Path | None) -> None:
    """Profile captured steps. The table of kernels is out/kernels.txt."""
    device = here()
    if device.type != "cuda":
        findings.skip("kernels", "there is no CUDA device here")
        return
    gray, color = mnist(None, 2000, 500), data.noise((3, 32, 32), 512, 128)
    for name, settings in _JOBS.items():
        with findings.failures_kept(name):
            images = color if settings["model"]["name"] == "resnet18" else gray
            built = trainer(images, device, cuda_graphs="on", **settings)
            built.prepare()
            with scratch_steps(built) as (step,):
                step()
                built.clock.now_seconds()
                kinds = [torch.profiler.ProfilerActivity.CUDA]
                with torch.profiler.profile(activities=kinds) as profile:
                    for _ in range(_REPLAYS):
                        step()
                    built.clock.now_seconds()
            events = profile.key_averages()
            table = events.table(sort_by="cuda_time_total", row_limit=_SHOWN)
            with (out / "kernels.txt").open("a", encoding="utf-8") as file:
                file.write(f"== {name}, {_REPLAYS} steps\n{table}\n")
            count = sum(event.count for event in events) / _REPLAYS
            busy_us = sum(event.device_time_total for event in events) / _REPLAYS
            findings.add(name, busy_us, "us", note=f"{count:.1f} kernels and copies a step")
