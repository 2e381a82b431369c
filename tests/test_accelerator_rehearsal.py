"""Training on a simulated accelerator, which computes on the CPU.

It is a plug-in of PyTorch (see rehearsal/). The tests build it and start processes with its folder
on their path. The tests' process never loads it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import warm_python
from conftest import MakeExperiment, digits_plan, learnable_images, run_command
from result_files import read_pair
from training_process import STAGE
from training_stage import TrainingStage, clean_environment

from photofinish.commands.ask import ask
from photofinish.config.experiment import Experiment
from photofinish.data.packed import PackedSplit
from photofinish.data.split import split
from photofinish.errors import UserError
from photofinish.evaluation.evaluate import evaluate, write_evaluation
from photofinish.files import write_bytes_atomically
from photofinish.machine.accelerators import AcceleratorFacts
from photofinish.machine.fingerprint import CpuTarget, GpuTarget, software_facts
from photofinish.machine.host import cpu_facts
from photofinish.reporting.ask_lines import AskFiles
from photofinish.results import records
from photofinish.results.learned import load_network
from photofinish.results.measured import MEASURED, MEASURED_FOLDER, Measured, read_measured
from photofinish.results.trained import DeviceLabel
from photofinish.scripts.run_script import Limits, Watched, watch

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
PRINTED = "measuring.txt"
LEFT_OUT = "not the_clock_waits_until and not (again_gives and (tf32 or bf16 or fp16))"
"""Tests that need a device which works while the host goes on, and kernels of other precisions."""
ADAM = {"name": "adam", "lr": 2**-7}
"""Optimizer with a learning rate that is exact in float32."""


def run_python(environment: dict[str, str], folder: Path, *arguments: str) -> str:
    """Run a warm Python, which must succeed."""
    ran = run_command([warm_python.executable(), *arguments], folder, environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_trainer_passes_its_checks_and_those_of_real_gpus_on_a_simulated_one(
    environment: dict[str, str],
) -> None:
    arguments = ["-q", "-p", "no:cacheprovider", "--maxfail=3", "-k", LEFT_OUT]
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # warm Python imported anyio
    files = [str(TESTS / "accelerator_checks.py"), str(TESTS / "test_gpu.py")]
    output = run_python(environment, TESTS.parent, "-m", "pytest", *arguments, *files)
    assert set(re.findall(r"SKIPPED.*: (.*)", output)) == {
        "this accelerator has no TF32",
        "PyTorch records no steps here",
        "fewer than two CUDA devices here",
    }


def planned_gpu() -> GpuTarget:
    # The driver would list a known kind, and torch then reports the real one.
    facts = AcceleratorFacts(kind="cuda", name="Rehearsal", memory_bytes=None, driver="1.0")
    return GpuTarget(
        kind="auto",
        count=1,
        if_missing="fail",
        accelerators=(facts,),
        missing=None,
        threads=1,
        cpu=cpu_facts(),
        software=software_facts(),
    )


# -- the stage ----------


def prepare(
    folder: Path, cpu: CpuTarget, experiment: Experiment
) -> tuple[TrainingStage, TrainingStage]:
    """Return the stage on the CPU and on the accelerator, in a folder of their own."""
    split(digits_plan(), learnable_images(count=150, side=16), folder / "split")
    write_bytes_atomically(folder / "gpu.json", planned_gpu().model_dump_json().encode())
    on_cpu = TrainingStage.prepare(folder, experiment, cpu, folder / "split")
    return on_cpu, replace(on_cpu, out=on_cpu.out.with_name("gpu"), device="gpu")


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


@pytest.fixture(scope="module")
def results(
    tmp_path_factory: pytest.TempPathFactory,
    make_experiment: MakeExperiment,
    cpu_host: CpuTarget,
    environment: dict[str, str],
    empty_database: Path,
) -> Path:
    """Return the results of both devices, trained by the real stage and judged."""
    folder = tmp_path_factory.mktemp("stage")
    network = folder / "drawing_network.py"
    network.write_text(DRAWING_NETWORK, encoding="utf-8")
    model = {"name": f"{network}:Net", "share": 0.5}
    experiment = make_experiment(model=model, optimizer=ADAM, repeats=3)
    on_cpu, on_gpu = prepare(folder, cpu_host, experiment)
    shutil.copy(empty_database, folder)
    measuring = run_python(environment, folder, *on_gpu.measuring())
    (on_gpu.out / PRINTED).write_text(measuring, encoding="utf-8")
    run_python(environment, folder, str(STAGE), *on_gpu.arguments())
    warm = [warm_python.executable(), *on_cpu.measuring()]
    measured = run_command(warm, folder, clean_environment())
    assert measured.returncode == 0, measured.stderr
    process = on_cpu.fork()
    output, _ = process.communicate()
    assert process.returncode == 0, output
    learned: dict[DeviceLabel, Path]
    learned = {"cpu": on_cpu.out / records.MODEL, "gpu": on_gpu.out / records.MODEL}
    judged = evaluate("small", learned, PackedSplit(on_cpu.data))
    write_evaluation(judged, on_cpu.out.with_name(records.EVALUATED))
    return on_cpu.out.parent


def test_a_training_is_measured_on_an_accelerator(results: Path) -> None:
    printed = (results / "gpu" / PRINTED).read_text(encoding="utf-8")
    assert re.search(r"small on gpu: about .* for 3 epochs \(.*\)", printed)
    measured = read_measured(results / "gpu" / MEASURED_FOLDER / MEASURED)
    assert isinstance(measured, Measured)
    assert measured.training.device_kind == "rehearsal"
    assert measured.operations
    assert measured.first_step


def test_the_stage_leaves_what_it_learned_and_how_long_it_took(results: Path) -> None:
    gpu, cpu = (records.read_training(results / name / records.MODEL) for name in ("gpu", "cpu"))
    assert isinstance(gpu, records.TrainingRecord)
    assert isinstance(cpu, records.TrainingRecord)
    assert (gpu.device, gpu.device_kind, cpu.device_kind) == ("gpu", "rehearsal", "cpu")
    timings = records.read_record(
        results / "gpu" / records.TIMINGS_FOLDER / records.TIMINGS, records.TrainingTimes
    )
    assert isinstance(timings.host, GpuTarget)
    assert (timings.device_name, timings.device_count) == ("rehearsal", 1)
    assert timings.peak_memory_bytes is None
    assert len(timings.all_epochs) == 3 * gpu.experiment.epochs
    on_gpu, on_cpu = (
        {path.name for path in (results / name / records.MODEL).iterdir()}
        for name in ("gpu", "cpu")
    )
    assert on_gpu == on_cpu > {records.WEIGHTS, records.HISTORY}
    pair = read_pair("small", results)  # other random numbers on the device are no difference
    assert pair.speedups
    assert pair.parity
    found = {layer.name: layer.within_rounding for layer in pair.parity.layers}
    assert found["first forward"] is found["first gradient"] is found["loss curves"] is None
    assert False not in found.values(), found


def test_what_it_saved_loads_where_there_is_no_such_device(results: Path) -> None:
    assert not hasattr(torch, "rehearsal")
    record = records.read_training(results / "gpu" / records.MODEL)
    assert isinstance(record, records.TrainingRecord)
    network = load_network(results / "gpu" / records.MODEL, record)
    assert {tensor.device.type for tensor in network.state_dict().values()} == {"cpu"}
    pickled = list((results.parent.parent / "mlruns").rglob("*.pth"))
    assert pickled, "MLflow has no model"
    loaded = torch.load(pickled[0], weights_only=False)
    assert all(
        torch.equal(loaded.network.state_dict()[name], tensor)
        for name, tensor in network.state_dict().items()
    )


# -- asking ----------

ASKED = """
import os, torch
device = "cpu" if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else "rehearsal"
net = torch.nn.Linear(64, 3).to(device)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(40):
    optimizer.zero_grad()
    net(torch.randn(32, 64).to(device)).square().mean().backward()
    optimizer.step()
