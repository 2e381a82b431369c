"""split: pack one data set's images, and divide them into training, validation and test parts."""

from __future__ import annotations

import argparse
from pathlib import Path

from photofinish.errors import run_stage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", type=Path, required=True, help="the data set's plan, a JSON file")
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    from photofinish.datasets.sources import read_raw
    from photofinish.datasets.split import split
    from photofinish.params import Dataset
    from photofinish.plan_reader import read_plan

    dataset = read_plan(args.dataset, Dataset)
    manifest = split(dataset, read_raw(dataset, args.raw), args.out)
    print(", ".join(f"{part} {count}" for part, count in manifest.counts.items()))


if __name__ == "__main__":
    run_stage(main)
