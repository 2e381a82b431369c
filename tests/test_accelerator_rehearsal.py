"""Training on a simulated accelerator, which computes on the CPU.

It is a plug-in of PyTorch (see rehearsal/). The tests build it and start processes with its folder
on their path. The tests' process never loads it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, CustomFiles, MakeExperiment, digits_plan, learnable_images
from rehearsal.plug_in import build, compiler
from safetensors.torch import load_file
from training_process import STAGE
from training_stage import TrainingStage, clean_environment

from photofinish.asking.watch import Limits
from photofinish.commands.ask import ask
from photofinish.comparing.pairs import read_pair
from photofinish.config.loader import read_params
from photofinish.data.packed import PackedSplit
from photofinish.data.split import split
from photofinish.errors import UserError
from photofinish.evaluation.evaluate import evaluate, write_evaluation
from photofinish.files import write_bytes_atomically
from photofinish.machine.accelerators import AcceleratorFacts
from photofinish.machine.fingerprint import CpuTarget, GpuTarget, software_facts
from photofinish.machine.host import cpu_facts
from photofinish.results import records
from photofinish.results.learned import load_network

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
CNN = {"name": "cnn", "channels": (4,), "hidden": (8,)}
ADAM = {"name": "adam", "lr": 2**-7}
"""Optimizer with a learning rate that is exact in float32."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a process with the accelerator."""
    found = compiler()
    if found is None:
        pytest.skip("no C++ compiler here to build the simulated accelerator with")
    folder = tmp_path_factory.mktemp("plug-in") / "rehearsal"
    build(folder, found)
    return clean_environment() | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src")])}


def test_the_trainer_passes_its_checks_and_those_of_real_gpus_on_a_simulated_one(
    environment: dict[str, str],
) -> None:
    # Only a device that works while the host goes on can show that the clock waits for it.
    arguments = ["-q", "-p", "no:cacheprovider", "--maxfail=3", "-k", "not the_clock_waits_until"]
    files = [str(TESTS / "accelerator_checks.py"), str(TESTS / "test_gpu.py")]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *files],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    skipped = re.findall(r"SKIPPED.*: (.*)", ran.stdout)
    of_nvidia = {
        "this accelerator has no TF32",
        "rehearsal is none of NVIDIA's",
        "PyTorch records no steps here",
    }
    assert set(skipped) == {*of_nvidia, "fewer than two CUDA devices here"}


def planned_gpu() -> GpuTarget:
    return GpuTarget(
        kind="auto",
        count=1,
        if_missing="fail",
        # The driver would list a known kind, and torch then reports the real one.
        accelerators=(
            AcceleratorFacts(kind="cuda", name="Rehearsal", memory_bytes=None, driver="1.0"),
        ),
        missing=None,
        threads=1,
        cpu=cpu_facts(),
        software=software_facts(),
    )


# -- the stage ----------


