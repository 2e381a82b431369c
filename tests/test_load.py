"""When a busy machine makes a timing doubtful, and the readings it is told by."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pynvml
import pytest

from photofinish.machine import load as watch
from photofinish.machine.load import LoadWindow, MachineWatch, doubts, nvidia_gpu_state

BURN_A_CORE = "import time\nwhile time.process_time() < 0.3:\n    pass"
QUIET = LoadWindow(
    repeat=1,
    last_epoch=1,
    wall_seconds=10.0,
    cores=4,
    own_cpu_seconds=10.0,
    others_cpu_seconds=1.0,
    waited_for_core_seconds=0.5,
    major_page_faults=3,
    swapped_pages=0,
)
BUSY = QUIET.model_copy(update={"others_cpu_seconds": 40.0})


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        ({}, []),
        ({"others_cpu_seconds": 3.9}, []),
        ({"others_cpu_seconds": 20.0}, ["other programs used 50% of the cores in 100% of the time"]),
        (
            {"waited_for_core_seconds": 10.0},
            ["its threads waited for a core for 50% of the time they wanted one, in 100% of the time"],
        ),
        ({"waited_for_core_seconds": None, "swapped_pages": None}, []),
        ({"swapped_pages": 5000}, ["memory was read back from a disk in 100% of the time"]),
        ({"major_page_faults": 5000, "swapped_pages": 0}, []),
        ({"major_page_faults": 5000, "swapped_pages": None}, ["memory was read back from a disk in 100% of the time"]),
        ({"gpu_slowdowns": ("heat",)}, ["the GPU held its clock down (heat) in 100% of the time"]),
        # a few ticks of the system's clock are no evidence
        ({"wall_seconds": 0.1, "own_cpu_seconds": 0.1, "waited_for_core_seconds": 0, "others_cpu_seconds": 0.08}, []),
    ],
    ids=str,
)
def test_what_makes_times_doubtful_is_told_in_words(figures: dict[str, Any], told: list[str]) -> None:
    assert doubts([QUIET.model_copy(update=figures)]) == told


def test_what_happened_in_less_than_a_tenth_of_the_time_or_was_not_watched_is_passed_over() -> None:
    assert doubts([BUSY, *[QUIET] * 4]) == ["other programs used 100% of the cores in 20% of the time"]
    assert doubts([BUSY, *[QUIET] * 19]) == []
    assert doubts([]) == []


def test_a_watch_sees_its_own_process_and_its_children_as_its_own() -> None:
    observer = MachineWatch(nvidia_gpu_state(None))
    subprocess.run([sys.executable, "-c", BURN_A_CORE], check=True)
    observer.epoch_ended(1, 1)
    observer.training_ended()
    (seen,) = observer.windows
    assert (seen.repeat, seen.last_epoch) == (1, 1)
    assert seen.own_cpu_seconds > 0.25
    assert seen.wall_seconds > 0.3


def test_a_watch_sees_what_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_tree_cpu_seconds", lambda _root: 0.0)  # nothing is its own
    observer = MachineWatch(nvidia_gpu_state(None))
    subprocess.run([sys.executable, "-c", BURN_A_CORE], check=True)
    observer.look(1, 1)
    assert observer.windows[0].others_cpu_seconds > 0.25


def test_a_core_is_found_by_its_number_where_one_before_it_is_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    idle, busy, quiet = (SimpleNamespace(user=seconds) for seconds in (0.0, 70.0, 1.0))
    monkeypatch.setattr(watch, "read_or_empty", lambda _path: "cpu  71 0\ncpu0 0 0\ncpu2 70 0\ncpu3 1 0\nintr 5\n")
    monkeypatch.setattr("psutil.cpu_times", lambda **_: [idle, busy, quiet])
    assert [watch._busy_seconds([core]) for core in (0, 2, 3)] == [0.0, 70.0, 1.0]


def test_readings_are_so_far_apart_that_they_cost_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = MachineWatch(nvidia_gpu_state(None))
    for epoch in range(1, 1000):
        observer.epoch_ended(1, epoch)
    assert observer.windows == []
    observer.training_ended()
    assert [seen.last_epoch for seen in observer.windows] == [999]
    observer.training_ended()
    assert len(observer.windows) == 1
    monkeypatch.setattr(watch, "LEAST_WINDOW_SECONDS", 0.0)
    observer._cost_seconds = 1.0
    time.sleep(0.01)
    observer.epoch_ended(1, 1000)
    assert len(observer.windows) == 1


def test_the_state_of_the_gpu_goes_into_the_window() -> None:
    observer = MachineWatch(lambda: (1980, ("heat",)))
    observer.look(2, 3)
    assert (observer.windows[0].gpu_clock_mhz, observer.windows[0].gpu_slowdowns) == (1980, ("heat",))


def test_a_gpus_clock_and_what_holds_it_down_are_read_from_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    power_cap_and_heat = pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetClockInfo", lambda handle, _clock: 1200 if handle == "GPU-a-b" else 0)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda _handle: power_cap_and_heat)
    assert nvidia_gpu_state("a-b")() == (1200, ("heat",))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", lambda _handle: [1, 1])
    assert nvidia_gpu_state("a-b")() == (None, ())  # a slice's, of which the driver tells the whole


def test_without_a_driver_nothing_is_told_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    no_driver = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    monkeypatch.setattr(pynvml, "nvmlInit", Mock(side_effect=no_driver))
    assert nvidia_gpu_state("a-b")() == (None, ())
    assert nvidia_gpu_state(None)() == (None, ())
