"""Rates of the CPU: of an fp32 product, and of steps with fewer threads.

Fewer threads show the time on a quiet CPU, and whether threads help. OpenMP's threads spin while
they wait for each other, so other programs may make a step many times slower. A single thread does
not spin, so its CPU time is the work of a step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from photofinish.measure.in_turns import Way

_LONG_STEP_SECONDS = 0.1
"""Steps above this time, by hand, need no extra step before them to start threads."""
_PRODUCT_SIDE, _PRODUCTS = 384, 5
"""Side of a square matrix, and number of products: about 5 ms on two cores."""


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Set torch's number of threads, and restore it."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
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


def ways_of_threads(own: Callable[[], object], step_seconds: float) -> dict[int, Way]:
    """Return the step with the training's threads, with half of them and with one."""
    threads = torch.get_num_threads()
    awake = threads

    def settle() -> None:
        nonlocal awake
        if awake != torch.get_num_threads() and step_seconds < _LONG_STEP_SECONDS:
            own()
        awake = torch.get_num_threads()

    counts = threads, max(1, threads // 2), 1
    return {count: Way(own, 1, partial(with_threads, count), settle) for count in counts}
