"""Steps: tests/test_gpu.py; the cost of a wait, a launch and a graph's node; fp16's first overflow; captured steps
against eager ones, bit by bit; and an epoch of MNIST's linear network in all its variants.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import data
from benchmarks.probe.findings import ROOT, Findings, here
from benchmarks.probe.trainers import (
    ADAM,
    LENET,
    LINEAR,
    LOADER,
    MLP,
    PRECISIONS,
    SGD,
    how,
    mnist,
    same_bits,
    trained,
    trainer,
)
from photofinish.training.torch_device import configure_torch, gradient_scaler

_LAUNCHES = 1000
_ROUNDS = 20


class _Noted:
    """Plug-in of pytest that makes each test a finding."""

    def __init__(self, found: Findings) -> None:
        self._found = found

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the outcome of a test, or of its set-up."""
        name = report.nodeid.rpartition("::")[2]
        if report.skipped and isinstance(report.longrepr, tuple):
            self._found.skip(name, report.longrepr[2].removeprefix("Skipped: "))
        elif report.failed:
            print(report.longreprtext, flush=True)
            crash = getattr(report.longrepr, "reprcrash", None)
            self._found.add(name, "FAILED", note=crash.message if crash else report.longreprtext.strip()[-200:])
        elif report.when == "call":
            self._found.add(name, "passed", note=f"{report.duration:.1f} s")


def run_tests(found: Findings, _out: Path, _data: Path | None) -> None:
    """Run tests/test_gpu.py without the project's settings and fixtures, whose packages a bare machine lacks."""
    import pytest  # which a bare machine may lack, too

    arguments = ["--noconftest", "-c", "/dev/null", f"--rootdir={ROOT}", "-p", "no:terminal", "-p", "no:cacheprovider"]
    pytest.main([*arguments, str(ROOT / "tests" / "test_gpu.py")], plugins=[_Noted(found)])


def run(found: Findings, _out: Path, folder: Path | None) -> None:
    """Measure all of it, smaller where there is no GPU."""
    device = here()
    configure_torch(device, "fp32", torch.get_num_threads())
    _costs_of_the_host(found, device)
    _first_overflow(found, device)
    small = device.type == "cpu"
    images = mnist(folder, *((3000, 1000) if small else (50_000, 10_000)))
    found.add("images", "MNIST" if images.is_real else "noise")
    _captured_steps(found, device, mnist(folder, 2000, 500))
    _epochs(found, device, images, epochs=3 if small else 8)


def _median_seconds(act: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_ROUNDS):
        started_seconds = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - started_seconds)
    return statistics.median(seconds)


def _costs_of_the_host(found: Findings, device: torch.device) -> None:
    values = torch.zeros(1024, device=device)

    def launch() -> None:
        for _ in range(_LAUNCHES):
            values.add_(1)

    if device.type == "cpu":
        found.add("an operation on 4 KiB", _median_seconds(launch) / _LAUNCHES * 1e6, "us")
        found.skip("a wait, a launch, a graph's node", "there is no accelerator here")
        return
    torch.accelerator.synchronize()
    found.add("a wait for nothing", _median_seconds(torch.accelerator.synchronize) * 1e6, "us")
    found.add("a launch, for the host", _median_seconds(launch) / _LAUNCHES * 1e6, "us")

    def launch_and_wait() -> None:
        launch()
        torch.accelerator.synchronize()

    launch_and_wait()
    found.add("a launch, until done", _median_seconds(launch_and_wait) / _LAUNCHES * 1e6, "us")
    if device.type != "cuda":
        found.skip("a graph's node", f"PyTorch has no graphs for {device.type} that are tried here")
        return
    few, many = (_replay_seconds(values, nodes) for nodes in (100, _LAUNCHES))
    found.add("a graph's node", (many - few) / (_LAUNCHES - 100) * 1e6, "us")
    found.add("a replay of 100 nodes", few * 1e6, "us")


