"""Bring MLflow up to date with the results on disk: whatever it lacks is rebuilt from the files, exactly once."""

from __future__ import annotations

import argparse
from pathlib import Path

from photofinish.errors import UserError, run_stage
from photofinish.provenance import project_root, state_folder
from photofinish.results.records import DEVICE_LABELS, DeviceLabel
from photofinish.tracking import documents
from photofinish.tracking.mirror import (
    close_abandoned_runs,
    create_run,
    find_runs,
    find_unfinished_run,
    is_complete,
    is_live,
    mirror_run,
)
from photofinish.tracking.overview import write_overview
from photofinish.tracking.store import MLFLOW_ERRORS, Store, first_line, open_store


def sync_experiments(store: Store, names: list[str], results: Path) -> int:
    """Mirror what these experiments left on disk; how many runs were created or completed."""
    close_abandoned_runs(store)
    return sum(sync_result(store, name, device, results) for name in names for device in DEVICE_LABELS)


def sync_result(store: Store, name: str, device: DeviceLabel, results: Path) -> bool:
    if not documents.is_written(results / name / device):
        return False
    document = documents.training_document(name, device, results)
    return _sync_document(store, document, restored=document.learned is not None)  # else there was nothing to tell live


def sync_report(store: Store, report: Path, *, restored: bool = True) -> bool:
    """The comparison has a run of its own, with the report as its artifact."""
    if not (report / documents.REPORT_TABLE).is_file():
        return False
    return _sync_document(store, documents.report_document(report), restored=restored)


def sync_all(store: Store, names: list[str], results: Path, report: Path, *, restored: bool = True) -> int:
    """Experiments, report, and what stands above them."""
    count = sync_experiments(store, names, results) + sync_report(store, report, restored=restored)
    if (report / documents.REPORT_TABLE).is_file():
        write_overview(store, names, results, report)
    return count


def _sync_document(store: Store, document: documents.RunDocument, *, restored: bool = True) -> bool:
    with store.mirroring:
        found = find_runs(store, f"tags.`{documents.TAG_RESULT}` = '{document.result}'")
        run = found[0] if found else find_unfinished_run(store, document)
        if run and (is_live(run) or is_complete(store, run, document)):
            return False
        if run:
            run_id = str(run.info.run_id)
        else:
            tags = {documents.TAG_RESULT: document.result} | ({documents.TAG_RESTORED: "true"} if restored else {})
            run_id = create_run(store, document.facts, tags, document.started_ms)
        mirror_run(store, run_id, document)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m photofinish.tracking.sync", description=__doc__)
    parser.add_argument("--plan", type=Path, default=Path("data/plan"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--report", type=Path, default=Path("report"))
    args = parser.parse_args()
    names = sorted(path.stem for path in (args.plan / "experiments").glob("*.json"))
    try:
        store = open_store(project_root(), state_folder())
        count = sync_all(store, names, args.results, args.report)
    except MLFLOW_ERRORS as error:
        raise UserError(f"MLflow can't be brought up to date: {first_line(error)}") from error
    print(f"MLflow is up to date; {count} runs were added or completed" if count else "MLflow is up to date")


if __name__ == "__main__":
    run_stage(main)
