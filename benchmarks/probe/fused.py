"""Steps with kernels that torch.compile fuses, beside captured ones, and how long compiling takes.

Each network has its own process, as compiling takes most of the time. They time steps in turns.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import fcntl
import importlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.probe.findings import Findings, here
from benchmarks.probe.gpu_scripts import captured, step_of, transformer
from photofinish.training.torch_device import CPU, Clock

NAMES = "ResNet-18, bf16", "ResNet-18, tf32", "GPT"
WAYS = {
    "captured": None,
    "compiled and captured": "default",
    "reduce-overhead": "reduce-overhead",
    "max-autotune-no-cudagraphs": "max-autotune-no-cudagraphs",
}
"""Modes of torch.compile. The longest to compile comes last."""
_SAMPLES, _STEPS = 10, 20


def run(findings: Findings, out: Path) -> None:
    """Time each network's steps in each way, at most until the part's time is over."""
    command = [sys.executable, "-m", "benchmarks.probe.fused", str(out)]
    processes = [subprocess.Popen([*command, name]) for name in NAMES]
    for name, process in zip(NAMES, processes, strict=True):
        if status := process.wait():
            findings.add(name, "FAILED", note=f"status {status}")


def _measure(findings: Findings, out: Path, name: str) -> None:
    device = here()
    torch.set_float32_matmul_precision("high")
    for way, mode in WAYS.items():
        if device == CPU and mode and (name, mode) != ("GPT", "default"):
            findings.skip(name, "compiled for a GPU only", variant=way)
            continue
        with findings.failures_kept(name, way):
            torch.compiler.reset()
            began_seconds = time.perf_counter()
            step = _step(name, mode, device)
            for _ in range(4):
                step()
            if "captured" in way and device != CPU:
                step = captured(step)
            step()
            ready_seconds = Clock(device).now_seconds() - began_seconds
            with (out / "fused.lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # no other network's steps are timed
                step_ms, kernels = _timed(step, device)
            note = f"{kernels} kernels, ready after {ready_seconds:.1f} s"
            findings.add(name, step_ms, "ms", variant=way, note=note)


def _step(name: str, mode: str | None, device: torch.device) -> Callable[[], object]:
    """Return a step of a batch of 256 pictures of 32 x 32, or of 32 times 128 tokens."""
    torch.manual_seed(0)
    rows = 2 if device == CPU else 32 if name == "GPT" else 256
    if name == "GPT":
        network: Any = transformer(layers=6, width=256)
        inputs = torch.randint(0, 96, (rows, 128)).to(device)
        labels = inputs.flatten()
    else:
        network = importlib.import_module("torchvision.models").resnet18(num_classes=10)
        inputs = torch.randn(rows, 3, 32, 32).to(device, memory_format=torch.channels_last)
        network.to(memory_format=torch.channels_last)
        labels = torch.arange(rows, device=device) % 10
    network.to(device)
    if mode:
        network.compile(mode=mode, dynamic=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9)
    train = step_of(network, optimizer, None if "tf32" in name else torch.bfloat16)
    return partial(train, inputs, labels)


def _timed(step: Callable[[], object], device: torch.device) -> tuple[float, int]:
    """Return a step's median time in ms, and its number of kernels and copies."""
    times, now_seconds = [], Clock(device).now_seconds
    for _ in range(_SAMPLES):
        began_seconds = now_seconds()
        for _ in range(_STEPS):
            step()
        times.append((now_seconds() - began_seconds) / _STEPS * 1e3)
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU if device == CPU else kinds.CUDA]) as profile:
        step()
        now_seconds()
    count = sum(event.count for event in profile.key_averages() if event.self_device_time_total)
    return statistics.median(times), count


if __name__ == "__main__":
    _measure(Findings("fused", Path(sys.argv[1]) / "fused.jsonl"), Path(sys.argv[1]), sys.argv[2])