def _replay_seconds(values: torch.Tensor, nodes: int) -> float:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(nodes):
            values.add_(1)

    def replay() -> None:
        graph.replay()
        torch.accelerator.synchronize()

    replay()
    return _median_seconds(replay)


def _first_overflow(found: Findings, device: torch.device) -> None:
    """With momentum, the first gradients infinite: what comes after must be what PyTorch's plain SGD gives."""
    made = trainer(mnist(None, 256, 128), device, precision="fp16", model={**MLP, "hidden": (2048,)})
    ours, plain = made.network, copy.deepcopy(made.network)
    dirty = [torch.full((1 << 21,), torch.nan, device=device) for _ in range(16)]
    del dirty  # what nobody fills is this now
    plain_sgd = torch.optim.SGD(plain.parameters(), lr=SGD["lr"], momentum=SGD["momentum"], foreach=False)
    for network, optimizer in ((ours, made.state.optimizer), (plain, plain_sgd)):
        scaler = gradient_scaler(device, "fp16")
        for gradient in (torch.inf, 1.0, 2.0):
            optimizer.zero_grad()
            total = torch.stack([(weights * gradient).sum() for weights in network.parameters()]).sum()
            scaler.scale(total).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
    right = all(torch.allclose(*pair) for pair in zip(ours.parameters(), plain.parameters(), strict=True))
    note = "which is what the CPU has" if device.type == "cpu" else ""
    found.add("fp16 with momentum after a first overflow", "as plain SGD" if right else "OTHER WEIGHTS", note=note)


def _captured_steps(found: Findings, device: torch.device, images: data.Data) -> None:
    what = "captured steps against eager ones"
    if device.type != "cuda":
        found.skip(what, f"steps are captured on CUDA and ROCm alone, not on {device.type}")
        return
    for name, model in (("linear", LINEAR), ("mlp", MLP), ("lenet", LENET)):
        for optimizer in (SGD, ADAM):
            for precision in PRECISIONS if optimizer is SGD else ("fp32",):
                variant = f"{name}, {optimizer['name']}, {precision}"
                settings: dict[str, Any] = {"model": model, "optimizer": optimizer, "precision": precision}
                with found.failures_kept(what, variant):
                    eager = trained(trainer(images, device, cuda_graphs="off", **settings))
                    captured = trained(trainer(images, device, cuda_graphs="on", **settings))
                    same = "the same bits" if same_bits(eager, captured) else "OTHER BITS"
                    found.add(what, same, variant=variant, note=how(captured))


def _epochs(found: Findings, device: torch.device, images: data.Data, epochs: int) -> None:
    """The median, without the first."""
    what = "an epoch of MNIST's linear network"
    pinned = {**LOADER, "workers": 2, "persistent_workers": True, "pin_memory": True, "non_blocking": True}
    is_cuda = device.type == "cuda"
    precisions = PRECISIONS if device.type != "cpu" else ("fp32", "bf16")
    variants: dict[str, dict[str, Any]] = {f"resident, {each}": {"precision": each} for each in precisions}
    if is_cuda:
        variants |= {f"graph, {each}": {"precision": each, "cuda_graphs": "on"} for each in precisions}
    variants |= {
        "loader": {"input": LOADER},
        "loader, 2 workers": {"input": {**LOADER, "workers": 2, "persistent_workers": True}},
        "loader, 2 workers, copies beside the steps": {"input": pinned},
        "loader, 2 workers, copies beside the steps, auto": {"input": pinned, "cuda_graphs": "auto"},
    }
    for variant, settings in variants.items():
        with found.failures_kept(what, variant):
            made = trained(trainer(images, device, epochs=epochs, **settings))
            seconds = statistics.median(timing.training_seconds for timing in made.progress.timings[1:])
            note = f"{how(made)}; {made.steps_per_epoch} steps, {made.training.image_count / seconds:,.0f} images/s"
            found.add(what, seconds * 1e3, "ms", variant=variant, note=note)
