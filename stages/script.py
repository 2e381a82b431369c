"""script-cpu and script-gpu: run a script with its own training loop on one device."""

from __future__ import annotations

import argparse
from pathlib import Path

from _start import run_stage

from photofinish.scripts.script_stage import run_script
from photofinish.stage.process import end_with_parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "gpu"], required=True)
    parser.add_argument("--script", type=Path, required=True, help="its plan, a JSON file")
    parser.add_argument(
        "--host", type=Path, required=True, help="the device's fingerprint, a JSON file"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    end_with_parent()
    run_script(args.device, args.script, args.host, args.out)


if __name__ == "__main__":
    run_stage(main)