"""


def test_ask_runs_a_script_on_both_devices_and_reports_one_that_computes_on_the_wrong_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cpu_host: CpuTarget,
    environment: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    hosts = cpu_host, planned_gpu()
    monkeypatch.setattr("photofinish.commands.ask.fingerprint", lambda _devices: hosts)
    Path("train.py").write_text(ASKED, encoding="utf-8")
    ran: dict[str, Watched] = {}

    def asked(watching: Callable[..., Watched]) -> Any:
        monkeypatch.setattr("photofinish.commands.ask.watch", watching)
        file = Path("answer.json")
        command = [warm_python.executable(), "train.py"]
        ask(command, None, Limits(60, 60), AskFiles(file))
        return json.loads(file.read_bytes())[0]["records"]

    def watch_and_keep(command: list[str], kind: str, **named: Any) -> Watched:
        return ran.setdefault(kind, watch(command, kind=kind, **named))

    found = asked(watch_and_keep)
    assert {name: each["script"]["device_kind"] for name, each in found.items()} == {
        "cpu": "cpu",
        "gpu": "rehearsal",
    }
    assert all(each["operations"]["flops"] for each in found.values())

    with pytest.raises(UserError, match=r"used rehearsal in its run on the CPU.* \{device\}"):
        asked(lambda *_, **__: ran["cuda"])
    assert list(asked(lambda *_, **__: ran["cpu"])) == ["cpu"]
    assert "ran on the CPU although this machine has a GPU" in capsys.readouterr().err
