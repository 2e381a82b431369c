"""Promote an experiment's result: MLflow's registry gets its model, with all that it was made from, and an alias to it.

`python -m photofinish.tracking.promotion NAME`, as `make promote` does.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from mlflow.entities import Run

from photofinish.errors import MistakeError, UserError, run_stage
from photofinish.files import project_root, state_folder
from photofinish.params.base import is_name
from photofinish.params.reader import read_params, refuse_unknown
from photofinish.results import records
from photofinish.results.records import DeviceLabel
from photofinish.tracking import documents
from photofinish.tracking.documents import RunDocument
from photofinish.tracking.mirror import is_whole, model_of
from photofinish.tracking.store import MLFLOW_ERRORS, Store, first_line, open_store
from photofinish.tracking.sync import run_of
from photofinish.wording import markdown_text

CHAMPION = "champion"
_REPORT_TEXT = "comparison.md"
_RESERVED = re.compile(r"latest|v\d+", re.IGNORECASE)
"""by MLflow"""


class Promoted(NamedTuple):
    """Where the model is in the registry."""

    name: str
    version: str
    is_new: bool


def require_current(name: str, device: DeviceLabel, dataset: str) -> None:
    """Refuse a result, or a report of it, that isn't of the settings, data, code and machine at hand."""
    stages = [f"split@{dataset}", "download-weights", f"train-{device}@{name}", f"evaluate@{name}", "compare"]
    asked = [sys.executable, "-m", "dvc", "status", "--json", *stages]
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    if told.returncode:
        raise UserError(f"dvc can't tell whether {name} on {device} is up to date: {told.stderr.strip()}")
    if changed := json.loads(told.stdout):
        raise UserError(f"{name} on {device} isn't up to date ({', '.join(sorted(changed))}): run `dvc repro` first")


def promote(store: Store, name: str, device: DeviceLabel, results: Path, report: Path, alias: str) -> Promoted:
    """Register the model of the result on disk, unless it is there, and set the alias to it."""
    document = documents.training_document(name, device, results)
    if document is None:
        raise UserError(f"{name} was not trained on {device}, so there is no model to promote")
    run, comparison = run_of(store, document), run_of(store, documents.report_document(report))
    if run is None or comparison is None or not is_whole(store, run, document):
        raise UserError(f"MLflow hasn't all of {name} on {device} and its report as they are here: `make ui` sends it")
    client = store.client
    project = client.get_experiment(store.experiment_id).name  # a registry is all projects' that share the store
    registered = re.sub("[/:']", "-", f"{project}-{name}")
    with store.mirroring:
        found = client.search_model_versions(
            f"name = '{registered}' and tags.`{documents.TAG_RESULT}` = '{document.result}'"
        )
        version = found[0] if found else None
        if version is None:
            if not client.search_registered_models(f"name = '{registered}'"):
                client.create_registered_model(registered)
            version = client.create_model_version(
                registered,
                f"models:/{model_of(run)}",
                run.info.run_id,
                tags=_tags(document) | {"photofinish.report": f"runs:/{comparison.info.run_id}/{_page(report, name)}"},
                description=_description(store, run, comparison, report, name),
                model_id=model_of(run),
            )
        client.set_registered_model_alias(registered, alias, version.version)
    return Promoted(registered, str(version.version), not found)


def _tags(document: RunDocument) -> dict[str, str]:
    """Data, code and machine, each under a name of its own."""
    assert document.learned
    record = records.read_record(document.learned / records.RECORD, records.Training)
    timings = records.read_record(document.learned.parent / records.TIMED / records.TIMINGS, records.Timings)
    tags = {key: value for key, value in document.facts.tags.items() if not key.startswith("mlflow.")}
    return tags | {
        documents.TAG_RESULT: document.result,
        "sha256.data": record.data_sha256,
        "sha256.weights": record.weights_sha256,
        "git.commit": document.facts.tags.get("mlflow.source.git.commit", "not known"),
        "host.fingerprint": timings.host.model_dump_json(),
    }


def _description(store: Store, run: Run, comparison: Run, report: Path, name: str) -> str:
    """What the report's Markdown says of the experiment, unless it has an overview alone, below links to both."""
    runs = f"#/experiments/{store.experiment_id}/runs"
    page = f"{runs}/{comparison.info.run_id}/artifacts/{_page(report, name)}"
    links = f"[{run.info.run_name}]({runs}/{run.info.run_id}), [the report]({page})"
    lines = (report / _REPORT_TEXT).read_text(encoding="utf-8").splitlines()
    start = f"* **{markdown_text(name)}**: "
    first = next((index for index, line in enumerate(lines) if line.startswith(start)), len(lines))
    findings = takewhile(lambda line: line.startswith("  * "), lines[first + 1 :])
    return "\n".join([links, "", *lines[first : first + 1], *findings])


def _page(report: Path, name: str) -> str:
    """The experiment's own, where there are many."""
    own = f"experiments/{name}.html"
    return f"report/{own if (report / own).is_file() else 'index.html'}"


def main() -> None:
    """Promote what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m photofinish.tracking.promotion", description=__doc__)
    parser.add_argument("experiment", help="its name in params.yaml")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--alias", default=CHAMPION)
    args = parser.parse_args()
    if not is_name(args.alias) or _RESERVED.fullmatch(args.alias):
        raise MistakeError(f"ALIAS={args.alias}: an alias is 1 to 64 letters, digits, '-' and '_', not latest or v1")
    params = read_params(params_file := Path("params.yaml"))
    refuse_unknown(args.experiment, params, params_file)
    require_current(args.experiment, args.device, params.experiments[args.experiment].dataset)
    try:
        store = open_store(project_root(), state_folder())
        done = promote(store, args.experiment, args.device, Path("results"), Path("report"), args.alias)
    except MLFLOW_ERRORS as error:
        raise UserError(f"the model can't be registered: {first_line(error)}") from error
    already = "" if done.is_new else " already"
    print(f"{args.experiment} on {args.device} is version {done.version} of {done.name}{already}")
    print(f"Load it as models:/{done.name}@{args.alias}")


if __name__ == "__main__":
    run_stage(main)
