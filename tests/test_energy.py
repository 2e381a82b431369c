"""The energy of a training, off counters that run over, can't be read, or are of several GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest

from photofinish.machine import energy
from photofinish.machine.energy import CounterError, CpuPackages, Energy, EnergyMeter, NvidiaGpus, added_up

RANGE = 262_143_328_850


@dataclass
class Clock:
    """Time that passes when a test says so."""

    seconds: float = 1000.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(energy, "time", clock)
    return clock


ZONES = {
    "intel-rapl:0": ("package-0", 1_000_000),
    "intel-rapl:0:0": ("core", 7_000_000),
    "intel-rapl:1": ("package-1", 2_000_000),
    "intel-rapl:2": ("psys", 9_000_000),
    "intel-rapl-mmio:0": ("package-0", 1_000_000),
}
"""Two packages, with the parts in one of them and the whole machine around them; what they have counted."""


def set_counter(powercap: Path, zone: str, microjoules: int) -> None:
    (powercap / zone / "energy_uj").write_text(f"{microjoules}\n", encoding="utf-8")


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    for zone, (name, microjoules) in ZONES.items():
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "name").write_text(f"{name}\n", encoding="utf-8")
        (tmp_path / zone / "max_energy_range_uj").write_text(f"{RANGE}\n", encoding="utf-8")
        set_counter(tmp_path, zone, microjoules)
    return tmp_path


def meter_of(powercap: Path) -> EnergyMeter:
    return EnergyMeter("cpu", "rapl", lambda: CpuPackages(powercap))


def test_whole_packages_are_added_up_and_nothing_is_counted_twice(powercap: Path, clock: Clock) -> None:
    meter = meter_of(powercap)
    meter.begin()
    for zone in ZONES:
        set_counter(powercap, zone, 51_000_000)
    clock.seconds += 10
    assert meter.training_ended() == Energy(of="cpu", status="measured", joules=50 + 49, source="rapl")


def test_a_counter_that_ran_over_between_two_readings_is_put_right(powercap: Path, clock: Clock) -> None:
    set_counter(powercap, "intel-rapl:0", RANGE - 3_000_000)
    meter = meter_of(powercap)
    meter.begin()
    set_counter(powercap, "intel-rapl:0", 4_000_000)
    clock.seconds += 10
    assert meter.training_ended().joules == pytest.approx(7)


def test_reading_between_epochs_lets_it_run_over_as_often_as_it_likes(powercap: Path, clock: Clock) -> None:
    meter = meter_of(powercap)
    meter.begin()
    for epoch in range(1, 10):
        clock.seconds += 400
        set_counter(powercap, "intel-rapl:0", (1_000_000 + epoch * 100_000_000_000) % RANGE)
        meter.epoch_ended()
    assert meter.training_ended().joules == pytest.approx(900_000)


def test_an_epoch_so_long_that_it_may_have_run_over_twice_gives_no_figure(powercap: Path, clock: Clock) -> None:
    meter = meter_of(powercap)
    meter.begin()
    clock.seconds += 530
    set_counter(powercap, "intel-rapl:0", 4_000_000)
    meter.epoch_ended()
    found = meter.training_ended()
    assert (found.status, found.joules) == ("unavailable", None)
    assert found.reason == "an epoch lasted longer than 524 s, in which the CPU's counter may run over"


def test_waiting_before_the_training_is_not_counted(powercap: Path, clock: Clock) -> None:
    meter = meter_of(powercap)
    clock.seconds += 10_000
    set_counter(powercap, "intel-rapl:0", 90_000_000)
    meter.begin()
    set_counter(powercap, "intel-rapl:0", 91_000_000)
    clock.seconds += 10
    assert meter.training_ended().joules == pytest.approx(1)


def test_a_counter_for_root_only_is_told_with_what_to_do(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_text(path: Path, encoding: str) -> str:
        if path.name == "energy_uj":
            raise PermissionError
        return path.read_bytes().decode(encoding)

    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(CounterError, match=r"only root may read .*intel-rapl:0/energy_uj: `sudo chmod a\+r"):
        CpuPackages(powercap)


def test_a_machine_without_counters_says_so(tmp_path: Path) -> None:
    meter = meter_of(tmp_path / "nowhere")
    meter.begin()
    meter.epoch_ended()
    found = meter.training_ended()
    assert (found.status, found.source) == ("unavailable", None)
    assert "has no counter of a CPU's energy (RAPL)" in str(found.reason)


@pytest.fixture
def energy_of(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Energy]:
    """What the meter tells of these GPUs, which count so many millijoules meanwhile; `silent` never tells."""
    millijoules = {"GPU-one": 5_000, "GPU-two": 7_000}

    def read(handle: str) -> int:
        if handle == "GPU-silent":
            raise pynvml.NVMLError_NotSupported
        return millijoules[handle]

    def measured(*uuids: str, seconds: float = 10, **counted: int) -> Energy:
        meter = EnergyMeter("gpu", "nvml", lambda: NvidiaGpus(list(uuids)))
        meter.begin()
        for uuid, more in counted.items():
            millijoules[f"GPU-{uuid}"] += more
        clock.seconds += seconds
        return meter.training_ended()

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", str)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", read)
    return measured


def test_the_gpus_in_use_are_added_up(energy_of: Callable[..., Energy]) -> None:
    found = energy_of("one", "two", one=10_500, two=2_000)
    assert found == Energy(of="gpu", status="measured", joules=12.5, source="nvml")


@pytest.mark.parametrize(
    ("known_by", "told"), [("GPU-", "the GPU is divided (MIG)"), ("MIG-", "it is a slice of a GPU (MIG)")]
)
def test_a_slice_of_a_gpu_has_no_counter_of_its_own(
    energy_of: Callable[..., Energy], monkeypatch: pytest.MonkeyPatch, known_by: str, told: str
) -> None:
    def handle(uuid: str) -> str:
        if not uuid.startswith(known_by):
            raise pynvml.NVMLError_NotFound
        return uuid.replace("MIG-", "GPU-")

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", handle)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", lambda _handle: [pynvml.NVML_DEVICE_MIG_ENABLE, 1])
    found = energy_of("one", one=9_000)
    assert (found.status, found.joules) == ("unavailable", None)
    assert told in str(found.reason)


@pytest.mark.parametrize(("uuid", "seconds", "told"), [("silent", 10, "Not Supported"), ("one", 0.5, "too short")])
def test_a_gpu_that_does_not_tell_gives_a_reason(
    energy_of: Callable[..., Energy], uuid: str, seconds: float, told: str
) -> None:
    found = energy_of(uuid, seconds=seconds, one=1_000)
    assert found.status == "unavailable"
    assert told in str(found.reason)


@pytest.mark.parametrize(
    ("kind", "uuids", "first", "parts"),
    [
        ("cpu", [None], True, {"cpu": None}),
        ("cpu", [None], False, {}),
        ("mps", [None], True, {"gpu": "no counter is known for mps", "cpu": None}),
        ("cuda", [None], False, {"gpu": "no counter is known for AMD GPUs"}),
    ],
)
def test_which_parts_of_a_machine_one_process_watches(
    kind: str, uuids: list[str | None], first: bool, parts: dict[str, str | None]
) -> None:
    meters = energy.energy_meters(kind, uuids, first_of_machine=first)
    for meter in meters:
        meter.begin()
    found = {seen.of: seen.reason for seen in (meter.training_ended() for meter in meters)}
    assert found.keys() == parts.keys()
    assert all(reason is None or found[part] == reason for part, reason in parts.items())  # type: ignore[index]


def test_processes_add_up_and_one_without_a_figure_leaves_none() -> None:
    one = Energy(of="gpu", status="measured", joules=2.0, source="nvml")
    cpu = Energy(of="cpu", status="measured", joules=8.0, source="rapl")
    none = Energy(of="gpu", status="unavailable", reason="made up")
    assert added_up([one, cpu, one]) == (one.model_copy(update={"joules": 4.0}), cpu)
    assert added_up([one, cpu, none]) == (none, cpu)
