"""Tries an experiment's metrics before its training (`python -m photofinish.runs.metrics_trial`)."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from photofinish.data.packed import PackedSplit
from photofinish.errors import run_stage
from photofinish.params.base import read_plan
from photofinish.params.experiment import Metrics, MetricsPlan
from photofinish.runs.scores import further_scores

_MOST_ITEMS = 1000


def try_metrics(metrics: Metrics, split: PackedSplit) -> None:
    """Each must make a number of targets as they are and of outputs as they may be; those of the validation part, and
    made-up ones."""
    targets, task = torch.from_numpy(split.labels("validation")), split.manifest.task
    targets = targets[:: -(-len(targets) // _MOST_ITEMS)]
    outputs = targets.roll(1, dims=0)
    if task != "values":
        generator = torch.Generator().manual_seed(0)
        outputs = torch.randn(len(targets), len(split.manifest.class_names), generator=generator)
    further_scores(metrics, task, outputs.double(), targets)


def main() -> None:
    """Try those of a plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path, help="of an experiment's metrics, a JSON file")
    parser.add_argument("data", type=Path, help="the folder of the packed split")
    args = parser.parse_args()
    try_metrics(read_plan(args.plan, MetricsPlan).metrics, PackedSplit(args.data))


if __name__ == "__main__":
    run_stage(main)
