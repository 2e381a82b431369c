"""What `compare` found is kept: a report of it has the same bytes, and only what has changed is read again."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import MakeResult
from result_files import write_results

from photofinish.comparing import kept as keeping
from photofinish.comparing.kept import Kept, read_pairs
from photofinish.comparing.pairs import Pair, set_beside
from photofinish.comparing.scaling import Series
from photofinish.params.compare import ComparePlan, Comparing
from photofinish.report import report
from photofinish.report.report import write_report
from photofinish.report.rows import Rows

NAMES = ["net-0", "net-1", "net-2"]


@pytest.fixture
def explored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was read and explored, or made a page of, so far."""
    done: list[str] = []
    read, make_part = keeping.read_pair, report._part

    def told_read(name: str, folder: Path) -> Pair:
        done.append(name)
        return read(name, folder)

    def told_part(pair: Pair, series: list[Series], files: dict[str, Rows]) -> report._Part:
        done.append(f"{pair.experiment}.html")
        return make_part(pair, series, files)

    monkeypatch.setattr(keeping, "read_pair", told_read)
    monkeypatch.setattr(report, "_part", told_part)
    return done


@pytest.fixture
def results(make_result: MakeResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setattr(report, "MOST_ON_ONE_PAGE", 1)
    for name in NAMES:
        write_results([make_result(name), make_result(name, "gpu", epoch_seconds=(0.5,) * 3)], tmp_path / "results")
    return tmp_path / "results"


def compare(results: Path, names: list[str] = NAMES, settings: Comparing | None = None) -> dict[str, bytes]:
    """As the stage does; the report's files."""
    settings, out = settings or Comparing(), results.parent / "report"
    kept = Kept(results, settings)
    write_report(set_beside(read_pairs(names, results, kept), settings, ()), out, 0.0, kept)
    kept.write()
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_the_same_results_make_the_same_report_without_being_explored_again(results: Path, explored: list[str]) -> None:
    fresh = compare(results)
    assert explored == [*NAMES, *(f"{name}.html" for name in NAMES)]
    explored.clear()
    assert compare(results) == fresh
    assert not explored


def test_a_changed_experiment_alone_is_explored_again(
    results: Path, make_result: MakeResult, explored: list[str]
) -> None:
    compare(results)
    write_results([make_result("net-1", accuracy=0.5), make_result("net-1", "gpu")], results)
    explored.clear()
    changed = compare(results)
    assert explored == ["net-1", "net-1.html"]
    next((results.parent / ".photofinish" / "compared").iterdir()).unlink()
    assert compare(results) == changed


@pytest.mark.parametrize("size", [0, 10, 5_000])
def test_what_is_kept_is_found_anew_where_it_is_damaged(results: Path, explored: list[str], size: int) -> None:
    fresh = compare(results)
    (kept,) = (results.parent / ".photofinish" / "compared").iterdir()
    kept.write_bytes(kept.read_bytes()[:size])
    explored.clear()
    assert compare(results) == fresh
    assert explored[: len(NAMES)] == NAMES


def test_other_settings_are_other_findings(results: Path, explored: list[str]) -> None:
    compare(results)
    explored.clear()
    compare(results, settings=Comparing(target_accuracy=0.5))
    assert len(explored) == 2 * len(NAMES)


def test_another_experiment_beside_it_leaves_what_was_found_of_one(results: Path, explored: list[str]) -> None:
    compare(results, NAMES[:2], ComparePlan(experiments=tuple(NAMES[:2])))
    explored.clear()
    compare(results, NAMES, ComparePlan(experiments=tuple(NAMES)))
    assert explored == ["net-2", "net-2.html"]


def test_a_sweep_and_the_project_keep_theirs_beside_each_other(
    results: Path, explored: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = results.parent / "sweeps" / "wide"
    sweep.mkdir(parents=True)
    (results.parent / ".dvc").mkdir()
    for folder in (results.parent, sweep):
        monkeypatch.chdir(folder)
        compare(results)
    explored.clear()
    for folder in (results.parent, sweep):
        monkeypatch.chdir(folder)
        compare(results)
    assert not explored
    kept = {path.name for path in (results.parent / ".photofinish" / "compared").iterdir()}
    assert kept == {"project.kept", "wide.kept"}


def test_where_nothing_can_be_kept_the_report_is_written_all_the_same(results: Path, explored: list[str]) -> None:
    (results.parent / ".photofinish").mkdir(exist_ok=True)
    (results.parent / ".photofinish" / "compared").write_text("no folder", encoding="utf-8")
    assert compare(results) == compare(results)
    assert explored[: len(NAMES)] == NAMES


def test_what_the_last_report_was_not_of_is_kept_no_longer(results: Path, explored: list[str]) -> None:
    compare(results)
    compare(results, NAMES[:2])
    explored.clear()
    compare(results)
    assert explored == ["net-2", "net-2.html"]


def test_another_version_of_this_project_finds_anew(
    results: Path, explored: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "photofinish"
    package.mkdir()
    (package / "page.html").write_text("words", encoding="utf-8")
    monkeypatch.setattr(keeping.photofinish, "__file__", str(package / "__init__.py"))
    compare(results)
    explored.clear()
    compare(results)
    assert not explored
    (package / "page.html").write_text("other words", encoding="utf-8")
    compare(results)
    assert len(explored) == 2 * len(NAMES)
