"""evaluate: compute test metrics of the network of each device, on the CPU."""

from __future__ import annotations

import argparse
from pathlib import Path

from _start import run_stage, working

from photofinish.config.base import read_plan
from photofinish.config.losses_and_metrics import MetricsPlan
from photofinish.custom.imports import check_code_unchanged
from photofinish.data.packed import PackedSplit
from photofinish.evaluation.evaluate import evaluate, write_evaluation
from photofinish.results.records import MODEL
from photofinish.results.trained import DEVICE_LABELS
from photofinish.stage.process import end_with_parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="the experiment's name")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of the packed split")
    parser.add_argument(
        "--metrics", type=Path, required=True, help="plan of its custom metrics, a JSON file"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    end_with_parent()

    learned = {device: args.results / args.name / device / MODEL for device in DEVICE_LABELS}
    plan = read_plan(args.metrics, MetricsPlan)
    check_code_unchanged(plan.custom_code)
    with working(f"{args.name}: evaluating"):
        judged = evaluate(args.name, learned, PackedSplit(args.data), plan.metrics)
        write_evaluation(judged, args.out)


if __name__ == "__main__":
    run_stage(main)