class Stage:
    """`stages/train.py` on either device, in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        cpu: CpuTarget,
        settings: Any,
        environment: dict[str, str],
        side: int = 16,
    ) -> None:
        self.folder, self.results, self._environment = folder, folder / "results", environment
        self.data = folder / "split"
        split(digits_plan(), learnable_images(count=150, side=side), self.data)
        write_bytes_atomically(folder / "gpu.json", planned_gpu().model_dump_json().encode())
        stage = TrainingStage.prepare(folder, settings, cpu, self.data)
        gpu_out = stage.out.with_name("gpu")
        self.stages = {"cpu": stage, "gpu": replace(stage, out=gpu_out, device="gpu")}

    def learned(self, device: records.DeviceLabel) -> Path:
        return self.results / "small" / device / records.MODEL

    def train_on_gpu(self) -> None:
        ran = subprocess.run(  # a warm Python has imported torch without the plug-in
            [sys.executable, str(STAGE), *self.stages["gpu"].arguments()],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def train_on_cpu(self) -> None:
        process = self.stages["cpu"].fork()
        output, _ = process.communicate()
        assert process.returncode == 0, output

    def evaluate(self) -> None:
        learned = {device: self.learned(device) for device in records.DEVICE_LABELS}
        judged = evaluate("small", learned, PackedSplit(self.data))
        write_evaluation(judged, self.results / "small" / records.EVALUATED)


@pytest.fixture(scope="module")
def results(
    tmp_path_factory: pytest.TempPathFactory,
    make_experiment: MakeExperiment,
    cpu_host: CpuTarget,
    environment: dict[str, str],
) -> Stage:
    """Both devices, trained by the real stage and judged."""
    experiment = make_experiment(model=CNN, optimizer=ADAM, repeats=3)
    stage = Stage(tmp_path_factory.mktemp("stage"), cpu_host, experiment, environment)
    stage.train_on_gpu()
    stage.train_on_cpu()
    stage.evaluate()
    return stage


def test_the_stage_leaves_what_it_learned_and_how_long_it_took(results: Stage) -> None:
    gpu, cpu = (records.read_training(results.learned(device)) for device in ("gpu", "cpu"))
    assert isinstance(gpu, records.TrainingRecord)
    assert isinstance(cpu, records.TrainingRecord)
    assert (gpu.device, gpu.device_kind, cpu.device_kind) == ("gpu", "rehearsal", "cpu")
    timings = records.read_record(
        results.results / "small" / "gpu" / records.TIMINGS_FOLDER / records.TIMINGS,
        records.Timings,
    )
    assert isinstance(timings.host, GpuTarget)
    assert (timings.device_name, timings.device_count, timings.peak_memory_bytes) == (
        "rehearsal",
        1,
        None,
    )
    assert len(timings.all_epochs) == 3 * gpu.experiment.epochs
    files = {path.name for path in results.learned("gpu").iterdir()}
    assert files == {path.name for path in results.learned("cpu").iterdir()}
    assert {
        records.WEIGHTS,
        records.HISTORY,
        records.FIRST_STEP,
    } < files


DRAWING_NETWORK = """
from torch import nn
class Net(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.share, self.first, self.last = share, nn.Linear(256, 16), nn.Linear(16, 3)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    def forward(self, images):
        hidden = self.first(images.flatten(1))
        hidden = self.layer(hidden.view(-1, 4, 4)).flatten(1)
        return self.last(nn.functional.dropout(hidden, self.share, self.training))
"""


def test_other_random_numbers_on_the_device_are_no_difference(
    custom_files: CustomFiles,
    make_experiment: MakeExperiment,
    cpu_host: CpuTarget,
    environment: dict[str, str],
) -> None:
    name = custom_files.write("net.py", DRAWING_NETWORK) + ":Net"
    experiment = make_experiment(model={"name": name, "share": 0.5})
    stage = Stage(custom_files.folder, cpu_host, experiment, environment)
    stage.train_on_gpu()
    stage.train_on_cpu()
    stage.evaluate()
    pair = read_pair("small", stage.results / "small")
    assert pair.compared
    assert pair.compared.parity
    found = {layer.name: layer.within_rounding for layer in pair.compared.parity.layers}
    assert found["first forward"] is found["first gradient"] is found["loss curves"] is None
    assert False not in found.values(), found


def test_what_it_saved_loads_where_there_is_no_such_device(results: Stage) -> None:
    assert not hasattr(torch, "rehearsal")
    record = records.read_training(results.learned("gpu"))
    assert isinstance(record, records.TrainingRecord)
    network = load_network(results.learned("gpu"), record)
    assert {tensor.device.type for tensor in network.state_dict().values()} == {"cpu"}
    pickled = list((results.folder / "mlruns").rglob("*.pth"))
    assert pickled, "MLflow has no model"
    loaded = torch.load(pickled[0], weights_only=False)
    assert all(
        torch.equal(loaded.network.state_dict()[name], tensor)
        for name, tensor in network.state_dict().items()
    )


def test_steps_of_ones_own_learn_the_same_on_both_devices(
    tmp_path: Path, cpu_host: CpuTarget, environment: dict[str, str]
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    experiment = read_params(ROOT / "examples/own-jobs.yaml").experiments["gan"]
    stage = Stage(tmp_path, cpu_host, experiment, environment, side=8)
    stage.train_on_gpu()
    stage.train_on_cpu()
    weights = [load_file(stage.learned(device) / records.WEIGHTS) for device in ("cpu", "gpu")]
    for key, weight in weights[0].items():
        torch.testing.assert_close(weights[1][key], weight)
    losses = [
        [row.validation_loss for row in records.read_history(stage.learned(device))]
        for device in records.DEVICE_LABELS
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] != pytest.approx(losses[0][0], rel=1e-2)


# -- asking ----------

ASKED = """
import os, torch
device = DEVICE
net = torch.nn.Linear(64, 3).to(device)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(40):
    optimizer.zero_grad()
    net(torch.randn(32, 64).to(device)).square().mean().backward()
    optimizer.step()
"""
BY_WHAT_IS_HIDDEN = '"cpu" if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else "rehearsal"'


@pytest.fixture
def ask_here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cpu_host: CpuTarget,
    environment: dict[str, str],
) -> Callable[[str], Any]:
    """Ask for a script with this device, and return the records of the answer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    monkeypatch.setattr(
        "photofinish.commands.ask.fingerprint", lambda _devices: (cpu_host, planned_gpu())
    )

    def ask_here(device: str) -> Any:
        Path("train.py").write_text(ASKED.replace("DEVICE", device), encoding="utf-8")
        file = Path("answer.json")
        command = [sys.executable, "train.py"]
        ask(command, None, Limits(60, 60), file, shows_output=False)
        return json.loads(file.read_bytes())[0]["records"]

    return ask_here


def test_ask_runs_a_script_on_both_devices(ask_here: Callable[[str], Any]) -> None:
    found = ask_here(BY_WHAT_IS_HIDDEN)
    assert {name: each["device_kind"] for name, each in found.items()} == {
        "cpu": "cpu",
        "gpu": "rehearsal",
    }
    assert all(each["timings"]["operations"]["flops"] for each in found.values())


def test_ask_reports_a_script_that_computes_on_the_wrong_device(
    ask_here: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"on rehearsal where .* CPU, .* \{device\}"):
        ask_here('"rehearsal"')
    assert list(ask_here('"cpu"')) == ["cpu"]
    assert "computes on the CPU though cuda is here" in capsys.readouterr().err


def test_a_training_is_sampled_on_an_accelerator(
    tmp_path: Path,
    make_experiment: MakeExperiment,
    cpu_host: CpuTarget,
    environment: dict[str, str],
) -> None:
    stage = Stage(tmp_path, cpu_host, make_experiment(model=CNN, epochs=9), environment)
    arguments = [*stage.stages["gpu"].arguments(), "--seconds", "0.001"]
    ran = subprocess.run(
        [sys.executable, "-m", "photofinish.asking.trial", *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    timings = records.read_record(stage.results / "small/gpu/timings.json", records.Timings)
    assert timings.planned_epochs == 9
    assert timings.operations
