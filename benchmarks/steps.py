"""Measure what `photofinish.steps` costs a step: `python -m benchmarks.steps`.

Two loops on one thread take turns step by step, so that other load of the machine hits both.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

STEPS = 10_000
SIZES = (32, 8), (128, 128), (128, 400)
"""Samples of a batch and width of the hidden layer: steps of about 0.2, 0.5 and 1 ms."""
OUT = Path("benchmarks/results")


def main() -> None:
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    os.environ |= {"PHOTOFINISH_STEPS_FOLDER": str(OUT), "PHOTOFINISH_STEPS_DEVICE": "cpu"}
    for samples, width in SIZES:
        bare, timed = _median_seconds(samples, width)
        cost = f"{(timed - bare) * 1e6:+.1f} us, {timed / bare - 1:+.2%}"
        print(f"a step of {bare * 1e6:.0f} us: {cost}", flush=True)


def _median_seconds(samples: int, width: int) -> tuple[float, float]:
    """Return the median time of a plain step, and of a step by `photofinish.steps`."""
    from photofinish import steps

    network = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    batches = [(torch.randn(samples, 64), torch.randint(10, (samples,)))] * STEPS

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for batch in steps(batches[:10]):  # two of these are counted
        step(*batch)
    sides: list[tuple[Iterator[Any], list[float]]]
    sides = [(iter(batches), []), (iter(steps(batches)), [])]
    for _ in range(STEPS):
        for iterator, seconds in random.sample(sides, 2):
            began_seconds = time.perf_counter()
            step(*next(iterator))
            seconds.append(time.perf_counter() - began_seconds)
    bare, timed = (statistics.median(seconds) for _, seconds in sides)
    return bare, timed


if __name__ == "__main__":
    main()
