"""What stands above MLflow's list of runs: links to the report, and to the CPU's run of an experiment beside the GPU's.

MLflow's own way there is to group the runs by a tag, tick two and press a button; a description may hold links.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from urllib.parse import quote

from photofinish.errors import UserError, run_stage
from photofinish.files import project_root, state_folder
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
from photofinish.tracking.store import MLFLOW_ERRORS, Store, first_line, open_store

_OURS = "**photofinish**"
"""how the description begins; one that a user wrote is left alone"""

_MODE = "workflowType=machine_learning"
"""else MLflow shows what it has for language models around it"""


def write_overview(store: Store, names: list[str], results: Path, report: Path) -> None:
    """Of the results as they are now: the runs are found by what they hold."""
    there = store.client.get_experiment(store.experiment_id).tags.get(documents.TAG_NOTE, "")
    if there and not there.startswith(_OURS):
        return
    text = _text(store, names, results, report)
    if text != there:
        store.client.set_experiment_tag(store.experiment_id, documents.TAG_NOTE, text)


def _text(store: Store, names: list[str], results: Path, report: Path) -> str:
    parts = [_OURS]
    comparison = _run_of(store, documents.report_document(report).result)
    if comparison:
        page = f"#/experiments/{store.experiment_id}/runs/{comparison}/artifacts/report/index.html"
        parts.append(f"[the report]({page}?{_MODE})")
    links = [f"[{name}]({address})" for name in names if (address := _side_by_side(store, name, results))]
    if links:
        parts.append("CPU beside GPU: " + ", ".join(links))
    return " | ".join(parts)


def _side_by_side(store: Store, name: str, results: Path) -> str | None:
    """MLflow's page that compares both runs; none where a device was unavailable."""
    written = [device for device in DEVICE_LABELS if documents.is_written(results / name / device)]
    found = [documents.training_document(name, device, results) for device in written]
    runs = [_run_of(store, document.result) for document in found if document.learned]
    if len(runs) < len(DEVICE_LABELS) or None in runs:
        return None
    return f"#/compare-runs?runs={_query(runs)}&experiments={_query([store.experiment_id])}&{_MODE}"


def _run_of(store: Store, result: str) -> str | None:
    runs = find_runs(store, f"tags.`{documents.TAG_RESULT}` = '{result}'")
    return str(runs[0].info.run_id) if runs else None


def _query(values: list[str | None]) -> str:
    return quote(json.dumps(values, separators=(",", ":")))


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
