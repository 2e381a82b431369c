"""Above MLflow's runs stand links: to the report, and to both devices' runs of an experiment side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from conftest import MakeResult
from result_files import paired, write_result, write_trained

from photofinish.comparing.device_results import Trained
from photofinish.report.report import write_report
from photofinish.tracking import documents
from photofinish.tracking.store import Store
from photofinish.tracking.sync import sync_all

# sqlite3 and MLflow's readers of old formats warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:.*unpickl.*", "ignore::DeprecationWarning")

BOTH, ALONE = "on-both", "on-the-cpu"


@pytest.fixture
def results(tmp_path: Path, make_result: MakeResult) -> Path:
    """One experiment on both devices, one on the CPU alone, and the report of both."""
    made = [make_result(BOTH), make_result(BOTH, "gpu"), make_result(ALONE)]
    made.append(make_result(ALONE, "gpu", unavailable="no accelerator"))
    for result in made:
        if isinstance(result, Trained):
            write_trained(tmp_path / "results", result)
        else:
            write_result(tmp_path / "results", result)
    write_report(paired(made), tmp_path / "report")
    return tmp_path / "results"


def sync(store: Store, results: Path) -> int:
    return sync_all(store, [BOTH, ALONE, "never-trained"], results, results.parent / "report")


def description(store: Store) -> str:
    return str(store.client.get_experiment(store.experiment_id).tags.get(documents.TAG_NOTE, ""))


def links(store: Store) -> dict[str, str]:
    return {text: unquote(address) for text, address in re.findall(r"\[(.*?)\]\((.*?)\)", description(store))}


def run_id(store: Store, name: str) -> str:
    (run,) = store.find_runs(f"attributes.run_name = '{name}'")
    return str(run.info.run_id)


def test_the_runs_of_an_experiment_on_both_devices_stand_side_by_side_behind_a_link(
    store: Store, results: Path
) -> None:
    sync(store, results)
    assert set(links(store)) == {"the report", BOTH}
    runs = [run_id(store, f"{BOTH}/{device}") for device in ("cpu", "gpu")]
    assert f"runs={json.dumps(runs, separators=(',', ':'))}&" in links(store)[BOTH]
    assert f'experiments=["{store.experiment_id}"]' in links(store)[BOTH]


def test_the_report_is_behind_a_link_and_its_pictures_beside_it(store: Store, results: Path) -> None:
    sync(store, results)
    comparison = run_id(store, "comparison")
    assert f"runs/{comparison}/artifacts/report/index.html" in links(store)["the report"]
    figures = {Path(file.path).name for file in store.client.list_artifacts(comparison, "report/figures")}
    assert figures == {path.name for path in (results.parent / "report" / "figures").iterdir()}
    assert {"speedup-epoch.svg", f"loss-{BOTH}.svg"} <= figures


def test_the_links_follow_the_results_and_come_back_when_they_were_deleted(
    store: Store, results: Path, make_result: MakeResult
) -> None:
    sync(store, results)
    before = description(store)
    assert sync(store, results) == 0
    assert description(store) == before
    again = make_result(BOTH, "gpu", epoch_seconds=(1.0, 1.0, 1.0))
    assert isinstance(again, Trained)
    write_trained(results, again)
    sync(store, results)
    after = description(store)
    assert after != before
    store.client.set_experiment_tag(store.experiment_id, documents.TAG_NOTE, "")
    sync(store, results)
    assert description(store) == after


def test_a_description_that_the_user_wrote_is_left_alone(store: Store, results: Path) -> None:
    store.client.set_experiment_tag(store.experiment_id, documents.TAG_NOTE, "my own words")
    sync(store, results)
    assert description(store) == "my own words"
