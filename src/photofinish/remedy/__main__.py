"""Try the remedy that the results on disk suggest for an experiment; nothing of theirs is touched."""

from __future__ import annotations

import argparse
from pathlib import Path

from photofinish.errors import run_stage
from photofinish.processes.lifeline import end_on_sigterm
from photofinish.processes.quick_imports import quick_imports


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m photofinish.remedy", description=__doc__)
    parser.add_argument("experiment", help="its name in params.yaml")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    args = parser.parse_args()
    end_on_sigterm()
    with quick_imports():
        from photofinish.remedy.comparing import told
        from photofinish.remedy.prescription import prescribe
        from photofinish.remedy.trial import try_out

    prescribed = prescribe(args.experiment, args.device, Path("params.yaml"), Path("results"))
    print(told(prescribed, try_out(prescribed)))


if __name__ == "__main__":
    run_stage(main)
