"""Time the trainer beside the tutorial's loop, Lightning and a bare loop: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks import bare, machine, ours, tutorial
from benchmarks.table import BARE, LIGHTNING, OURS, TUTORIAL, Row, rows_of, write
from benchmarks.timing import NowSeconds, Outcome, RunSide, alternate
from benchmarks.workloads import NAMES, Workload, workloads
from photofinish.batches.batches import Normaliser
from photofinish.hardware.devices import CPU, apply_policy

RunWorkload = Callable[[Workload, NowSeconds], tuple[list[float], nn.Module]]
LOSSES_AGREE = 0.02
"""relative; the sides add up in other orders, which a few hundred steps make more of"""


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    apply_policy(CPU, "fp32", options.threads)
    sides = _sides()
    now_seconds = time.process_time if options.processor_time else time.perf_counter
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for workload in workloads(tuple(options.only), quick=options.quick, scratch=Path(scratch)):
            started_seconds = time.perf_counter()
            outcomes = alternate(
                {name: _timed(run, workload, now_seconds) for name, run in sides.items()}, options.rounds
            )
            _refuse_nonsense(workload, outcomes)
            rows += rows_of(workload, outcomes)
            print(f"{workload.title}: {time.perf_counter() - started_seconds:.0f} s", flush=True)
            clock = {"clock": "processor time" if options.processor_time else "wall"}
            write(rows, clock | machine.describe(options.threads), options.out)
    print((options.out / "benchmarks.md").read_text(encoding="utf-8"))
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer images and rounds: to see that all runs")
    parser.add_argument("--rounds", type=int, help="how often each side is run (5, or 2 with --quick)")
    parser.add_argument("--threads", type=int, default=machine.cores(), help="of every side (all cores)")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), help="these rows of the table")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder for table and plot")
    parser.add_argument(
        "--processor-time", action="store_true", help="time what the process computes, not waits: for a busy machine"
    )
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (2 if options.quick else 5)
    if options.processor_time and options.threads != 1:
        parser.error("--processor-time needs --threads 1: it is the sum over all threads, those that wait included")
    return options


def _sides() -> dict[str, RunWorkload]:
    sides: dict[str, RunWorkload] = {OURS: ours.run, BARE: bare.run, TUTORIAL: tutorial.run}
    if find_spec("lightning"):
        from benchmarks import with_lightning

        sides[LIGHTNING] = with_lightning.run
    else:
        print("Lightning is not installed, its rows are left out (`make bench` installs it)", file=sys.stderr)
    return sides


def _timed(run: RunWorkload, workload: Workload, now_seconds: NowSeconds) -> RunSide:
    def one_round() -> Outcome:
        torch.manual_seed(0)
        epoch_seconds, network = run(workload, now_seconds)
        timed = epoch_seconds[workload.untimed_epochs :]
        return Outcome(sum(timed) / len(timed), _validation_loss(network, workload))

    return one_round


@torch.no_grad()
def _validation_loss(network: nn.Module, workload: Workload) -> float:
    normalise = Normaliser(workload.data.mean, workload.data.std)
    part = workload.data.validation
    outputs = network.eval()(normalise(torch.from_numpy(part.images.copy())))
    return cross_entropy(outputs, torch.from_numpy(part.labels)).item()


def _refuse_nonsense(workload: Workload, outcomes: dict[str, list[Outcome]]) -> None:
    """A side that did other work than the rest proves nothing."""
    losses = {side: [outcome.validation_loss for outcome in measured] for side, measured in outcomes.items()}
    expected = losses[OURS][0]
    for side, its in losses.items():
        if not all(math.isclose(loss, expected, rel_tol=LOSSES_AGREE) for loss in its):
            raise SystemExit(f"{workload.name}: {side} ends with losses {its}, photofinish with {expected}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
