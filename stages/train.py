"""train-cpu and train-gpu: the same trainer, with the device as the only difference."""

from __future__ import annotations

import argparse
from pathlib import Path

from _start import run_stage

from photofinish.runs.stage import train
from photofinish.stage.process import end_with_parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "gpu"], required=True)
    parser.add_argument(
        "--experiment", type=Path, required=True, help="the experiment's plan, a JSON file"
    )
    parser.add_argument(
        "--host", type=Path, required=True, help="the device's fingerprint, a JSON file"
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder of the packed split")
    parser.add_argument(
        "--weights",
        type=Path,
        help="the folder of the published weights, for a model that names some",
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--budget", type=Path, help="prices, and what a training may cost: a JSON file"
    )
    args = parser.parse_args()
    end_with_parent()
    train(args.device, args.experiment, args.host, args.data, args.weights, args.out, args.budget)


if __name__ == "__main__":
    run_stage(main)
