"""Rates of the CPU: of an fp32 product, and of steps with fewer threads.

Fewer threads show the time on a quiet CPU, and whether threads help. OpenMP's threads spin while
they wait for each other, so other programs may make a step many times slower. A single thread does
not spin, so its CPU time is the work of a step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from photofinish.measure.scratch import scratch_steps
from photofinish.results.measurements import SteadyState, TriedThreads
from photofinish.training.trainer import Trainer

_ROUND_SECONDS = 0.02
"""Time for each number of threads in a round, if a step is shorter."""
# The limits are by hand.
_MOST_ROUNDS = 10
_MOST_STEPS = 20
_LONG_STEP_SECONDS = 0.1
"""Steps above this time need no extra step before them to start threads."""
_PRODUCT_SIDE, _PRODUCTS = 384, 5
"""Side of a square matrix, and number of products: about 5 ms on two cores."""


@contextmanager
def restored_threads() -> Iterator[int]:
    """Yield torch's number of threads, and restore it."""
    threads = torch.get_num_threads()
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def fp32_flops_a_second() -> float:
    """Return the rate of the quickest of a few fp32 products, with the training's threads."""
    matrix = torch.rand(_PRODUCT_SIDE, _PRODUCT_SIDE)
    quickest_seconds = math.inf
    for _ in range(1 + _PRODUCTS):  # the first may start threads
        started_seconds = time.perf_counter()
        matrix @ matrix
        quickest_seconds = min(quickest_seconds, time.perf_counter() - started_seconds)
    return 2 * _PRODUCT_SIDE**3 / quickest_seconds


def try_threads(
    trainer: Trainer, step_seconds: float, most_seconds: float
) -> tuple[TriedThreads, ...]:
    """Time steps with one, half, and all of the threads, in turns."""
    steps = max(1, min(_MOST_STEPS, int(_ROUND_SECONDS / step_seconds)))
    began_seconds = trainer.clock.now_seconds()
    with restored_threads() as threads, scratch_steps(trainer) as (step,):
        counts = sorted({1, max(1, threads // 2), threads})
        wall: dict[int, list[float]] = {count: [] for count in counts}
        cpu: dict[int, list[float]] = {count: [] for count in counts}
        for rounds in range(1, _MOST_ROUNDS + 1):
            for count in counts:
                torch.set_num_threads(count)
                if step_seconds < _LONG_STEP_SECONDS:
                    step()
                for _ in range(steps):
                    began = trainer.clock.now_seconds(), time.thread_time()
                    step()
                    cpu[count].append(time.thread_time() - began[1])
                    wall[count].append(trainer.clock.now_seconds() - began[0])
            spent_seconds = trainer.clock.now_seconds() - began_seconds
            if spent_seconds * (rounds + 1) / rounds > most_seconds:
                break
    return tuple(
        TriedThreads(
            threads=count,
            steps=SteadyState(steps_per_sample=1, sample_seconds=tuple(wall[count])),
            cpu_seconds=tuple(cpu[count]),
        )
        for count in counts
    )
