"""One report over the project and its sweeps, of the experiments that have results: `make overview`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from photofinish.comparing.pairs import Pair, paired, read_results
from photofinish.errors import MistakeError, run_stage
from photofinish.files import folders_with_results
from photofinish.params.base import read_plan
from photofinish.params.compare import ComparePlan
from photofinish.report.report import write_report
from photofinish.results import records
from photofinish.results.references import read_references


def pairs_of(folder: Path) -> list[Pair]:
    """The pairs of the project's folder or a sweep's; one of a sweep has its name in front of the experiment's."""
    plan, results = folder / "data" / "plan" / "compare.json", folder / "results"
    if not plan.is_file():
        return []
    settings = read_plan(plan, ComparePlan)
    evaluated = [
        name for name in settings.experiments if (results / name / records.EVALUATED / records.EVALUATION).is_file()
    ]
    named = [
        replace(result, experiment=f"{folder.name}.{result.experiment}" if folder.name else result.experiment)
        for result in read_results(evaluated, results)
    ]
    return paired(named, settings, read_references(Path("reference"), settings.references))


def main() -> None:
    """`make overview`."""
    parser = argparse.ArgumentParser(prog="python -m photofinish.report.overview", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("sweeps/report"))
    args = parser.parse_args()
    pairs = [pair for folder in folders_with_results() for pair in pairs_of(folder)]
    if not pairs:
        raise MistakeError("neither the project nor a folder in sweeps/ has results: run `dvc repro` there first")
    write_report(pairs, args.out)
    print(f"{len(pairs)} experiments: {args.out / 'index.html'}")


if __name__ == "__main__":
    run_stage(main)
