"""Training on a simulated accelerator, which computes on the CPU.

It is a plug-in of PyTorch (see rehearsal/). The tests build it and start processes with its folder
on their path. The tests' process never loads it. Its clock is held for scripts with planted times,
so that a busy machine changes no figure.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import warm_python
from conftest import MakeExperiment, digits_plan, learnable_images, run_command
from result_files import read_pair
from training_process import STAGE
from training_stage import TrainingStage, clean_environment
from watched_scripts import figures_of, recorded

from photofinish.commands.ask import ask
from photofinish.data.packed import PackedSplit
from photofinish.data.split import split
from photofinish.evaluation.evaluate import evaluate, write_evaluation
from photofinish.files import write_bytes_atomically
from photofinish.machine.accelerators import AcceleratorFacts
from photofinish.machine.fingerprint import CpuTarget, GpuTarget, software_facts
from photofinish.machine.host import cpu_facts
from photofinish.reporting.ask_lines import AskFiles
from photofinish.results import records
from photofinish.results.learned import load_network
from photofinish.results.measured import (
    MEASURED,
    MEASURED_FOLDER,
    Measured,
    epoch_by_parts,
    read_measured,
)
from photofinish.results.trained import DeviceLabel
from photofinish.scripts.run_script import Limits

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
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
    wanted: dict[str, Any] = {"kind": "auto", "count": 1, "if_missing": "fail", "missing": None}
    own: dict[str, Any] = {"threads": 1, "cpu": cpu_facts(), "software": software_facts()}
    return GpuTarget(**wanted, **own, accelerators=(facts,))


# -- the stage ----------

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
    split(digits_plan(), learnable_images(count=150, side=16), folder / "split")
    write_bytes_atomically(folder / "gpu.json", planned_gpu().model_dump_json().encode())
    on_cpu = TrainingStage.prepare(folder, experiment, cpu_host, folder / "split")
    on_gpu = replace(on_cpu, out=on_cpu.out.with_name("gpu"), device="gpu")
    shutil.copy(empty_database, folder)
    printed = run_python(environment, folder, *on_gpu.measuring())
    assert re.search(r"small on gpu: about .* for 3 epochs \(.*\)", printed)
    run_python(environment, folder, str(STAGE), *on_gpu.arguments())
    run_python(clean_environment(), folder, *on_cpu.measuring())
    process = on_cpu.fork()
    output, _ = process.communicate()
    assert process.returncode == 0, output
    learned: dict[DeviceLabel, Path]
    learned = {"cpu": on_cpu.out / records.MODEL, "gpu": on_gpu.out / records.MODEL}
    judged = evaluate("small", learned, PackedSplit(on_cpu.data))
    write_evaluation(judged, on_cpu.out.with_name(records.EVALUATED))
    return on_cpu.out.parent


def test_the_stages_leave_what_was_measured_and_learned_and_how_long_it_took(results: Path) -> None:
    measured = read_measured(results / "gpu" / MEASURED_FOLDER / MEASURED)
    assert isinstance(measured, Measured)
    assert measured.training.device_kind == "rehearsal"
    assert measured.operations
    assert measured.first_step
    times = results / "gpu" / records.TIMINGS_FOLDER / records.TIMINGS
    timings = records.read_record(times, records.TrainingTimes)
    assert isinstance(timings.host, GpuTarget)
    assert (timings.device_name, timings.device_count) == ("rehearsal", 1)
    assert timings.peak_memory_bytes is None
    assert len(timings.all_epochs) == 3 * 3
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
    assert (record.device, record.device_kind) == ("gpu", "rehearsal")
    folders = (results / device / records.MODEL for device in ("gpu", "cpu"))
    on_gpu, on_cpu = ({path.name for path in folder.iterdir()} for folder in folders)
    assert on_gpu == on_cpu > {records.WEIGHTS, records.HISTORY}
    network = load_network(results / "gpu" / records.MODEL, record)
    assert {tensor.device.type for tensor in network.state_dict().values()} == {"cpu"}
    pickled = list((results.parent.parent / "mlruns").rglob("*.pth"))
    assert pickled, "MLflow has no model"
    loaded = torch.load(pickled[0], weights_only=False).network.state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in network.state_dict().items())


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


def test_ask_runs_a_script_on_both_devices(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cpu_host: CpuTarget,
    environment: dict[str, str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    hosts = cpu_host, planned_gpu()
    monkeypatch.setattr("photofinish.commands.ask.fingerprint", lambda _devices: hosts)
    Path("train.py").write_text(ASKED, encoding="utf-8")
    ask([warm_python.executable(), "train.py"], None, Limits(60, 60), AskFiles(Path("answer.json")))
    runs = json.loads(Path("answer.json").read_bytes())[0]["records"]
    devices = {name: run["script"]["device_kind"] for name, run in runs.items()}
    assert devices == {"cpu": "cpu", "gpu": "rehearsal"}
    assert all(run["operations"]["flops"] for run in runs.values())


# -- figures of scripts whose true times are planted ----------

BEGIN = """
import torch
import rehearsal_device as device
device.hold_clock()
import functools, time
import photofinish
photofinish.steps([])
net = torch.nn.Linear(4, 2).to("rehearsal")
optimizer = torch.optim.SGD(net.parameters(), 0.1)
inputs = torch.ones(8, 4, device="rehearsal")

