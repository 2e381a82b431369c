"""A device compared with itself, where no side can win: `python -m benchmarks.null` counts false winners of 100."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

from benchmarks import machine
from benchmarks.workloads import Workload, workloads
from photofinish.batches.batches import Normaliser, Part
from photofinish.batches.input_paths import make_batches
from photofinish.comparison.intervals import ratio_interval
from photofinish.comparison.speedups import RUN_TO_RUN
from photofinish.hardware.devices import CPU, apply_policy
from photofinish.training.trainer import Trainer

COMPARISONS = 100
EPOCHS = 10


def main() -> None:
    apply_policy(CPU, "fp32", machine.cores())
    [linear] = workloads(("mnist-linear",), quick=True, scratch=Path())
    workload = replace(linear, epochs=EPOCHS)
    pairs = [(_epoch_seconds(workload), _epoch_seconds(workload)) for _ in range(COMPARISONS)]
    for margin in (1.0, RUN_TO_RUN):
        winners = sum(_names_a_winner(once, again, margin) for once, again in pairs)
        print(f"with {margin - 1:.0%} for what a run may be off: {winners} false winners of {COMPARISONS}")
    off = statistics.stdev(statistics.median(once) / statistics.median(again) for once, again in pairs)
    print(f"the ratio's standard deviation: {off:.3f}; an epoch takes {statistics.median(pairs[0][0]) * 1e3:.1f} ms")


def _epoch_seconds(workload: Workload) -> list[float]:
    normalise = Normaliser(workload.data.mean, workload.data.std)
    own = workload.data
    parts = (
        Part("train", own.train.images, own.train.labels, normalise),
        Part("validation", own.validation.images, own.validation.labels, normalise),
    )
    training, validation = (make_batches(workload.experiment(), part, CPU) for part in parts)
    trainer = Trainer(workload.experiment(), workload.network(), training, validation, CPU)
    trainer.warm_up()
    return [timing.training_seconds for timing in trainer.train(lambda _metrics, _timing: None).timings]


def _names_a_winner(once: list[float], again: list[float], margin: float) -> bool:
    interval = ratio_interval(once, again)
    assert interval
    return not interval[0] / margin <= 1 <= interval[1] * margin


if __name__ == "__main__":
    main()
