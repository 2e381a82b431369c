"""What stands above MLflow's list of runs: links to the report, and to the CPU's run of an experiment beside the GPU's.

MLflow's own way there is to group the runs by a tag, tick two and press a button; a description may hold links.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

from photofinish.results.records import DEVICE_LABELS
from photofinish.tracking import documents
from photofinish.tracking.mirror import find_runs
from photofinish.tracking.store import Store

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
