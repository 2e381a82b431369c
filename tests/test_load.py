"""When a busy machine makes times unreliable, and what is read for it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import pynvml
import pytest

from photofinish.machine.load import LoadMonitor, LoadWindow, load_warnings, nvidia_gpu_state

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
    ("figures", "reasons"),
    [
        ({}, []),
        ({"others_cpu_seconds": 3.9}, []),
        (
            {"others_cpu_seconds": 20.0},
            ["other programs used 50% of the cores in 100% of the time"],
        ),
        (
            {"waited_for_core_seconds": 10.0},
            [
                "its threads waited for a core for 50% of the time they wanted one, "
                "in 100% of the time"
            ],
        ),
        ({"waited_for_core_seconds": None, "swapped_pages": None}, []),
        ({"swapped_pages": 5000}, ["memory was read back from a disk in 100% of the time"]),
        ({"major_page_faults": 5000, "swapped_pages": 0}, []),
        (
            {"major_page_faults": 5000, "swapped_pages": None},
            ["memory was read back from a disk in 100% of the time"],
        ),
        ({"gpu_slowdowns": ("heat",)}, ["the GPU held its clock down (heat) in 100% of the time"]),
        # a few ticks of the system's clock are no evidence
        (
            {
                "wall_seconds": 0.1,
                "own_cpu_seconds": 0.1,
                "waited_for_core_seconds": 0,
                "others_cpu_seconds": 0.08,
            },
            [],
        ),
    ],
    ids=str,
)
def test_what_makes_times_unreliable_has_a_reason(
    figures: dict[str, Any], reasons: list[str]
) -> None:
    assert load_warnings([QUIET.model_copy(update=figures)]) == reasons


def test_what_happened_in_less_than_a_tenth_of_the_time_or_was_not_watched_does_not_count() -> None:
    assert load_warnings([BUSY, *[QUIET] * 4]) == [
        "other programs used 100% of the cores in 20% of the time"
    ]
    assert load_warnings([BUSY, *[QUIET] * 19]) == []
    assert load_warnings([]) == []


def test_a_watch_sees_its_own_process_and_its_children_as_its_own() -> None:
    observer = LoadMonitor(nvidia_gpu_state(None))
    subprocess.run([sys.executable, "-c", BURN_A_CORE], check=True)
    observer.epoch_ended(1, 1)
    observer.training_ended()
    (seen,) = observer.windows
    assert (seen.repeat, seen.last_epoch) == (1, 1)
    assert seen.own_cpu_seconds > 0.25
    assert seen.wall_seconds > 0.3


def test_a_watch_sees_what_others_do() -> None:
    observer = LoadMonitor(nvidia_gpu_state(None))
    orphan = f'"{sys.executable}" -c "{BURN_A_CORE}" &'  # its parent ends at once, so it belongs to nobody here
    subprocess.run(
        ["sh", "-c", orphan], capture_output=True, check=True
    )  # until it closes its output
    observer.look(1, 1)
    assert observer.windows[0].others_cpu_seconds > 0.25


def test_short_epochs_share_a_window() -> None:
    observer = LoadMonitor(nvidia_gpu_state(None))
    for epoch in range(1, 1000):
        observer.epoch_ended(1, epoch)
    assert observer.windows == []
    observer.training_ended()
    observer.training_ended()
    assert [seen.last_epoch for seen in observer.windows] == [999]


def test_the_state_of_the_gpu_goes_into_the_window() -> None:
    observer = LoadMonitor(lambda: (1980, ("heat",)))
    observer.look(2, 3)
    assert (observer.windows[0].gpu_clock_mhz, observer.windows[0].gpu_slowdowns) == (
        1980,
        ("heat",),
    )


def test_a_gpus_clock_and_what_holds_it_down_are_read_from_its_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    power_cap_and_heat = (
        pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    )
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetClockInfo", lambda handle, _clock: 1200 if handle == "GPU-a-b" else 0
    )
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda _handle: power_cap_and_heat
    )
    assert nvidia_gpu_state("a-b")() == (1200, ("heat",))


def test_without_a_driver_a_gpu_has_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    no_driver = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    monkeypatch.setattr(pynvml, "nvmlInit", Mock(side_effect=no_driver))
    assert nvidia_gpu_state("a-b")() == (None, ())
    assert nvidia_gpu_state(None)() == (None, ())
