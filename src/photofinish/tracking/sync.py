"""Bring MLflow up to date with the results, and set links above its list of runs.

The links lead to the report, and to an experiment's CPU run beside its GPU run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from mlflow.entities import Run

from photofinish.errors import UserError, run_stage
from photofinish.files import folders_with_results, own_sweep, project_root, state_folder
from photofinish.results.records import DEVICE_LABELS
from photofinish.tracking import documents
from photofinish.tracking.documents import OURS, RunDocument
from photofinish.tracking.mirror import create_run, is_whole, mirror_run
from photofinish.tracking.store import MLFLOW_ERRORS, Process, Store, first_line, is_live, open_store

_MAX_LINKS = 20
"""MLflow takes 20,000 characters, and each link's two runs take time to find"""
_MODE = "workflowType=machine_learning"
"""without it, MLflow shows its pages for language models"""
_START_ERROR_SECONDS = 1.0
"""psutil rounds the start of a process to seconds"""


def sync_all(store: Store, names: list[str], results: Path, report: Path, *, with_models: bool = True) -> int:
    """Mirror experiments, the report, and the links above; return how many runs were created or completed."""
    count = sync_experiments(store, names, results, with_models=with_models)
    if (report / documents.REPORT_TABLE).is_file():
        count += _sync_document(store, documents.report_document(report), restored=with_models)
        _write_overview(store, names, results, report)
    if names and store.local_artifacts:  # elsewhere, other experiments may be another project's
        for run in store.find_runs(f"tags.`{documents.TAG_CURRENT}` = 'true'"):
            name = run.data.tags.get(documents.TAG_EXPERIMENT)  # the comparison has none
            if name and name not in names:  # removed from params.yaml, or renamed
                store.client.set_tag(run.info.run_id, documents.TAG_CURRENT, "false")
    return count


def sync_experiments(store: Store, names: list[str], results: Path, *, with_models: bool = True) -> int:
    """Mirror the results of these experiments; return how many runs were created or completed.

    Without models, none that MLflow lacks is made: that imports torch and custom code.
    """
    store.close_abandoned_runs()
    found = [document for name in names for document in _written(name, results)]
    if not with_models:
        found = [replace(document, learned=None) for document in found]
    return sum(_sync_training(store, document) for document in found)


def _sync_training(store: Store, document: RunDocument) -> bool:
    """Mirror a training, without its model if custom code has changed or fails."""
    try:
        return _sync_document(store, document)
    except UserError as error:
        if not document.has_custom_code:
            raise
        print(f"MLflow: {document.facts.name} goes without its model: {error}", file=sys.stderr)
        return _sync_document(store, replace(document, learned=None))


def _written(name: str, results: Path) -> list[RunDocument]:
    devices = (device for device in DEVICE_LABELS if documents.is_written(results / name / device))
    return [found for device in devices if (found := documents.training_document(name, device, results))]


def _sync_document(store: Store, document: RunDocument, *, restored: bool = True) -> bool:
    """Return True if a run had to be created or completed for the document."""
    with store.mirroring:
        found, own = _runs_of(store, document), Process.own()
        for surplus in found[1:]:  # two clones that look for a run at the same time both create one
            if not is_live(surplus):
                store.client.delete_run(surplus.info.run_id)
        run = found[0] if found else _unfinished_run_of(store, document)
        if run and is_live(run) and (not found or Process.of(run) != own):
            return False  # another process writes it
        if run and run.data.tags.get(documents.TAG_CURRENT) == "true" and is_whole(store, run, document):
            return False
        tags = {documents.TAG_RESULT: document.result, documents.TAG_PROCESS: own.as_tag()}
        if run:
            run_id = str(run.info.run_id)
            for tag, value in tags.items():
                store.client.set_tag(run_id, tag, value)
        else:
            tags |= {documents.TAG_RESTORED: "true"} if restored else {}
            run_id = create_run(store, document.facts, tags, document.started_ms)
        mirror_run(store, run_id, document)
    return True


