"""Time the trainer beside the tutorial's loop and a bare loop."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import machine
from benchmarks.sides import Conditions, side_processes
from benchmarks.table import OURS, Row, rows_of, write
from benchmarks.timing import Outcome, alternate
from benchmarks.workloads import NAMES, Workload, workloads

LOSSES_AGREE = 0.02
"""Relative tolerance: the sides add up in other orders."""


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for workload in workloads(tuple(options.only), quick=options.quick, scratch=Path(scratch)):
            started_seconds = time.perf_counter()
            conditions = Conditions(
                workload.name, options.quick, options.threads, options.processor_time
            )
            with side_processes(conditions, Path(scratch)) as runs:
                outcomes = alternate(runs, options.rounds)
            _refuse_nonsense(workload, outcomes)
            rows += rows_of(workload, outcomes)
            print(f"{workload.title}: {time.perf_counter() - started_seconds:.0f} s", flush=True)
            clock = {"clock": "processor time" if options.processor_time else "wall"}
            write(rows, clock | machine.describe(options.threads), options.out)
    print((options.out / "benchmarks.md").read_text(encoding="utf-8"))
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer images and rounds: to see that all runs"
    )
    parser.add_argument(
        "--rounds", type=int, help="how often each side is run (11, or 2 with --quick)"
    )
    parser.add_argument(
        "--threads", type=int, default=machine.cores(), help="of every side (all cores)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=list(NAMES), help="these rows of the table"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results"), help="folder for table and plot"
    )
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="time what the process computes, not waits: for a busy machine",
    )
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (2 if options.quick else 11)
    if options.processor_time and options.threads != 1:
        parser.error(
            "--processor-time needs --threads 1: "
            "it is the sum over all threads, those that wait included"
        )
    return options


def _refuse_nonsense(workload: Workload, outcomes: dict[str, list[Outcome]]) -> None:
    """Exit if a side did other work than the rest."""
    losses = {
        side: [outcome.validation_loss for outcome in measured]
        for side, measured in outcomes.items()
    }
    expected = losses[OURS][0]
    for side, its in losses.items():
        if not all(math.isclose(loss, expected, rel_tol=LOSSES_AGREE) for loss in its):
            raise SystemExit(
                f"{workload.name}: {side} ends with losses {its}, photofinish with {expected}"
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
