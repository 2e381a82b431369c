"""Run each side in a separate process, so that its settings of PyTorch are its alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.table import BARE, OURS, TUTORIAL
from benchmarks.timing import NowSeconds, Outcome, RunSide
from benchmarks.workloads import Workload, workloads
from photofinish.training.batches import Normaliser

RunWorkload = Callable[[Workload, NowSeconds], tuple[list[float], nn.Module]]
_MODULES = {OURS: "ours", BARE: "bare", TUTORIAL: "tutorial"}
_of_this_process: list[RunSide] = []


@dataclass(frozen=True)
class Conditions:
    """Conditions that all sides share."""

    workload: str
    quick: bool
    threads: int
    processor_time: bool


@contextmanager
def side_processes(conditions: Conditions, scratch: Path) -> Iterator[dict[str, RunSide]]:
    """Start a process for each side. Each waits while another one runs."""
    context = get_context("forkserver")
    # Torch is imported once, with its compiler, which optimizers import (seconds), and nothing set.
    context.set_forkserver_preload(["benchmarks.__main__", "torch._dynamo"])
    with ExitStack() as stack:
        sides: dict[str, RunSide] = {}
        for side in _MODULES:
            setup = side, conditions, scratch / side
            pool = stack.enter_context(ProcessPoolExecutor(1, context, _set_up, setup))
            pool.submit(len, ()).result()  # starts it
            sides[side] = partial(_round, pool)
        yield sides


def _round(pool: ProcessPoolExecutor) -> Outcome:
    return pool.submit(_run).result()


def _set_up(side: str, conditions: Conditions, scratch: Path) -> None:
    torch.set_num_threads(conditions.threads)
    scratch.mkdir(parents=True, exist_ok=True)
    (workload,) = workloads((conditions.workload,), quick=conditions.quick, scratch=scratch)
    run: RunWorkload = import_module(f"benchmarks.{_MODULES[side]}").run
    now_seconds = time.process_time if conditions.processor_time else time.perf_counter
    _of_this_process.append(partial(_outcome, run, workload, now_seconds))


def _run() -> Outcome:
    (run,) = _of_this_process
    return run()


def _outcome(run: RunWorkload, workload: Workload, now_seconds: NowSeconds) -> Outcome:
    torch.manual_seed(0)
    epoch_seconds, network = run(workload, now_seconds)
    timed = epoch_seconds[workload.untimed_epochs :]
    return Outcome(sum(timed) / len(timed), _validation_loss(network, workload))


@torch.no_grad()
def _validation_loss(network: nn.Module, workload: Workload) -> float:
    normalise = Normaliser(workload.data.mean, workload.data.std)
    part = workload.data.validation
    outputs = network.eval()(normalise(torch.from_numpy(part.images.copy())))
    return cross_entropy(outputs, torch.from_numpy(part.labels)).item()
