"""Networks: an epoch of LeNet; steps of ResNet-18 in each precision and memory format, captured and
eager, against the rate at which the device multiplies matrices; and whether training repeats.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import data
from benchmarks.probe.findings import Findings, here
from benchmarks.probe.trainers import (
    LENET,
    PRECISIONS,
    add_epoch,
    how,
    mnist,
    same_bits,
    step_seconds,
    trained,
    trainer,
)
from photofinish.measure.scratch import scratch_steps
from photofinish.training.torch_device import CPU, configure_torch
from photofinish.training.trainer import Trainer

_LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def run(findings: Findings, _out: Path, _data: Path | None) -> None:
    """Measure all of it, smaller without a GPU."""
    device = here()
    small = device == CPU
    images = mnist(None, *((1000, 500) if small else (50_000, 10_000)))
    for graphs in ("off", "auto"):
        what, variant = "an epoch of LeNet, batch 1000", f"cuda_graphs: {graphs}"
        with findings.failures_kept(what, variant):
            settings: dict[str, Any] = {"batch_size": 1000, "epochs": 2 if small else 8}
            built = trainer(images, device, model=LENET, cuda_graphs=graphs, **settings)
            add_epoch(findings, what, variant, built)
    rates = _matrix_rates(findings, device, side=512 if small else 8192)
    images = data.noise((3, 32, 32), *((16, 8) if small else (4096, 512)))
    for precision, rate in rates.items():
        _measure_resnet(findings, device, images, precision, rate)


def _matrix_rates(findings: Findings, device: torch.device, side: int) -> dict[str, float]:
    """Return the floating-point operations a second of a large product, by precision."""
    rates = {}
    for precision in PRECISIONS:
        configure_torch(device, precision, torch.get_num_threads())
        if device == CPU and precision != "fp32":
            findings.skip("matrix rate", "few CPUs have units for it", variant=precision)
            continue
        dtype = _DTYPES.get(precision, torch.float32)
        # Random, because a GPU clocks higher on constant numbers.
        one, other = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        seconds = []
        for _ in range(5):
            _wait(device)
            started_seconds = time.perf_counter()
            for _ in range(4):
                one @ other
            _wait(device)
            seconds.append((time.perf_counter() - started_seconds) / 4)
        rates[precision] = 2 * side**3 / min(seconds)
        note = f"{side} x {side}"
        findings.add(
            "matrix rate", rates[precision] / 1e12, "TFLOP/s", variant=precision, note=note
        )
    return rates


def _wait(device: torch.device) -> None:
    if device != CPU:
        torch.accelerator.synchronize()


def _measure_resnet(
    findings: Findings, device: torch.device, images: data.Data, precision: str, rate: float
) -> None:
    """Measure a step, and train twice."""
    batch_size = 4 if device == CPU else 256
    what = f"a step of ResNet-18 on 32x32, batch {batch_size}"
    settings = {"model": {"name": "resnet18"}, "batch_size": batch_size, "epochs": 1}
    settings["precision"] = precision
    for graphs in ("off", "on") if device.type == "cuda" else ("off",):
        built = trainer(images, device, cuda_graphs=graphs, **settings)
        operations = _operations_per_step(built)
        for name, layout in _LAYOUTS.items():
            chosen = ", as chosen" if built.state.memory_format is layout else ""
            variant = f"{precision}, cuda_graphs: {graphs}, {name}{chosen}"
            with findings.failures_kept(what, variant):
                built.prepare()
                seconds = step_seconds(built, layout)
                speed = f"{operations / seconds / rate:.0%} of the matrix rate, "
                speed += f"{batch_size / seconds:,.0f} images/s"
                note = f"{how(built)}; {speed}"
                findings.add(what, seconds * 1e3, "ms", variant=variant, note=note)
    with findings.failures_kept("ResNet-18 trained twice", precision):
        first, again = (
            trained(trainer(images, device, cuda_graphs="auto", **settings)) for _ in range(2)
        )
        repeats = "the same bits" if same_bits(first, again) else "OTHER BITS"
        findings.add("ResNet-18 trained twice", repeats, variant=precision, note=how(first))


def _operations_per_step(built: Trainer) -> int:
    """Return the operations of convolutions and matrix products, forward and backward."""
    built.steps = built.step  # a captured step dispatches nothing
    with scratch_steps(built) as (step,), FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())
