"""A step that takes much longer on the GPU here than its data sheet lets expect."""

from __future__ import annotations

from typing import Any

import pytest
from planted_jobs import compared, make_job
from result_files import QUIET, STEP, made_up_attribution

from photofinish.answer.comparison import Comparison
from photofinish.answer.decision import decide
from photofinish.answer.record import job_record
from photofinish.reporting.causes import slow_gpu_lines

LAUNCHED = made_up_attribution(0.0).model_copy(update={"launch_seconds": (1.4,)})


def on_a_t4(step_seconds: float, **changed: Any) -> Comparison:
    """Compare a job with one on a T4, on whose data sheet a step takes 0.16 s."""
    cpu = make_job(step_seconds=[1.0], operations=STEP)
    gpu = {"device_name": "Tesla T4", "operations": STEP} | changed
    return compared(cpu, make_job(device="gpu", step_seconds=[step_seconds], **gpu))


def lines_of(pair: Comparison) -> list[str]:
    return [*slow_gpu_lines(job_record(pair, decide(pair)))]


@pytest.mark.parametrize("step_seconds", [0.05, 0.16, 0.45])
def test_a_step_within_the_error_of_its_estimate_is_not_called_slow(step_seconds: float) -> None:
    assert not lines_of(on_a_t4(step_seconds))


def with_load(**reasons: Any) -> dict[str, Any]:
    return {"load": (QUIET.model_copy(update=reasons),)}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, "copies"),
        (with_load(gpu_others=1), "other programs are on it"),
        (with_load(gpu_slowdowns=("heat",)), "it reduced its clock"),
        ({"attribution": LAUNCHED}, "it mostly waits for the CPU"),
        ({"steady_state": None, "by_parts": None}, "not timed separately"),
    ],
)
def test_a_slow_step_is_named_with_its_likely_cause(changed: dict[str, Any], why: str) -> None:
    (line,) = lines_of(on_a_t4(1.5, **changed))
    assert line.startswith("By its data sheet, a step would take about 160 ms on this GPU, and it ")
    assert "takes 1.5 s: " in line
    assert why in line


def test_gpus_without_a_data_sheet_and_several_gpus_are_not_judged() -> None:
    assert not lines_of(on_a_t4(1.5, device_name="Some GPU"))
    assert not lines_of(on_a_t4(1.5, device_count=2))
