"""Ratios and tables of the benchmarks, and a quick run of every side."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT))  # the benchmarks are beside the package, not in it

from benchmarks.table import BARE, OURS, TUTORIAL, markdown, rows_of, write
from benchmarks.timing import Outcome, Spread, alternate, ratios
from benchmarks.workloads import NAMES

MACHINE = {"processor": "some processor", "threads": "2"}


def outcomes(*seconds: float) -> list[Outcome]:
    return [Outcome(each, 0.5) for each in seconds]


WORKLOAD: Any = SimpleNamespace(
    name="small", title="A small one", data=SimpleNamespace(is_real=False)
)


def test_sides_take_turns_and_none_always_follows_the_same_one() -> None:
    ran: list[str] = []

    def side(name: str) -> Any:
        return lambda: ran.append(name) or Outcome(1.0, 0.5)

    measured = alternate({name: side(name) for name in "abc"}, rounds=4)
    assert "".join(ran) == "abc" + "bca" + "cab" + "abc"
    assert {name: len(each) for name, each in measured.items()} == {"a": 4, "b": 4, "c": 4}


def test_a_ratio_is_taken_within_a_round() -> None:
    assert ratios(outcomes(2, 20, 4), outcomes(1, 10, 1)) == Spread(2, 2, 4)


def test_ratios_are_ours_over_the_bare_loop_and_others_over_ours() -> None:
    measured = {OURS: outcomes(1.1, 1.1), TUTORIAL: outcomes(12, 12), BARE: outcomes(1, 1)}
    rows = {row.side: row for row in rows_of(WORKLOAD, measured)}
    assert rows[BARE].ratio == pytest.approx(1.1)
    assert rows[TUTORIAL].ratio == pytest.approx(12 / 1.1)


def test_the_table_is_written_as_csv_and_markdown(tmp_path: Path) -> None:
    measured = {OURS: outcomes(1, 2, 3), BARE: outcomes(2, 2, 2)}
    rows = rows_of(WORKLOAD, measured)
    write(rows, MACHINE, tmp_path)
    with (tmp_path / "benchmarks.csv").open(encoding="utf-8", newline="") as text:
        written = list(csv.DictReader(text))
    assert [row["side"] for row in written] == [OURS, BARE]
    assert {row["processor"] for row in written} == {"some processor"}
    assert (tmp_path / "benchmarks.md").read_text(encoding="utf-8") == markdown(rows, MACHINE)
    assert "1.00x (0.50 to 1.50) of the bare loop's time" in markdown(rows, MACHINE)


@pytest.mark.slow
def test_a_quick_run_gives_every_row_with_sane_figures(tmp_path: Path) -> None:
    """Never a gate of time: how fast this machine is just now says nothing of the code."""
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--quick",
        "--rounds",
        "1",
        "--threads",
        "1",
        "--processor-time",
    ]
    command += ["--out", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr  # it refuses sides whose networks end with other losses
    with (tmp_path / "benchmarks.csv").open(encoding="utf-8", newline="") as text:
        rows = list(csv.DictReader(text))
    assert {row["workload"] for row in rows} == set(NAMES)
    for row in rows:
        assert 0.001 < float(row["epoch_seconds"]) < 60
        assert float(row["ratio_lowest"]) <= float(row["ratio"]) <= float(row["ratio_highest"])
        assert row["side"] != TUTORIAL or float(row["ratio"]) > 0.5
