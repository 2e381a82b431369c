"""Speed over Git's commits: `photofinish history`."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import MakeResult

from photofinish.regressions.history import Point, with_steps, write_history
from photofinish.results.references import reference_of, write_reference


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, capture_output=True)


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet")

    def commit() -> None:
        git("add", "--all")
        names = ("-c", "user.name=test", "-c", "user.email=test@example.com")
        git(*names, "commit", "--quiet", "--message", "test")

    return commit


def write_metrics(epoch_seconds: float, accuracy: float = 0.9) -> None:
    Path("metrics").mkdir(exist_ok=True)
    figures = {"cpu": {"epoch_seconds": epoch_seconds, "test_accuracy": accuracy}}
    Path("metrics/mine.json").write_text(json.dumps(figures), encoding="utf-8")


def test_the_picture_marks_the_commit_from_which_on_epochs_take_longer(
    commit: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    write_metrics(1.0)
    commit()
    write_history()
    assert "fewer than two commits" in capsys.readouterr().out
    assert not Path("speed-history.csv").exists()
    for epoch_seconds in (1.02, 0.99, 1.31, 1.3):
        write_metrics(epoch_seconds)
        commit()
    write_history()
    with Path("speed-history.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["", "", "", "1.31", ""]
    assert rows[3]["commit"] in capsys.readouterr().out
    assert "1.31x" in Path("speed-history.svg").read_text(encoding="utf-8")


def test_a_reference_has_its_version_of_pytorch_and_its_machine(
    commit: Callable[[], None], make_result: MakeResult
) -> None:
    result = make_result()
    for version, accuracy in (("2.8.0", 0.5), ("2.9.0", 0.6)):
        timings = result.timings.model_copy(update={"packages": {"torch": version}})
        scores = result.scores.model_copy(update={"test_accuracy": accuracy})
        parts = (result.record, timings, scores, result.history, "lab")
        write_reference(Path("reference"), reference_of("mine", *parts))
        commit()
    write_history()
    with Path("speed-history.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["machine"], row["torch"], row["test_accuracy"]) for row in rows] == [
        ("lab", "2.8.0", "0.5"),
        ("lab", "2.9.0", "0.6"),
    ]


@pytest.mark.parametrize(
    ("epoch_seconds", "steps"),
    [
        ((1.0, 1.0, 1.0, 1.3, 1.0, 1.0), [None] * 6),  # one slow run is no level
        ((1.0, 1.0, 1.0, 1.3), [None] * 4),  # nor is the last one
        ((1.0, 1.0, 1.3, 1.3), [None] * 4),  # the noise of two is not known
        ((1.0, 1.2, 0.8, 1.25, 1.25), [None] * 5),  # noisy from the start on
        ((1.0, 1.0, 1.01, 0.5, 0.5), [None, None, None, 0.5, None]),
    ],
)
def test_a_step_is_a_change_of_level_by_more_than_the_noise(
    epoch_seconds: tuple[float, ...], steps: list[float | None]
) -> None:
    points = [Point("mine", "cpu", "", "", "", "", each, None) for each in epoch_seconds]
    assert [point.step for point in with_steps(points)] == steps


def test_a_project_below_the_repositorys_top_has_a_history_too(
    commit: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("project").mkdir()
    monkeypatch.chdir("project")
    for epoch_seconds in (1.0, 2.0):
        write_metrics(epoch_seconds)
        commit()
    write_history()
    assert len(Path("speed-history.csv").read_text(encoding="utf-8").splitlines()) == 3


def test_a_script_without_epochs_is_left_out(
    commit: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for epoch_seconds in (1.0, 2.0):
        write_metrics(epoch_seconds)
        figures = {"cpu": {"total_seconds": 1.0}}
        Path("metrics/script.json").write_text(json.dumps(figures), encoding="utf-8")
        commit()
    write_history()
    assert "left out: script" in capsys.readouterr().out
