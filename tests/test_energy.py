"""The energy of a training, from counters that can't be read or belong to several GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pynvml
import pytest
from conftest import HeldClock

from photofinish.machine.energy import Energy, EnergyMeter, added_up

MeasureEnergy = Callable[..., Energy]


@pytest.fixture
def energy_of(monkeypatch: pytest.MonkeyPatch) -> MeasureEnergy:
    """Measure made-up GPUs, which count millijoules. The driver does not report `silent`."""
    millijoules, clock = {"GPU-one": 5_000, "GPU-two": 7_000}, HeldClock()

    def find(uuid: str) -> str:
        if uuid == "GPU-slice":
            raise pynvml.NVMLError_NotFound
        return uuid

    def read(handle: str) -> int:
        if handle == "GPU-silent":
            raise pynvml.NVMLError_NotSupported
        return millijoules[handle]

    def measured(*uuids: str | None, seconds: float = 10, **counted: int) -> Energy:
        meter = EnergyMeter(uuids)
        meter.begin()
        for uuid, more in counted.items():
            millijoules[f"GPU-{uuid}"] += more
        clock.take(seconds)
        return meter.training_ended()

    monkeypatch.setattr("time.monotonic", lambda: clock.now_seconds)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", find)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", read)
    return measured


def test_the_gpus_in_use_are_added_up(energy_of: MeasureEnergy) -> None:
    found = energy_of("one", "two", one=10_500, two=2_000)
    assert found == Energy(of="gpu", status="measured", joules=12.5, source="nvml")


@pytest.mark.parametrize(
    ("uuid", "seconds", "reason"),
    [
        ("silent", 10, "Not Supported"),
        ("slice", 10, "Not Found"),  # part of a divided GPU, whose counter is the whole GPU's
        (None, 10, "NVIDIA"),
        ("one", 0.5, "too short"),
    ],
)
def test_a_gpu_without_a_figure_has_a_reason(
    energy_of: MeasureEnergy, uuid: str | None, seconds: float, reason: str
) -> None:
    found = energy_of(uuid, seconds=seconds, one=1_000)
    assert (found.status, found.joules) == ("unavailable", None)
    assert reason in str(found.reason)


def test_processes_are_added_up_and_one_without_a_figure_leaves_none() -> None:
    one = Energy(of="gpu", status="measured", joules=2.0, source="nvml")
    none = Energy(of="gpu", status="unavailable", reason="made up")
    assert added_up([one, one]) == (one.model_copy(update={"joules": 4.0}),)
    assert added_up([one, none]) == (none,)
    assert added_up([]) == ()
