"""A busy machine makes times unreliable, and what does not fit into its memory is not measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pynvml
import pytest
import result_files
from conftest import CustomFiles, MakeRun

from photofinish.machine import host
from photofinish.machine.host import available_memory_bytes
from photofinish.machine.load import (
    LoadMonitor,
    load_warnings,
    nvidia_gpu_state,
    nvidia_gpu_works,
)
from photofinish.measure import loader_tries
from photofinish.measure.measure import resident_batches
from photofinish.runs import setup
from photofinish.training.torch_device import CPU
from photofinish.training.world import World

BURN_A_CORE = "import time\nwhile time.process_time() < 0.3:\n    pass"
QUIET = result_files.BUSY.model_copy(
    update={"cores": 4, "others_cpu_seconds": 1.0, "waited_for_core_seconds": 0.5}
)
BUSY = QUIET.model_copy(update={"others_cpu_seconds": 40.0})

OTHERS = "other programs used 50% of the cores"
WAITED = "its threads waited for a core 50% of the time they wanted one"
READ_BACK = "memory was read back from a disk"
A_FEW_TICKS = {"wall_seconds": 0.1, "own_cpu_seconds": 0.1, "others_cpu_seconds": 0.08}


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ({}, None),
        ({"others_cpu_seconds": 20.0}, None),  # a quarter of the cores is idle
        ({"own_cpu_seconds": 20.0, "others_cpu_seconds": 20.0}, OTHERS),
        ({"waited_for_core_seconds": 10.0}, WAITED),
        ({"swapped_pages": 5000}, READ_BACK),
        ({"major_page_faults": 5000, "swapped_pages": None}, READ_BACK),
        ({"gpu_slowdowns": ("heat",)}, "the GPU reduced its clock (heat)"),
        ({"gpu_others": 1}, "other programs were on the GPU"),
        ({**A_FEW_TICKS, "waited_for_core_seconds": 0}, None),  # no evidence
    ],
    ids=str,
)
def test_what_makes_times_unreliable_has_a_reason(
    figures: dict[str, Any], reason: str | None
) -> None:
    reasons = [f"for 100% of the run, {reason}"] if reason else []
    assert load_warnings([QUIET.model_copy(update=figures)]) == reasons


def test_what_happened_in_less_than_a_tenth_of_the_time_or_was_not_watched_does_not_count() -> None:
    busy = "for 20% of the run, other programs used 100% of the cores"
    assert load_warnings([BUSY, *[QUIET] * 4]) == [busy]
    assert load_warnings([BUSY, *[QUIET] * 19]) == []
    assert load_warnings([]) == []


def test_children_count_as_the_process_itself() -> None:
    monitor = LoadMonitor(nvidia_gpu_state(None))
    subprocess.run([sys.executable, "-c", BURN_A_CORE], check=True)
    monitor.epoch_ended()
    monitor.training_ended()
    (seen,) = monitor.windows
    assert seen.own_cpu_seconds > 0.25
    assert seen.wall_seconds > 0.3


def test_other_programs_are_counted() -> None:
    monitor = LoadMonitor(nvidia_gpu_state(None))
    # Its parent ends at once, so it belongs to no process of the test.
    orphan = f'"{sys.executable}" -c "{BURN_A_CORE}" &'
    # Until it closes its output.
    subprocess.run(["sh", "-c", orphan], capture_output=True, check=True)
    monitor.sample()
    assert monitor.windows[0].others_cpu_seconds > 0.25


def test_short_epochs_share_a_window() -> None:
    monitor = LoadMonitor(nvidia_gpu_state(None))
    for _ in range(999):
        monitor.epoch_ended()
    assert monitor.windows == []
    monitor.training_ended()
    monitor.training_ended()
    assert len(monitor.windows) == 1


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace functions of NVIDIA's driver, whose names begin with nvml."""

    def replace(**functions: Any) -> None:
        for name, function in ({"Init": lambda: None} | functions).items():
            monkeypatch.setattr(pynvml, f"nvml{name}", function)

    return replace


def test_what_slows_a_gpu_is_read_from_its_driver(nvml: Callable[..., None]) -> None:
    power_cap_and_heat = (
        pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    )
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    processes = [os.getpid(), child.pid, os.getppid(), 2**22 + 1]  # the last is of no process
    nvml(
        DeviceGetHandleByUUID=lambda uuid: uuid,
        DeviceGetCurrentClocksThrottleReasons={"GPU-a-b": power_cap_and_heat}.get,
        DeviceGetComputeRunningProcesses=lambda _: [
            SimpleNamespace(pid=process) for process in processes
        ],
    )
    monitor = LoadMonitor(nvidia_gpu_state("a-b"))
    monitor.sample()
    child.communicate(b"\n")
    assert monitor.windows[0].gpu_slowdowns == ("heat",)
    assert monitor.windows[0].gpu_others == 1


@pytest.mark.parametrize(
    ("percents", "works"), [([60, 0, 9, 40, 80, 70], True), ([99, 99, 60, 20, 0, 0], False)]
)
def test_a_gpu_works_if_it_does_so_until_the_end_of_a_second(
    nvml: Callable[..., None], monkeypatch: pytest.MonkeyPatch, percents: list[int], *, works: bool
) -> None:
    rates = Mock(side_effect=[SimpleNamespace(gpu=each) for each in percents])
    nvml(DeviceGetHandleByIndex=lambda place: place, DeviceGetUtilizationRates=rates)
    monkeypatch.setattr("photofinish.machine.load._READING_SECONDS", 0.0)
    assert nvidia_gpu_works("0") is works


SMALL = 2**26
"""Memory that every machine has."""
AROUND = {"job/memory.max": "9000", "job/memory.stat": "anon 4000\nfile 5000"}


def test_resident_batches_are_measured_beside_a_loader_only_if_they_fit(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = setup.Setup(make_run(input={"name": "loader"}), CPU, World(CPU))
    assert resident_batches(made) is not None
    monkeypatch.setattr(loader_tries, "available_memory_bytes", lambda: 1000)
    assert resident_batches(made) is None


@pytest.mark.parametrize(
    ("own_group", "files", "available"),
    [
        ("0::/", {"memory.max": "max"}, SMALL),
        ("0::/job/step", AROUND | {"job/step/memory.max": "max"}, 5000),
        ("0::/of-the-host", {"memory.max": "9000", "memory.stat": "file 1\nanon 9500"}, 0),
    ],
    ids=["no limit", "the group around it", "in a container"],
)
def test_a_control_group_limits_the_memory(
    custom_files: CustomFiles,
    monkeypatch: pytest.MonkeyPatch,
    own_group: str,
    files: dict[str, str],
    available: int,
) -> None:
    for name, text in ({"../own": own_group} | files).items():
        custom_files.write(f"groups/{name}", f"{text}\n")
    monkeypatch.setattr(host, "_CGROUPS", custom_files.folder / "groups")
    monkeypatch.setattr(host, "_OWN_CGROUP", custom_files.folder / "own")
    assert min(available_memory_bytes(), SMALL) == available
