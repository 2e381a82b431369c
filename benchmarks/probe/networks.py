"""Part 4: LeNet's epoch at batch 1000; ResNet-18's step in each precision and order of memory, against what the device
multiplies matrices at; VGG-11, which adaptive pooling kept from CUDA; and whether all of it repeats."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import data
from benchmarks.probe.findings import Findings, here
from benchmarks.probe.trainers import LENET, PRECISIONS, mnist, same_bits, trained, trainer
from photofinish.measuring.rehearsal import scratch_steps
from photofinish.training.torch_device import CPU, apply_policy, autocast
from photofinish.training.trainer import Trainer

_LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


def run(found: Findings, _out: Path, _data: Path | None) -> None:
    """All of it, smaller where there is no GPU."""
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
        made = trained(trainer(images, device, model=LENET, batch_size=1000, epochs=2 if small else 8, steps=steps))
        seconds = statistics.median(timing.training_seconds for timing in made.progress.timings[1:])
        note = f"{made.training.image_count / seconds:,.0f} images/s"
        found.add("an epoch of LeNet, batch 1000", seconds * 1e3, "ms", variant=f"steps: {steps}", note=note)


def _matrix_rates(found: Findings, device: torch.device, side: int) -> dict[str, float]:
    """Floating-point operations a second of a large product, by precision."""
    rates = {}
    for precision in PRECISIONS:
        apply_policy(device, precision, torch.get_num_threads())
        if device == CPU and precision != "fp32":
            found.skip("matrix rate", "few CPUs have units for it", variant=precision)
            continue
        one, other = (torch.rand(side, side, device=device) for _ in range(2))
        with autocast(device, precision), torch.no_grad():
            if precision in ("bf16", "fp16"):
                one, other = ((one @ one), (other @ other))  # in the short type from here on
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
    for precision, rate in rates.items():
        made = _network_trainer("resnet18", images, device, batch_size, precision=precision)
        operations = _operations_a_step(made)
        for name, layout in _LAYOUTS.items():
            seconds = _step_seconds(made, layout)
            chosen = ", as chosen" if made.state.memory_format is layout else ""
            note = f"{operations / seconds / rate:.0%} of the matrix rate, {batch_size / seconds:,.0f} images/s"
            variant = f"{precision}, {name}{chosen}"
            found.add(what, seconds * 1e3, "ms", variant=variant, note=note)
        again = (_network_trainer("resnet18", images, device, batch_size, precision=precision) for _ in range(2))
        repeats = same_bits(*map(trained, again))
        found.add("ResNet-18 trained twice", "the same bits" if repeats else "OTHER BITS", variant=precision)


def _step_seconds(made: Trainer, layout: torch.memory_format) -> float:
    """The median of some, the device waited for after several of them."""
    samples, steps = (3, 1) if made.device == CPU else (10, 10)
    with scratch_steps(made, layout=layout) as (step,):
        seconds = []
        for _ in range(1 + samples):  # the first for nothing
            started_seconds = made.clock.now_seconds()
            for _ in range(steps):
                step()
            seconds.append((made.clock.now_seconds() - started_seconds) / steps)
    return statistics.median(seconds[1:])


def _vgg(found: Findings, device: torch.device, images: data.Data, batch_size: int) -> None:
    try:
        first, again = (trained(_network_trainer("vgg11", images, device, batch_size)) for _ in range(2))
    except RuntimeError as error:
        found.add("VGG-11 on 32x32", "FAILED", note=str(error).partition("\n")[0])
        return
    seconds = first.progress.timings[-1].training_seconds / first.steps_per_epoch
    repeats = "the same bits" if same_bits(first, again) else "OTHER BITS"
    found.add(f"a step of VGG-11 on 32x32, batch {batch_size}", seconds * 1e3, "ms", note=f"trained twice: {repeats}")


def _network_trainer(name: str, images: data.Data, device: torch.device, batch_size: int, **settings: Any) -> Trainer:
    return trainer(images, device, model={"name": name}, batch_size=batch_size, epochs=1, **settings)


def _operations_a_step(made: Trainer) -> int:
    """Of convolutions and matrix products, forward and backward."""
    with scratch_steps(made) as (step,), FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())
