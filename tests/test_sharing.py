"""Trainings that several devices shared, compared with that of the fewest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import MakeResult
from result_files import paired, trained

from photofinish.comparing.device_results import Trained
from photofinish.comparing.pairs import Comparison
from photofinish.comparing.scaling import shared_trainings
from photofinish.machine.fingerprint import CpuTarget
from photofinish.reporting.report import write_report
from photofinish.results.references import reference_of


def shared_by(result: Trained, processes: int, threads: int = 1) -> Trained:
    host = result.timings.host
    assert isinstance(host, CpuTarget)
    host = host.model_copy(update={"processes": processes, "threads": threads})
    timings = result.timings.model_copy(update={"host": host, "device_count": processes})
    return replace(result, timings=timings)


@pytest.fixture
def pairs(make_result: MakeResult) -> list[Comparison]:
    """One process here; two and four, and eight with other threads, in records."""
    runs = [
        shared_by(trained(make_result, epoch_seconds=(seconds,) * 6), *sharing)
        for seconds, sharing in ((8.0, (1,)), (5.0, (2,)), (4.0, (4,)), (1.0, (8, 7)))
    ]
    references = [
        reference_of(
            run.experiment, run.record, run.timings, run.scores, list(run.history), f"lab-{number}"
        )
        for number, run in enumerate(runs)
    ]
    none = make_result(device="gpu", epoch_seconds=(1.0,), unavailable="no driver")
    return paired([runs[0], none], None, references)


def test_efficiency_is_the_speed_up_per_device(pairs: list[Comparison]) -> None:
    found = shared_trainings(pairs)
    assert [(each.count, each.machine) for each in found] == [
        (1, None),
        (2, "lab-1"),
        (4, "lab-2"),
    ]
    assert [each.efficiency for each in found] == [1.0, 8 / 5 / 2, 8 / 4 / 4]
    assert found[0].efficiency_interval is None  # against itself
    for each in found[1:]:
        assert each.efficiency_interval
        low, high = each.efficiency_interval
        assert low < each.efficiency < high


def test_the_report_shows_sharing_if_several_numbers_were_tried(
    pairs: list[Comparison], tmp_path: Path
) -> None:
    write_report(pairs, tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "1.60x that of 1</td>" in page
    write_report([replace(pairs[0], references=())], tmp_path)
    assert "several devices gain" not in (tmp_path / "index.html").read_text(encoding="utf-8")
