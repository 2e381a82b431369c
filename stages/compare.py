"""compare: compare the devices, write the report, and bring MLflow up to date."""

from __future__ import annotations

import argparse
from pathlib import Path

from _start import run_stage, working

from photofinish.answer.comparison import compare
from photofinish.answer.record import answer_record
from photofinish.config.base import read_plan
from photofinish.config.compare import ComparePlan
from photofinish.reporting.report import write_for_dvc, write_report
from photofinish.results.measured_jobs import read_script
from photofinish.results.references import read_references
from photofinish.results.training_jobs import read_experiment, with_references
from photofinish.stage.process import end_with_parent
from photofinish.tracking.client import Tracker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--plan", type=Path, required=True, help="which experiments, and how: a JSON file"
    )
    parser.add_argument(
        "--references", type=Path, required=True, help="the folder of other machines' records"
    )
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--metrics", type=Path, required=True, help="the folder for DVC's metrics")
    parser.add_argument(
        "--plots", type=Path, required=True, help="the folder for the figures of DVC's plots"
    )
    args = parser.parse_args()
    end_with_parent()

    with working("comparing"), Tracker() as tracker:
        plan = read_plan(args.plan, ComparePlan)
        references = read_references(args.references, plan.references)
        jobs = [read_experiment(name, args.results / name) for name in plan.experiments]
        pairs = [compare(pair, plan) for pair in with_references(jobs, references)]
        runs = [read_script(script, args.results / script.name) for script in plan.scripts]
        scripts = [compare(pair, plan) for pair in runs]
        record = answer_record([*pairs, *scripts])
        write_report(record, args.out)
        write_for_dvc(record, args.out, args.metrics, args.plots)
        names = [*plan.experiments, *(script.name for script in plan.scripts)]
        tracker.sync(names, args.results, args.out)
    print(f"The report: {args.out / 'index.html'}. `photofinish report` prints the answers")


if __name__ == "__main__":
    run_stage(main)
