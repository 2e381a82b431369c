"""Memory that a step frees is there for the next step, unless params.yaml has it otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from conftest import MakeExperiment
from training_process import NoTracker

from photofinish.config.devices import CpuDevice, Devices
from photofinish.data.packed import PackedSplit
from photofinish.machine.fingerprint import CpuTarget, fingerprint
from photofinish.results import records
from photofinish.runs.run import Run
from photofinish.runs.train import train
from photofinish.tracking.client import Tracker
from photofinish.training.teams import World
from photofinish.training.torch_device import CPU

MANY_STEPS = """
import resource, sys
import torch
from photofinish.training.torch_device import CPU, apply_policy

apply_policy(CPU, "fp32", 1, keep_freed=sys.argv[1] == "keep")

def step():
    made = [torch.ones(2**18) for _ in range(20)]  # of 1 MiB each

for _ in range(4):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


# glibc adapts to what a program does, now and then rightly: here it starts with thresholds that don't fit.
EAGER_TO_GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


def page_faults(which: str) -> int:
    command, environment = [sys.executable, "-c", MANY_STEPS, which], os.environ | EAGER_TO_GIVE_BACK
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library: it keeps its own ways")
def test_a_step_asks_the_system_for_no_memory_that_the_step_before_had() -> None:
    assert page_faults("keep") * 20 < page_faults("as it is")


def test_the_setting_is_part_of_the_host_and_so_of_every_key() -> None:
    for keeps in (True, False):
        cpu, _ = fingerprint(Devices(cpu=CpuDevice(keep_freed_memory=keeps)))
        assert cpu.keep_freed_memory is keeps


@pytest.mark.parametrize("keeps", [True, False])
def test_a_training_does_as_its_host_says(
    make_experiment: MakeExperiment,
    cpu_host: CpuTarget,
    packed_split: PackedSplit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keeps: bool,
) -> None:
    kept: list[bool] = []
    monkeypatch.setattr("photofinish.training.torch_device.keep_freed_memory", lambda: kept.append(True))
    host = cpu_host.model_copy(update={"keep_freed_memory": keeps})
    run = Run("small", "cpu", make_experiment(epochs=1), host, packed_split.folder, tmp_path / "small" / "cpu")
    train(run, CPU, World(CPU), cast(Tracker, NoTracker()), 0.0)
    assert kept == [True] * keeps
    assert records.read_record(run.out / records.TIMINGS_FOLDER / records.TIMINGS, records.Timings).host == host
