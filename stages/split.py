"""split: divide one data set into training, validation and test parts, and pack them."""

from __future__ import annotations

import argparse
from pathlib import Path

from _start import run_stage

from photofinish.config.base import read_plan
from photofinish.config.datasets import DatasetPlan
from photofinish.data.split import read_raw, split
from photofinish.stage.process import end_with_parent
from photofinish.wording import all_or_some


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dataset", type=Path, required=True, help="the data set's plan, a JSON file"
    )
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    end_with_parent()

    plan = read_plan(args.dataset, DatasetPlan)
    manifest = split(plan, read_raw(plan, args.raw), args.out)
    counts = ", ".join(f"{part} {count:,}" for part, count in manifest.counts.items())
    names = f"{len(manifest.class_names)} {manifest.task}: {all_or_some(manifest.class_names)}"
    print(f"{args.dataset.stem}: {counts}; {names}")


if __name__ == "__main__":
    run_stage(main)
