"""surroundings: write down what the plan follows from besides params.yaml, so that DVC sees when it changes."""

from __future__ import annotations

import argparse
from pathlib import Path

from photofinish.errors import run_stage
from photofinish.processes import quick_imports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=Path, required=True)
    parser.add_argument("--stages", type=Path, required=True, help="the scripts of the stages")
    parser.add_argument("--references", type=Path, required=True, help="the folder of other machines' records")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with quick_imports():
        from photofinish.files import write_json_atomically
        from photofinish.surroundings import surroundings

    write_json_atomically(args.out, surroundings(args.params, args.stages, args.references))


if __name__ == "__main__":
    run_stage(main)
