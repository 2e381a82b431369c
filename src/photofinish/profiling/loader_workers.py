"""Time how a data loader's worker processes start, load and share the cores."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psutil
import torch
from threadpoolctl import threadpool_limits
from torch.utils.data import DataLoader

from photofinish.results.measurements import TriedWorkers
from photofinish.training.input_paths import LoaderBatches

_ROUNDS = 4
"""Number of batches for each worker. The first batches are not timed."""
_BUSY_SHARE = 0.1
LEAST_TIMEOUT_SECONDS, _TIMEOUT_BATCHES = 30.0, 10
"""Time to wait for a batch, at least, as workers may import, and in batches of one process."""


def numbers_of_workers(cores: int, own: int) -> list[int]:
    """Return 1, 2, 4 and so on up to the cores, and the training's own number."""
    doubled = {2**power for power in range(cores.bit_length())}
    return sorted({*doubled, cores, own} - {0})


def timeout_for(batch_seconds: float) -> float:
    """Return how long to wait for a batch that takes one process so long. Workers may hang."""
    return max(LEAST_TIMEOUT_SECONDS, _TIMEOUT_BATCHES * batch_seconds)


def may_fork() -> bool:
    """Return True if workers start in another way than by fork, which Linux allows."""
    return sys.platform == "linux" and multiprocessing.get_start_method() != "fork"


def try_workers(
    batches: LoaderBatches,
    workers: int,
    size: int,
    timeout_seconds: float,
    started: Callable[[int], None] | None = None,
    start_method: str | None = None,
) -> TriedWorkers | None:
    """Load some batches of at most `size` samples. Return None if an epoch has too few samples."""
    count = _ROUNDS * workers
    size = min(size, batches.image_count // count)
    if size == 0:
        return None
    others = _children()
    loader = batches.with_workers(workers, size, started, timeout_seconds, start_method)
    with closing(loader.first_batches(count)) as loaded:  # at the end, the workers end
        first_seconds, batch_seconds = _time_batches(loaded, workers, count)
        processes = [psutil.Process(pid) for pid in _children() - others]
        return TriedWorkers(
            workers=workers,
            batch_seconds=batch_seconds * batches.batch_size / size,
            start_seconds=max(0.0, first_seconds - workers * batch_seconds),
            cpu_seconds=tuple(sum(process.cpu_times()[:2]) for process in processes),
            busy_threads=tuple(map(busy_threads, processes)),
            memory_bytes=tuple(process.memory_full_info().uss for process in processes),
        )


def _time_batches(loaded: Iterator[Any], workers: int, count: int) -> tuple[float, float]:
    """Return the time to the first batch, and the mean time of a batch after the first round."""
    began_seconds = time.perf_counter()
    next(loaded)
    first_seconds = time.perf_counter() - began_seconds
    for _ in range(workers - 1):
        next(loaded)
    began_seconds = time.perf_counter()
    for _ in range(count - workers):
        next(loaded)
    return first_seconds, (time.perf_counter() - began_seconds) / (count - workers)


def limit_threads(_worker: int) -> None:
    """Let a worker compute with one thread, also in OpenBLAS, OpenMP and OpenCV."""
    threadpool_limits(1)
    if opencv := sys.modules.get("cv2"):
        opencv.setNumThreads(0)


def _children() -> set[int]:
    return {process.pid for process in multiprocessing.active_children() if process.pid}


def busy_threads(process: psutil.Process) -> int:
    """Return how many threads of a process compute."""
    seconds = [sum(thread[1:]) for thread in process.threads()]
    return sum(each > _BUSY_SHARE * sum(seconds) for each in seconds)


def way_between_processes(batches: LoaderBatches, size: int, timeout_seconds: float) -> float:
    """Return the time to send a batch from a worker to this process, without loading samples."""
    sample, collate = batches.dataset[0, None, 0], batches.dataset.collate
    same: Any = [sample] * (_ROUNDS * size)
    loader = DataLoader(
        same,
        size,
        num_workers=1,
        collate_fn=collate,
        timeout=timeout_seconds,
        generator=torch.Generator(),
    )
    _, batch_seconds = _time_batches(iter(loader), 1, _ROUNDS)
    began_seconds = time.perf_counter()
    collate([sample] * size)
    collating_seconds = time.perf_counter() - began_seconds
    return max(0.0, batch_seconds - collating_seconds) * batches.batch_size / size
