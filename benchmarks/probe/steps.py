"""Steps: tests/test_gpu.py, the cost of a launch, and an epoch of MNIST's linear network."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import data
from benchmarks.probe.findings import ROOT, Findings, here
from benchmarks.probe.trainers import LOADER, PRECISIONS, add_epoch, mnist, trainer
from photofinish.training.torch_device import configure_torch

_LAUNCHES, _ROUNDS = 1000, 20


def run_tests(findings: Findings, _out: Path, _data: Path | None) -> None:
    """Run tests/test_gpu.py without the project's settings, whose packages a bare machine lacks."""
    command = [sys.executable, "-m", "pytest", "--noconftest", "-c", "/dev/null", "-q", "-rA"]
    command += [f"--rootdir={ROOT}", "-p", "no:cacheprovider", str(ROOT / "tests" / "test_gpu.py")]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    for line in ran.stdout.splitlines():
        outcome, _, test = line.partition(" ")
        if outcome == "SKIPPED":
            findings.skip("a test", test)
        elif outcome in ("PASSED", "FAILED", "ERROR"):
            name, _, reason = test.rpartition("::")[2].partition(" - ")
            findings.add(name, "passed" if outcome == "PASSED" else "FAILED", note=reason)
    if ran.returncode > 1:
        print(ran.stdout)
        findings.add("pytest", f"FAILED with status {ran.returncode}")


def run(findings: Findings, _out: Path, folder: Path | None) -> None:
    """Measure all of it, smaller without a GPU."""
    device = here()
    configure_torch(device, "fp32", torch.get_num_threads())
    _measure_launches(findings, device)
    small = device.type == "cpu"
    images = mnist(folder, *((600, 200) if small else (50_000, 10_000)))
    findings.add("images", "MNIST" if images.is_real else "noise")
    _measure_epochs(findings, device, images, epochs=2 if small else 8)


def _measure_launches(findings: Findings, device: torch.device) -> None:
    values = torch.zeros(1024, device=device)

    def launch() -> None:
        for _ in range(_LAUNCHES):
            values.add_(1)

    if device.type == "cpu":
        launch_us = _median_seconds(launch) / _LAUNCHES * 1e6
        findings.add("an operation on 4 KiB", launch_us, "us")
        findings.skip("a wait, a launch, a graph's node", "there is no accelerator here")
        return
    wait = torch.accelerator.synchronize
    wait()
    findings.add("a wait for nothing", _median_seconds(wait) * 1e6, "us")
    findings.add("a launch, for the host", _median_seconds(launch) / _LAUNCHES * 1e6, "us")
    if device.type != "cuda":
        findings.skip("a graph's node", f"steps are not captured on {device.type}")
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()

    def replay() -> None:
        graph.replay()
        wait()

    replay()
    findings.add("a graph's node", _median_seconds(replay) / _LAUNCHES * 1e6, "us")


def _median_seconds(act: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_ROUNDS):
        started_seconds = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - started_seconds)
    return statistics.median(seconds)


def _measure_epochs(
    findings: Findings, device: torch.device, images: data.Data, epochs: int
) -> None:
    """Measure an epoch in each precision and with each input."""
    workers = {**LOADER, "workers": 2, "persistent_workers": True}
    pinned = {**workers, "pin_memory": True, "non_blocking": True}
    variants: dict[str, dict[str, Any]] = {}
    for precision in PRECISIONS if device.type != "cpu" else ("fp32", "bf16"):
        variants[f"resident, {precision}"] = {"precision": precision}
        if device.type == "cuda":
            graph = {"precision": precision, "cuda_graphs": "on"}
            variants[f"graph, {precision}"] = graph
    variants["loader"] = {"input": LOADER}
    variants["loader, 2 workers"] = {"input": workers}
    variants["loader, 2 workers, pinned"] = {"input": pinned}
    variants["loader, 2 workers, pinned, auto"] = {"input": pinned, "cuda_graphs": "auto"}
    for variant, settings in variants.items():
        what = "an epoch of MNIST's linear network"
        with findings.failures_kept(what, variant):
            add_epoch(findings, what, variant, trainer(images, device, epochs=epochs, **settings))