def run_of(store: Store, document: RunDocument) -> Run | None:
    """Return the run of a document, if there is one."""
    return next(iter(_runs_of(store, document)), None)


def _runs_of(store: Store, document: RunDocument) -> list[Run]:
    found = store.find_runs(f"tags.`{documents.TAG_RESULT}` = '{document.result}'")
    return sorted(found, key=lambda run: (run.info.status != "FINISHED", run.info.run_id))


def _unfinished_run_of(store: Store, document: RunDocument) -> Run | None:
    """Return the run that the training opened but could not complete, because its server was gone."""
    tags = document.facts.tags
    if document.started_ms is None or document.ended_ms is None:
        return None
    wanted = (documents.TAG_EXPERIMENT, documents.TAG_DEVICE)
    for run in store.find_runs(" and ".join(f"tags.`{tag}` = '{tags[tag]}'" for tag in wanted)):
        process, is_done = Process.of(run), run.info.status == "FINISHED" or documents.TAG_RESTORED in run.data.tags
        if process and process.host == tags["host.name"] and not is_done:
            earliest_seconds = document.started_ms / 1000 - _START_ERROR_SECONDS
            if earliest_seconds <= process.began_at_unix_seconds <= document.ended_ms / 1000:
                return run
    return None


def _write_overview(store: Store, names: list[str], results: Path, report: Path) -> None:
    """Set the links above the list of runs, unless a user wrote a description."""
    before = store.client.get_experiment(store.experiment_id).tags.get(documents.TAG_NOTE, "")
    if before and not before.startswith(OURS):
        return
    parts = [OURS]
    if comparison := run_of(store, documents.report_document(report)):
        page = f"#/experiments/{store.experiment_id}/runs/{comparison.info.run_id}/artifacts/report/index.html"
        parts.append(f"[the report]({page}?{_MODE})")
    links = [f"[{name}]({address})" for name in names[:_MAX_LINKS] if (address := _side_by_side(store, name, results))]
    if links:
        parts.append("CPU beside GPU: " + ", ".join(links))
    text = " | ".join(parts)
    if text != before:
        store.client.set_experiment_tag(store.experiment_id, documents.TAG_NOTE, text)


def _side_by_side(store: Store, name: str, results: Path) -> str | None:
    """Return the address of MLflow's page that compares both runs, or None if there are not two."""
    found = [run_of(store, document) for document in _written(name, results)]
    runs = [run.info.run_id for run in found if run]
    if len(runs) < len(DEVICE_LABELS):
        return None
    compared, experiments = (quote(json.dumps(ids, separators=(",", ":"))) for ids in (runs, [store.experiment_id]))
    return f"#/compare-runs?runs={compared}&experiments={experiments}&{_MODE}"


def main() -> None:
    """Sync before `make ui` starts MLflow, and print the address that will show the runs."""
    argparse.ArgumentParser(prog="python -m photofinish.tracking.sync", description=__doc__).parse_args()
    count, page = 0, ""
    server = os.environ.get("MLFLOW_TRACKING_URI", "")
    try:
        for folder in folders_with_results():
            with chdir(folder):  # paths to custom code start here
                names = sorted(path.stem for path in Path("data/plan/experiments").glob("*.json"))
                store = open_store(project_root(), state_folder(), own_sweep())
                count += sync_all(store, names, Path("results"), Path("report"))
                page = page or f"#/experiments/{store.experiment_id}/runs?{_MODE}"
    except MLFLOW_ERRORS as error:
        raise UserError(f"MLflow can't be brought up to date: {first_line(error)}") from error
    print(f"MLflow is up to date; runs added or completed: {count}" if count else "MLflow is up to date")
    address = server.rstrip("/") if server.startswith("http") else f"http://127.0.0.1:{os.environ.get('PORT', 5000)}"
    print(f"The runs: {address}/{page}")


if __name__ == "__main__":
    run_stage(main)
