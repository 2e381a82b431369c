"""plan: check params.yaml and write a file for each experiment, data set, device and stage."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from _start import run_stage

from photofinish.config.base import read_plan
from photofinish.config.loader import read_params
from photofinish.machine.fingerprint import GpuTarget, read_machines
from photofinish.planning.checks import check_custom_code_calls, check_paths
from photofinish.planning.plan import write_plan
from photofinish.wording import counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--out", type=Path, default=Path("data/plan"))
    parser.add_argument("--stages", type=Path, default=Path("stages"), help="stages' scripts")
    parser.add_argument(
        "--references", type=Path, default=Path("reference"), help="records of other machines"
    )
    parser.add_argument(
        "--machines", type=Path, default=Path("machines"), help="facts of other machines"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="results of scripts")
    args = parser.parse_args()
    params = read_params(args.params, check_paths, check_custom_code_calls)
    args.references.mkdir(exist_ok=True)  # `compare` depends on it, and Git keeps no empty folder
    machines = read_machines(params.devices, args.machines)
    write_plan(params, args.out, args.stages, machines, args.results)
    gpu = read_plan(args.out / "hosts/gpu.json", GpuTarget)
    if "PHOTOFINISH_QUIET" not in os.environ:
        why = gpu.missing
        if "DVC_STAGE" in os.environ:
            why = "no usable GPU; `photofinish plan` says why"
        jobs = counted(len(params.experiments) + len(params.scripts), "job")
        gpus = [f" and the {each.name}" for each in gpu.accelerators[:1]] or [f" only ({why})"]
        print(f"{jobs}, on this CPU{gpus[0]}.")


if __name__ == "__main__":
    run_stage(main)