@functools.cache
def loader(batches, seconds):
    data = [seconds] * batches
    return torch.utils.data.DataLoader(data, batch_size=None, collate_fn=time.sleep)
def compute(seconds):
    net(inputs).sum().backward()
    device.launch(seconds)
def step(seconds):
    compute(seconds)
    optimizer.step()
    optimizer.zero_grad()
def read():
    inputs.sum().item()
def validate(batches, seconds):
    net.eval()
    with torch.no_grad():
        for _ in loader(batches, seconds):
            net(inputs)
            device.launch(0.01)
    read()
    net.train()
"""
END = """
read()
print(time.perf_counter())
time.sleep(1)
"""


class Truth(NamedTuple):
    """True times of a script, as planted: of a step, and of an epoch with its validation."""

    script: str
    step_seconds: float
    loading: float
    """Share of a step in which the device waits for batches."""
    epoch_steps: int
    epoch_seconds: float
    validation_seconds: float = 0.0


def steps(batches: int, loading: float, computing: float, read: str = "") -> str:
    return f"for _ in loader({batches}, {loading}):\n    step({computing})\n    {read}\n"


HIDDEN = steps(60, 0.24, 0.3)
SHORT = """
for _ in range(30):
    for _ in loader(20, 0.0):
        time.sleep(0.002)
        step(0.01)
    READ
    validate(5, 0.0)
"""
OLD_TORCH = """
stream, Event = torch.accelerator.current_stream(), torch.Event
torch.rehearsal.current_stream = lambda device: stream
torch.rehearsal.synchronize = lambda device: stream.synchronize()
torch.rehearsal.Event = lambda **named: Event("rehearsal", **named)
del torch.accelerator, torch.Event
"""
REPLAYED = """
for _ in range(3):
    step(0.01)
device.capture(True)
for _ in loader(1, 0.0):
    step(0.01)
device.capture(False)
for _ in photofinish.steps(loader(300, 0.005)):
    device.launch(0.01)
    read()
"""
ACCUMULATED = """
for number, _ in enumerate(loader(400, 0.03), 1):
    compute(0.01)
    if number % 4 == 0:
        step(0.0)
"""
SCRIPTS = {
    "loading hidden behind computing": Truth(HIDDEN, 0.3, 0.0, 60, 18.0),
    "slow steps, read": Truth(steps(60, 0.15, 0.05, "read()"), 0.2, 0.75, 60, 12.0),
    "slow steps, old torch": Truth(OLD_TORCH + steps(40, 0.3, 0.06), 0.3, 0.8, 40, 12.0),
    "short epochs, read": Truth(SHORT.replace("READ", "read()"), 0.01, 0.0, 20, 0.252, 0.052),
    "short epochs, unread": Truth(SHORT.replace("READ", ""), 0.01, 0.0, 20, 0.252, 0.052),
    "accumulated gradients": Truth(ACCUMULATED, 0.12, 2 / 3, 100, 12.0),
    "replays of a captured step": Truth(REPLAYED, 0.015, 1 / 3, 300, 4.5),
}


@pytest.mark.parametrize("truth", SCRIPTS.values(), ids=list(SCRIPTS))
def test_the_figures_of_a_script_on_a_device_are_the_true_ones(
    tmp_path: Path, environment: dict[str, str], truth: Truth
) -> None:
    script = BEGIN + truth.script + END
    process, printed = recorded(tmp_path, script, PYTHONPATH=environment["PYTHONPATH"])
    assert (process.device, process.unseen) == ("rehearsal", None)
    figures = figures_of(process)
    validation_seconds = figures.validation_step_seconds * truth.epoch_steps
    epoch = epoch_by_parts(figures.parts, truth.epoch_steps)
    assert figures.step_seconds == pytest.approx(truth.step_seconds, rel=0.03)
    assert figures.waiting_share == pytest.approx(truth.loading, abs=0.05)
    assert validation_seconds == pytest.approx(truth.validation_seconds, rel=0.05, abs=1e-3)
    assert epoch.seconds + validation_seconds == pytest.approx(truth.epoch_seconds, rel=0.03)
    assert figures.last_step_at < float(printed) + 0.001


@pytest.mark.parametrize(("host_seconds", "idle_share"), [(0.0095, 1.0), (0.001, 0.0)])
def test_a_device_that_waits_for_launches_is_idle_at_the_end_of_a_step(
    tmp_path: Path, environment: dict[str, str], host_seconds: float, idle_share: float
) -> None:
    script = f"for _ in range(200): time.sleep({host_seconds}); step({0.01 - host_seconds})\n"
    process, _ = recorded(tmp_path, BEGIN + script + END, PYTHONPATH=environment["PYTHONPATH"])
    assert figures_of(process).idle_share == pytest.approx(idle_share, abs=0.05)


def test_steps_that_a_device_had_not_ended_when_the_script_was_killed_are_not_counted(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    killed = "import os\nos.kill(os.getpid(), 9)"
    process, _ = recorded(tmp_path, BEGIN + HIDDEN + killed, PYTHONPATH=environment["PYTHONPATH"])
    figures = figures_of(process)
    assert 40 < figures.steps <= 60 * 0.24 / 0.3
    assert figures.step_seconds == pytest.approx(0.3, rel=0.03)
