"""Other machines, by the names of their files in machines/."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT, MakeExperiment

from photofinish.config.devices import CpuDevice, Devices
from photofinish.config.loader import Params, read_params
from photofinish.errors import ConfigError, UserError
from photofinish.files import write_bytes_atomically
from photofinish.machine.fingerprint import (
    CpuTarget,
    Machine,
    fingerprint,
    mismatches,
    read_machines,
)
from photofinish.planning.checks import unknown_machines
from photofinish.planning.plan import write_plan
from photofinish.runs.stage import train

PARAMS = """\
defaults: {epochs: 1, batch_size: 2, optimizer: {name: sgd, lr: 0.1}}
devices:
  cpu: {machine: %s}
datasets: {digits: {source: digits, validation: 1, test: 1}}
experiments: {first: {dataset: digits, model: linear}}
"""


@pytest.fixture
def lab() -> Machine:
    """Like this machine, but for its cores."""
    here = Machine.here()
    cpu = replace(here.cpu, usable_cores=96, cgroup_cores_limit=None)
    return here.model_copy(update={"cpu": cpu, "software": replace(here.software, variables={})})


@pytest.fixture
def machines(tmp_path: Path, lab: Machine) -> Path:
    folder = tmp_path / "machines"
    folder.mkdir()
    (folder / "lab.json").write_text(lab.model_dump_json(), encoding="utf-8")
    return folder


def read(params_file: Path, machines: Path, name: str) -> Params:
    params_file.write_text(PARAMS % name, encoding="utf-8")
    return read_params(params_file, partial(unknown_machines, folder=machines))


def test_a_device_has_the_facts_of_the_machine_that_it_names(
    params_file: Path, machines: Path, lab: Machine
) -> None:
    params, folder = read(params_file, machines, "lab"), params_file.parent / "plan"
    write_plan(params, folder, ROOT / "stages", read_machines(params.devices, machines))
    planned = CpuTarget.model_validate_json((folder / "hosts/cpu.json").read_bytes())
    assert (planned.cpu, planned.threads) == (lab.cpu, 96)
    gpu_here = fingerprint(Devices())[1].model_dump(mode="json")
    assert json.loads((folder / "hosts/gpu.json").read_bytes()) == gpu_here


def test_a_misspelt_machine_is_reported_with_its_line_and_the_nearest_name(
    params_file: Path, machines: Path
) -> None:
    with pytest.raises(
        ConfigError, match=r"params.yaml:3  devices.cpu.machine = \"lap\"\n .*did you mean 'lab'\?"
    ):
        read(params_file, machines, "lap")
    (machines / "lab.json").unlink()
    with pytest.raises(ConfigError, match=r"has no machine yet; `photofinish machine lab`"):
        read(params_file, machines, "lab")


def test_a_stage_refuses_what_is_planned_for_another_machine_by_the_facts_that_differ(
    tmp_path: Path, lab: Machine, make_experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, _ = fingerprint(Devices(cpu=CpuDevice(machine="lab")), {"lab": lab})
    assert mismatches(planned, lab) == []
    experiment, host = tmp_path / "small.json", tmp_path / "cpu.json"
    write_bytes_atomically(experiment, make_experiment().model_dump_json().encode())
    write_bytes_atomically(host, planned.model_dump_json().encode())
    monkeypatch.setenv("DVC_STAGE", "train-cpu@small")
    differs = rf"cpu\.usable_cores: 96, not {Machine.here().cpu.usable_cores}\b"
    message = rf"small on cpu is planned for another machine .*{differs}.*`photofinish spread`"
    with pytest.raises(UserError, match=message):
        train("cpu", experiment, host, tmp_path / "data", None, tmp_path / "out")
    assert not (tmp_path / "out").exists()
