"""download-weights: fetch the published weights that experiments start from."""

from __future__ import annotations

import argparse
from pathlib import Path

from _start import run_stage

from photofinish.config.base import read_plan
from photofinish.config.networks import WeightsPlan
from photofinish.models.weights_download import download_weights
from photofinish.stage.process import end_with_parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--plan", type=Path, required=True, help="weights of each experiment, a JSON file"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    end_with_parent()

    download_weights(read_plan(args.plan, WeightsPlan), args.out)


if __name__ == "__main__":
    run_stage(main)
