"""Networks: LeNet's epoch at batch 1000; ResNet-18's step in each precision and memory format, captured and eager,
against the rate at which the device multiplies matrices; VGG-11; and whether all of it repeats.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import data
from benchmarks.probe.findings import Findings, here
from benchmarks.probe.trainers import LENET, PRECISIONS, how, mnist, same_bits, trained, trainer
from photofinish.profiling.scratch import chosen_steps, scratch_steps
from photofinish.training.steps import Steps
from photofinish.training.torch_device import CPU, configure_torch
from photofinish.training.trainer import Trainer

_LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_STEPS = 10
"""in a sample of their time"""


def run(found: Findings, _out: Path, _data: Path | None) -> None:
    """Measure all of it, smaller where there is no GPU."""
    device = here()
    small = device == CPU
    _lenet(found, device, small)
    rates = _matrix_rates(found, device, side=512 if small else 8192)
    images = data.noise((3, 32, 32), *((64, 32) if small else (4096, 512)))
    _resnet(found, device, images, rates, batch_size=16 if small else 256)
    _vgg(found, device, images, batch_size=8 if small else 128)


def _lenet(found: Findings, device: torch.device, small: bool) -> None:
    images = mnist(None, *((2000, 500) if small else (50_000, 10_000)))
    for steps in ("eager", "auto"):
        what, variant = "an epoch of LeNet, batch 1000", f"steps: {steps}"
        with found.failures_kept(what, variant):
            made = trained(trainer(images, device, model=LENET, batch_size=1000, epochs=2 if small else 8, steps=steps))
            seconds = statistics.median(timing.training_seconds for timing in made.progress.timings[1:])
            note = f"{how(made)}; {made.training.image_count / seconds:,.0f} images/s"
            found.add(what, seconds * 1e3, "ms", variant=variant, note=note)


def _matrix_rates(found: Findings, device: torch.device, side: int) -> dict[str, float]:
    """Return the floating-point operations a second of a large product, by precision.

    The numbers are random, because a GPU clocks higher on constant ones.
    """
    rates = {}
    for precision in PRECISIONS:
        configure_torch(device, precision, torch.get_num_threads())
        if device == CPU and precision != "fp32":
            found.skip("matrix rate", "few CPUs have units for it", variant=precision)
            continue
        dtype = _DTYPES.get(precision, torch.float32)
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
        found.add("matrix rate", rates[precision] / 1e12, "TFLOP/s", variant=precision, note=f"{side} x {side}")
    return rates


def _wait(device: torch.device) -> None:
    if device != CPU:
        torch.accelerator.synchronize()


def _resnet(found: Findings, device: torch.device, images: data.Data, rates: dict[str, float], batch_size: int) -> None:
    what = f"a step of ResNet-18 on 32x32, batch {batch_size}"
    if device.type != "cuda":
        found.skip(f"{what}, captured", f"steps are captured on CUDA and ROCm alone, not on {device.type}")
    for precision, rate in rates.items():
        for steps in ("eager", "graph") if device.type == "cuda" else ("eager",):
            made = _network_trainer("resnet18", images, device, batch_size, precision=precision, steps=steps)
            operations = _operations_a_step(made)
            for name, layout in _LAYOUTS.items():
                chosen = ", as chosen" if made.state.memory_format is layout else ""
                variant = f"{precision}, {steps}, {name}{chosen}"
                with found.failures_kept(what, variant):
                    made.steps = chosen_steps(made)
                    seconds = _step_seconds(made, layout)
                    rates_told = f"{operations / seconds / rate:.0%} of the matrix rate, {batch_size / seconds:,.0f}"
                    found.add(what, seconds * 1e3, "ms", variant=variant, note=f"{how(made)}; {rates_told} images/s")
        with found.failures_kept("ResNet-18 trained twice", precision):
            first, again = (
                trained(
                    _network_trainer("resnet18", images, device, batch_size, precision=precision, cuda_graphs="auto")
                )
                for _ in range(2)
            )
            repeats = "the same bits" if same_bits(first, again) else "OTHER BITS"
            found.add("ResNet-18 trained twice", repeats, variant=precision, note=how(first))


def _step_seconds(made: Trainer, layout: torch.memory_format) -> float:
    """Return the median of some samples, each of several steps. The clock waits for the device at a sample's ends."""
    samples, steps = (3, 1) if made.device == CPU else (10, _STEPS)
    with scratch_steps(made, layout=layout, at_once=steps) as (take_steps,):
        seconds = []
        for _ in range(1 + samples):  # the first is a warm-up
            started_seconds = made.clock.now_seconds()
            take_steps()
            seconds.append((made.clock.now_seconds() - started_seconds) / steps)
    return statistics.median(seconds[1:])


def _vgg(found: Findings, device: torch.device, images: data.Data, batch_size: int) -> None:
    what = f"a step of VGG-11 on 32x32, batch {batch_size}"
    with found.failures_kept(what):
        first, again = (trained(_network_trainer("vgg11", images, device, batch_size)) for _ in range(2))
        seconds = first.progress.timings[-1].training_seconds / first.steps_per_epoch
        repeats = "the same bits" if same_bits(first, again) else "OTHER BITS"
        found.add(what, seconds * 1e3, "ms", note=f"{how(first)}; trained twice: {repeats}")


def _network_trainer(name: str, images: data.Data, device: torch.device, batch_size: int, **settings: Any) -> Trainer:
    return trainer(images, device, model={"name": name}, batch_size=batch_size, epochs=1, **settings)


def _operations_a_step(made: Trainer) -> int:
    """Return the operations of convolutions and matrix products, forward and backward."""
    made.steps = Steps()  # a captured step dispatches nothing
    with scratch_steps(made) as (step,), FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())
