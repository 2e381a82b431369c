"""download: fetch the raw files of one data set."""

from __future__ import annotations

import argparse
from pathlib import Path

from _start import run_stage

from photofinish.config.base import read_plan
from photofinish.config.datasets import DatasetPlan
from photofinish.data.sources import download
from photofinish.stage.process import end_with_parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dataset", type=Path, required=True, help="the data set's plan, a JSON file"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    end_with_parent()

    download(read_plan(args.dataset, DatasetPlan), args.out)


if __name__ == "__main__":
    run_stage(main)
