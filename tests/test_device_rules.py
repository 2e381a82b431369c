"""What devices and experiments ask of each other is checked before anything starts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import MakeExperiment

from photofinish.config.devices import Devices, check_devices
from photofinish.config.experiment import Experiment
from photofinish.config.mistakes import ConfigProblem


def misfits_of(devices: dict[str, Any], **experiments: Experiment) -> list[ConfigProblem]:
    """With these settings, as params.yaml has them."""
    return list(check_devices(Devices.model_validate_json(json.dumps(devices)), experiments))


@pytest.mark.parametrize(
    ("devices", "problem"),
    [
        ({"cpu": {"processes": 9}}, "9 ... (devices.cpu.processes)"),
        ({"gpu": {"count": 9}}, "9 ... (devices.gpu.count)"),
        ({"cpu": {"processes": 9}, "gpu": {"count": 10}}, "10 ... (devices.gpu.count)"),
        (
            {"gpu": {"count": "all", "strategy": "data_parallel", "device_ids": list(range(9))}},
            "9 ... (devices.gpu.count)",
        ),
    ],
    ids=str,
)
def test_a_batch_without_an_image_for_each_device_is_a_mistake_of_its_experiment(
    make_experiment: MakeExperiment, devices: dict[str, Any], problem: str
) -> None:
    small, large = make_experiment(batch_size=8), make_experiment(batch_size=10)
    [mistake] = misfits_of(devices, small=small, large=large)
    assert (mistake.path, mistake.value) == (("experiments", "small", "batch_size"), 8)
    assert mistake.problem.replace("devices or processes share each batch", "...").startswith(problem)


@pytest.mark.parametrize(
    "devices", [{}, {"cpu": {"processes": 8}}, {"gpu": {"count": 8}}, {"gpu": {"count": "all"}}], ids=str
)
def test_what_fits_or_only_the_machine_can_tell_is_let_through(
    make_experiment: MakeExperiment, devices: dict[str, Any]
) -> None:
    assert misfits_of(devices, small=make_experiment(batch_size=8)) == []


@pytest.mark.parametrize(("kind", "wrong"), [("auto", False), ("cuda", False), ("mps", True), ("xpu", True)])
def test_data_parallel_is_for_cuda(kind: str, wrong: bool) -> None:
    mistakes = misfits_of({"gpu": {"kind": kind, "count": 2, "strategy": "data_parallel"}})
    assert [mistake.path for mistake in mistakes] == [("devices", "gpu", "strategy")] * wrong


@pytest.mark.parametrize(
    ("strategy", "precision", "wrong"),
    [("data_parallel", "bf16", True), ("data_parallel", "fp16", False), ("ddp", "bf16", False)],
)
def test_data_parallel_has_no_bf16(make_experiment: MakeExperiment, strategy: str, precision: str, wrong: bool) -> None:
    mistakes = misfits_of({"gpu": {"count": 2, "strategy": strategy}}, small=make_experiment(precision=precision))
    assert [mistake.path for mistake in mistakes] == [("experiments", "small", "precision")] * wrong
