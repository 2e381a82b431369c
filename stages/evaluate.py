"""evaluate: test metrics of what each device learned, all computed on the CPU."""

from __future__ import annotations

import argparse
from pathlib import Path

from _start import run_stage

from photofinish.processes import end_on_sigterm, end_with_parent, quick_imports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="the experiment's name")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the packed split")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    end_on_sigterm()
    end_with_parent()
    with quick_imports():
        from photofinish.data.packed import PackedSplit
        from photofinish.results.records import DEVICE_LABELS, LEARNED
        from photofinish.runs.evaluation import evaluate, write_evaluation

    learned = {device: args.results / args.name / device / LEARNED for device in DEVICE_LABELS}
    judged = evaluate(args.name, learned, PackedSplit(args.data))
    write_evaluation(judged, args.out)  # of which `compare` tells MLflow, of all experiments at once
    for device, scores in judged.evaluation.devices.items():
        print(f"{args.name} on {device}: test accuracy {scores.test_accuracy:.2%}, loss {scores.test_loss:.4f}")


if __name__ == "__main__":
    run_stage(main)
