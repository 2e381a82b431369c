"""The machine: its GPU and processors, what imports take, and what a checkpoint takes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks.probe.findings import Findings, here

_IMPORTS = "torch", "torchvision", "photofinish.runs.train"
_MODEL_BYTES = 90_000_000, 1_000_000_000


def run(findings: Findings, out: Path, _data: Path | None) -> None:
    """Measure all of it. The GPU's and processors' own words are out/machine.txt."""
    with (out / "machine.txt").open("w", encoding="utf-8") as file:
        for command in (["nvidia-smi", "-q"], ["lscpu"], [sys.executable, "-m", "pip", "list"]):
            with findings.failures_kept(command[0]):
                ran = subprocess.run(command, capture_output=True, text=True, check=False)
                file.write(ran.stdout)
    findings.add("processors", f"{os.cpu_count()}", note=f"PyTorch takes {torch.get_num_threads()}")
    for name in _IMPORTS:
        began_seconds, command = time.perf_counter(), [sys.executable, "-c", f"import {name}"]
        status = subprocess.run(command, check=False).returncode
        seconds = time.perf_counter() - began_seconds
        findings.add(f"import {name}", seconds, "s", note="FAILED" if status else "")
    device = here()
    for size in _MODEL_BYTES if device.type != "cpu" else _MODEL_BYTES[:1]:
        tensors = [torch.zeros(1_000_000, device=device) for _ in range(size // 4_000_000)]
        began_seconds = time.perf_counter()
        torch.save(tensors, out.parent / "checkpoint.pt")
        seconds = time.perf_counter() - began_seconds
        findings.add(f"torch.save of {size / 1e6:.0f} MB", seconds, "s")
        (out.parent / "checkpoint.pt").unlink()
