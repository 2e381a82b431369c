"""Run each side in a separate process, so that its settings of PyTorch are its alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.table import BARE, LIGHTNING, OURS, TUTORIAL
from benchmarks.timing import NowSeconds, Outcome, RunSide
from benchmarks.workloads import Workload, workloads
from photofinish.training.batches import Normaliser

RunWorkload = Callable[[Workload, NowSeconds], tuple[list[float], nn.Module]]
_MODULES = {OURS: "ours", BARE: "bare", TUTORIAL: "tutorial", LIGHTNING: "with_lightning"}


@dataclass(frozen=True)
class Conditions:
    """Conditions that all sides share."""

    workload: str
    quick: bool
    threads: int
    processor_time: bool


@contextmanager
def side_processes(
    sides: tuple[str, ...], conditions: Conditions, scratch: Path
) -> Iterator[dict[str, RunSide]]:
    """Start a process for each side. Each waits while another one runs."""
    with ExitStack() as stack:
        ends = {
            side: stack.enter_context(_process(side, conditions, scratch / side)) for side in sides
        }
        for side, end in ends.items():
            _answer(side, end)
        yield {side: partial(_round, side, end) for side, end in ends.items()}


@contextmanager
def _process(side: str, conditions: Conditions, scratch: Path) -> Iterator[Connection]:
    context = get_context("forkserver")
    # Torch is imported once, with its compiler, which optimizers import (seconds), and nothing set.
    context.set_forkserver_preload(["benchmarks.__main__", "torch._dynamo"])
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, side, conditions, scratch))
    process.start()
    there.close()
    try:
        yield here
    finally:
        here.close()  # at which it ends
        process.join()


def _round(side: str, end: Connection) -> Outcome:
    end.send("run")
    outcome = _answer(side, end)
    assert outcome
    return outcome


def _answer(side: str, end: Connection) -> Outcome | None:
    try:
        answer: Outcome | None = end.recv()
    except EOFError:
        raise SystemExit(f"{side} failed; above is how") from None
    return answer


def _serve(end: Connection, side: str, conditions: Conditions, scratch: Path) -> None:
    torch.set_num_threads(conditions.threads)
    scratch.mkdir(parents=True, exist_ok=True)
    (workload,) = workloads((conditions.workload,), quick=conditions.quick, scratch=scratch)
    run: RunWorkload = import_module(f"benchmarks.{_MODULES[side]}").run
    now_seconds = time.process_time if conditions.processor_time else time.perf_counter
    end.send(None)
    while True:
        try:
            end.recv()
        except EOFError:
            return
        end.send(_outcome(run, workload, now_seconds))


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
