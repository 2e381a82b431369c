"""A busy machine makes times unreliable, and what does not fit into its memory is not measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pynvml
import pytest
from conftest import MakeRun

from photofinish.machine import host
from photofinish.machine.host import available_memory_bytes
from photofinish.machine.load import (
    LoadMonitor,
    LoadWindow,
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
QUIET = LoadWindow(
    wall_seconds=10.0,
    cores=4,
    own_cpu_seconds=10.0,
    others_cpu_seconds=1.0,
    waited_for_core_seconds=0.5,
    major_page_faults=3,
    swapped_pages=0,
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
    assert load_warnings([BUSY, *[QUIET] * 4]) == [
        "for 20% of the run, other programs used 100% of the cores"
    ]
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


def test_what_slows_a_gpu_is_read_from_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    power_cap_and_heat = (
        pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    )
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    reasons = {"GPU-a-b": power_cap_and_heat}
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", reasons.get)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    processes = [os.getpid(), child.pid, os.getppid(), 2**22 + 1]  # the last is of no process
    monkeypatch.setattr(
        pynvml,
        "nvmlDeviceGetComputeRunningProcesses",
        lambda _: [SimpleNamespace(pid=process) for process in processes],
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
    monkeypatch: pytest.MonkeyPatch, percents: list[int], *, works: bool
) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda place: place)
    rates = Mock(side_effect=[SimpleNamespace(gpu=each) for each in percents])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", rates)
    monkeypatch.setattr("photofinish.machine.load._READING_SECONDS", 0.0)
    assert nvidia_gpu_works("0") is works


GIB = 2**30


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
        ("0::/", {"memory.max": "max"}, None),
        (
            "0::/job/step",
            {
                "job/memory.max": "9000",
                "job/memory.stat": "anon 4000\nfile 5000",
                "job/step/memory.max": "max",
            },
            5000,
        ),
        ("0::/of-the-host", {"memory.max": "9000", "memory.stat": "file 1\nanon 9500"}, 0),
    ],
    ids=["no limit", "the group around it", "in a container"],
)
def test_a_control_group_limits_the_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own_group: str,
    files: dict[str, str],
    available: int | None,
) -> None:
    for name, text in {
        "own": own_group,
        **{f"groups/{name}": text for name, text in files.items()},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    monkeypatch.setattr(host, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(host, "_OWN_CGROUP", tmp_path / "own")
    if available is None:
        assert available_memory_bytes() > GIB // 16
    else:
        assert available_memory_bytes() == available
