"""Memory that training steps of networks take, as PyTorch and the driver count it."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torchvision.models import get_model

from benchmarks.probe.findings import Findings, here
from benchmarks.probe.gpu_scripts import RUNS, OverError, Run, step_of
from photofinish.training.torch_device import CPU


def train(
    name: str,
    batch_size: int,
    device: torch.device,
    tick: Callable[[], None],
    *,
    optimizer: str = "SGD",
    dtype: torch.dtype = torch.float32,
    is_autocast: bool = False,
) -> None:
    """Train a network of torchvision, without the temporary memory of an initialization."""
    if device == CPU:  # whose steps in 16 bits may take minutes
        dtype, is_autocast = torch.float32, False
    with torch.device("meta"):
        network = get_model(name)
    network.to(dtype).to_empty(device=device)
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.fill_(0.02 if tensor.is_floating_point() else 0)
    made = getattr(torch.optim, optimizer)(network.parameters(), lr=1e-4)
    step = step_of(network, made, torch.bfloat16 if is_autocast else None)
    count = 2 if device == CPU else batch_size
    while True:
        images = torch.randn(count, 3, 224, 224).to(device, dtype)
        step(images, torch.arange(count).to(device))
        tick()


_AUTOCAST, _BF16 = {"is_autocast": True}, {"dtype": torch.bfloat16}
_ADAM, _ADAMW = {"optimizer": "Adam"}, {"optimizer": "AdamW"}
NETS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("resnet18", 256, {}),
    ("alexnet", 256, {}),
    ("vgg16", 256, {}),
    ("vit_l_16", 64, _ADAM),
    ("vit_l_16", 64, _ADAM | _AUTOCAST),
    ("vit_l_16", 64, _ADAM | _BF16),
    ("vit_l_16", 16, _ADAM | _BF16),
    ("resnet50", 128, _AUTOCAST),
    ("mobilenet_v2", 128, _AUTOCAST),
    ("efficientnet_b0", 128, {}),
    ("densenet121", 64, {}),
    ("convnext_tiny", 64, _ADAMW),
    ("vit_b_16", 128, _ADAMW | _AUTOCAST),
    ("swin_t", 64, _ADAMW),
)
"""The first seven have published peaks (A100 and T4, https://github.com/rasbt/pytorch-memory-optim
and https://github.com/RunbangZhang/ImageNet-Analysis-ResNet18-AlexNet-and-Vgg16-on-A100-and-T4)."""
_STEPS = 3
_NUMBERS = "allocated, reserved, used by the driver after step 1, after step 3, with an empty cache"


def run(findings: Findings, _out: Path) -> None:
    """Measure one after the other."""
    device = here()
    for name, batch_size, settings in NETS if device != CPU else (*NETS[:2], NETS[-1]):
        what = f"{name} {batch_size} {settings or ''}".strip()
        _measure(findings, what, partial(train, name, batch_size, **settings), device)
    for name in ("read_loss", "hidden_loading", "short_epochs"):
        _measure(findings, name, RUNS[name], device)


def _measure(findings: Findings, name: str, script: Run, device: torch.device) -> None:
    """Take three steps, or one without a GPU."""
    numbers = [] if device == CPU else [torch.cuda.memory_allocated()]
    steps = 0

    def tick() -> None:
        nonlocal steps
        steps += 1
        if device == CPU:
            raise OverError
        if steps in (1, _STEPS):
            torch.cuda.synchronize()
            peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            numbers.extend([*peaks, torch.cuda.device_memory_used()])
        if steps == _STEPS:
            torch.cuda.empty_cache()
            left = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            numbers.extend([*left, torch.cuda.device_memory_used()])
            raise OverError

    with findings.failures_kept(name):
        with suppress(OverError):
            script(device, tick)
        if device == CPU:
            findings.skip(name, "a step ran, and a CPU has no such memory")
            return
        note = f"bytes {numbers}: before, and {_NUMBERS}"
        findings.add(name, numbers[5] / 1e6, "MB", variant="reserved", note=note)
    gc.collect()
    if device != CPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
