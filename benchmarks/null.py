"""Compare a device with itself: `python -m benchmarks.null` counts false winners of 100.

Load is monitored as in a stage, so that on a busy machine fewer winners are named.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import machine
from benchmarks.workloads import Workload, workloads
from photofinish.answer.fair_cpu import BUSY
from photofinish.answer.speedups import ratio_interval
from photofinish.answer.times import RUN_TO_RUN
from photofinish.machine.load import LoadMonitor, load_warnings, nvidia_gpu_state
from photofinish.training.torch_device import CPU, configure_torch

COMPARISONS = 100
EPOCHS = 10


@dataclass(frozen=True)
class Run:
    epoch_seconds: list[float]
    is_doubtful: bool


def main() -> None:
    configure_torch(CPU, "fp32", machine.cores())
    [linear] = workloads(("mnist-linear",), quick=True, scratch=Path())
    workload = replace(linear, epochs=EPOCHS)
    pairs = [(_run(workload), _run(workload)) for _ in range(COMPARISONS)]
    busy = sum(once.is_doubtful or again.is_doubtful for once, again in pairs)
    off = statistics.stdev(
        statistics.median(once.epoch_seconds) / statistics.median(again.epoch_seconds)
        for once, again in pairs
    )
    epoch_seconds = statistics.median(pairs[0][0].epoch_seconds)
    print(
        f"the ratio's standard deviation: {off:.3f}; "
        f"an epoch takes {epoch_seconds * 1e3:.1f} ms; busy: {busy}"
    )
    for what, margin in (
        ("by the epochs alone", 1.0),
        (f"with {RUN_TO_RUN - 1:.0%} for a whole run", RUN_TO_RUN),
    ):
        print(f"{what}: {_count_winners(pairs, margin, margin)} false winners of {COMPARISONS}")
    reported = _count_winners(pairs, RUN_TO_RUN, BUSY)
    print(f"as the report has it: {reported} false winners of {COMPARISONS}")


def _count_winners(pairs: list[tuple[Run, Run]], margin: float, busy_margin: float) -> int:
    return sum(
        _names_a_winner(
            once, again, busy_margin if once.is_doubtful or again.is_doubtful else margin
        )
        for once, again in pairs
    )


def _run(workload: Workload) -> Run:
    trainer = workload.trainer()
    trainer.prepare()
    watch = LoadMonitor(nvidia_gpu_state(None))
    for metrics, _timing in trainer.epochs():
        watch.epoch_ended(1, metrics.epoch)
    watch.training_ended()
    return Run(
        [timing.training_seconds for timing in trainer.progress.timings],
        bool(load_warnings(watch.windows)),
    )


def _names_a_winner(once: Run, again: Run, margin: float) -> bool:
    interval = ratio_interval(once.epoch_seconds, again.epoch_seconds)
    assert interval
    return not interval[0] / margin <= 1 <= interval[1] * margin


if __name__ == "__main__":
    main()
