"""measure-cpu and measure-gpu: measure steps of an experiment, and print how long it trains."""

from __future__ import annotations

import argparse
from pathlib import Path

from _start import run_stage, working

from photofinish.config.base import read_plan
from photofinish.config.experiment import ExperimentPlan
from photofinish.measure.measure_job import measure_job
from photofinish.stage.process import end_with_parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "gpu"], required=True)
    parser.add_argument(
        "--steps", type=Path, required=True, help="settings on which a step depends, a JSON file"
    )
    parser.add_argument(
        "--job", type=Path, required=True, help="the experiment's plan, for its length"
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
        "--seconds", type=float, help="about how long to measure (5; 15 for a job of ten minutes)"
    )
    args = parser.parse_args()
    end_with_parent()
    job = read_plan(args.job, ExperimentPlan)
    with working(f"{args.steps.stem} on {args.device}: measuring"):
        measured = measure_job(
            args.device,
            args.steps,
            args.host,
            args.data,
            args.weights,
            args.out,
            args.seconds,
            job.epochs,
        )
    if measured:  # imported now, because imports before the first step are part of the start-up
        from photofinish.reporting.extrapolated import job_line

        print(job_line(measured, job))


if __name__ == "__main__":
    run_stage(main)
