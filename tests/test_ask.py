"""`photofinish ask`: what it sees of scripts as they are, and what it answers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import warm_python
from services import free_port
from watched_scripts import figures_of, in_epochs

from photofinish.commands.ask import ask
from photofinish.errors import UserError
from photofinish.reporting.ask_lines import AskFiles
from photofinish.scripts.run_script import Limits
from photofinish.scripts.script_lines import Length

Ask = Callable[..., Any]
BEGIN = """
import warnings
warnings.simplefilter("error")
import argparse, importlib.util, itertools
importlib.util.find_spec("torch")  # as libraries do: that is no import
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
data = TensorDataset(torch.randn(320, 4), torch.randint(2, (320,)))
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(net.parameters())
loss_of = lambda x, y: nn.functional.cross_entropy(net(x), y)
def step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
STEP = "step(loss_of(x, y))\n"
EPOCHS = f"""
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1000)
arguments = parser.parse_args()
loader = DataLoader(data, batch_size=32, num_workers=1, persistent_workers=True)
for _ in range(arguments.epochs):
    net.train()
    for x, y in loader:
        {STEP}
    net.eval()
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=320):
            loss_of(x, y)
open("saved", "w")
"""
ACCUMULATES = """
for _ in range(4):
    for i, (x, y) in enumerate(DataLoader(data, batch_size=32)):
        (loss_of(x, y) / 2).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
boom
"""
GAN = """
critic = nn.Linear(2, 1)
other = torch.optim.SGD(critic.parameters(), 0.01)
while True:
    for i, (x, _) in enumerate(DataLoader(data, batch_size=32)):
        other.zero_grad()
        critic(net(x).detach()).mean().backward()
        other.step()
        if i % 5 == 4:
            step(-critic(net(x)).mean())
"""
CLOSURE = """
rnn = nn.LSTM(4, 8, batch_first=True)
optimizer = torch.optim.LBFGS(rnn.parameters(), max_iter=4)
def closure():
    optimizer.zero_grad()
    loss = rnn(torch.randn(8, 5, 4))[0].square().mean()
    loss.backward()
    return loss
while True:
    optimizer.step(closure)
"""
NEXT = f"""
class Endless(IterableDataset):
    def __iter__(self):
        return ((torch.randn(4), 1) for _ in itertools.count())
batches = iter(DataLoader(Endless(), batch_size=16))
while True:
    x, y = next(batches)
    {STEP}
"""
COMPILED = f"""
net = torch.compile(net, backend="aot_eager")
while True:
    for x, y in DataLoader(data, batch_size=64):
        with torch.autocast("cpu", torch.bfloat16):
            {STEP}
"""
COMPILED_STEP = """
stepping = torch.compile(lambda: optimizer.step(), backend="eager")
while True:
    for x, y in DataLoader(data, batch_size=64):
        optimizer.zero_grad()
        loss_of(x, y).backward()
        stepping()
"""
COMPILED_WHOLE = """
import warnings
warnings.simplefilter("ignore")  # Dynamo itself warns of tensors that are no leaves
whole_step = torch.compile(lambda x, y: step(loss_of(x, y)), backend="eager")
while True:
    for x, y in DataLoader(data, batch_size=64):
        whole_step(x, y)
"""
UNBROKEN = """
class Signs(torch.optim.SGD.__base__):
    def step(self):
        with torch.no_grad():
            for weight in self.param_groups[0]["params"]:
                weight.add_(weight.grad.sign(), alpha=-0.01)
signs = Signs(net.parameters(), {})
stepping = torch.compile(lambda: signs.step(), backend="eager", fullgraph=True)
while True:
    loss_of(*data[:8]).backward()
    stepping()
"""
CAPTURED = """
torch.cuda.is_initialized = torch.cuda.is_current_stream_capturing = lambda: True
torch.accelerator.synchronize = None  # it may not be called
while True:
    step(loss_of(*data[:8]))
"""
UNCOUNTED = """
for _ in range(20):
    step(torch.fft.fft(net(torch.randn(200_000, 4)).flatten()).abs().mean())
"""
TOGETHER = f"""
import os
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
net = nn.parallel.DistributedDataParallel(net.cuda(), device_ids=[rank])
torch.distributed.barrier(device_ids=[rank])
while True:
    for x, y in DataLoader(data, batch_size=64):
        {STEP}
"""
LAUNCH = """
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}
RANK=1 {python} -m train & RANK=0 {python} -m train
"""
COLD = sys.executable, "-W", "error", "train.py"
"""Command of a Python that has not imported torch, which takes seconds."""
A_MOMENT, TO_THE_END = Limits(0.5, 60), Limits(60, 60)
SCRIPTS: dict[str, tuple[str, Length | None, int, dict[str, float]]] = {
    "two optimizers": (GAN, None, 160, {"an epoch": 2}),
    "a closure, and no loader": (CLOSURE, None, 1, {}),
    "endless loader": (NEXT, Length("max_steps", 500, "--steps"), 16, {"500 steps (--steps)": 500}),
    "a compiled network in bfloat16": (COMPILED, None, 64, {"an epoch": 5}),
    "a compiled step of an optimizer": (COMPILED_STEP, None, 64, {"an epoch": 5}),
    "a compiled step of the training": (COMPILED_WHOLE, None, 64, {"an epoch": 5}),
}
"""Each with the length in ask's options, the samples of a step, and steps of jobs by name."""
HOUR = "an hour of training here"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Ask for a script that begins with a network, and return the answers in the JSON file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("photofinish.scripts.run_script._POLL_SECONDS", 0.1)

    def run(
        script: str,
        *arguments: str,
        start: Sequence[str] = (warm_python.executable(), "train.py"),
        length: Length | None = None,
        limits: Limits = A_MOMENT,
    ) -> Any:
        Path("train.py").write_text(BEGIN + script, encoding="utf-8")
        file, command = Path("answer.json"), [*start, *arguments]
        for limit in (limits, replace(limits, training_seconds=60)):
            ask(command, length, limit, AskFiles(file))
            answers = json.loads(file.read_bytes())
            if answers[-1]["records"]["cpu"]["operations"]:
                break  # else a busy machine took too few steps in that time
        return answers

    return run


@pytest.mark.parametrize("name", SCRIPTS)
def test_steps_of_a_script_are_seen_as_it_is(run: Ask, name: str) -> None:
    script, length, samples, expected = SCRIPTS[name]
    answers = run(script, length=length)
    record = answers[-1]["records"]["cpu"]
    assert record["operations"]["flops"] > 0
    assert record["operations"]["images"] == samples
    jobs = {each["job"]["name"]: each["job"]["epoch_steps"] for each in answers}
    assert (jobs.pop(HOUR, None) is None) == (length is not None)
    assert jobs == pytest.approx(expected, rel=0.05)
    assert {path.name for path in Path().iterdir()} == {"train.py", "answer.json"}


def test_the_whole_job_is_what_the_arguments_say_and_validation_is_its_own(
    run: Ask, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    (answer,) = run(EPOCHS)
    captured = capsys.readouterr()
    assert re.search(r"On the CPU: [\d,]+ steps in .* at most \d+ m?s more", captured.err)
    assert re.fullmatch(r"1,000 epochs \(arguments.epochs in train.py:\d+\)", answer["job"]["name"])
    assert answer["job"]["epoch_steps"] == pytest.approx(10, rel=0.05)
    assert answer["records"]["cpu"]["operations"]["images"] == 32
    assert answer["records"]["cpu"]["validation_step_seconds"] > 0
    unseen = "Not counted, as not seen: early stopping, what follows the last step."
    assert unseen in captured.out


def test_a_script_that_ends_is_measured_whole_and_its_output_is_shown(
    run: Ask, capfd: pytest.CaptureFixture[str]
) -> None:
    script = EPOCHS + "print('done')"
    limits = replace(TO_THE_END, shows_output=True)
    (answer,) = run(script, "--epochs", "3", start=COLD, limits=limits)
    printed = capfd.readouterr().out
    assert "done" in printed
    assert "Not counted, as not seen" not in printed
    assert answer["job"]["name"] == "the whole run"
    assert (answer["job"]["epochs"], answer["job"]["epoch_steps"]) == (3, 10)
    assert "extrapolated" not in answer["answer"]["lines"][0]
    assert Path("saved").exists()
    hundred = Length("epochs", 100, "--epochs")
    run(script, "--epochs", "3", limits=limits, length=hundred)
    assert "Not counted, as not seen: early stopping.\n" in capfd.readouterr().out


SLOW_ROWS = f"""
class Rows(TensorDataset):
    def __getitem__(self, row):
        return sum(torch.randn(4) for _ in range(100)), data[row][1]
while True:
    for x, y in DataLoader(Rows(*data.tensors), batch_size=32):
        {STEP}
"""


def test_a_script_with_slow_batches_that_moves_nothing_gets_no_workers_and_no_gpu_before_an_edit(
    run: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    run(SLOW_ROWS)
    printed = capsys.readouterr().out
    assert "num_workers=" not in printed
    assert "`persistent_workers=True`" in printed
    assert "Your script moves nothing to a GPU" in printed
    run(f"{SLOW_ROWS}\n# place = 'cuda'")
    assert "moves nothing" not in capsys.readouterr().out


def test_a_script_that_fails_shows_its_traceback_and_what_was_measured(
    run: Ask, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(ACCUMULATES, limits=TO_THE_END)
    captured = capfd.readouterr()
    assert "NameError: name 'boom' is not defined" in captured.err
    assert "one step on" in captured.out
    assert not re.search("time is (likely )?steps", captured.out)  # which are no reason
    answers = json.loads(Path("answer.json").read_bytes())
    assert answers[0]["job"]["epoch_steps"] == 5
    assert answers[0]["records"]["cpu"]["operations"]["images"] == 64


def test_a_script_without_steps_ends_with_what_was_seen(run: Ask) -> None:
    with pytest.raises(UserError, match=r"10 batches .* 40 modules"):
        run("for x, y in DataLoader(data, batch_size=32):\n    net(x)")
    with pytest.raises(UserError, match="only 1 step"):
        run("optimizer.step()")


@pytest.mark.parametrize(("script", "why"), [(UNBROKEN, "fullgraph"), (CAPTURED, "CUDA graphs")])
def test_steps_that_hooks_can_t_see_are_named_and_the_script_is_not_broken(
    run: Ask, script: str, why: str
) -> None:
    with pytest.raises(UserError, match=rf"^the command .*{why}.* can't be seen$"):
        run(script)


def test_a_script_that_does_not_start_is_waited_for_with_patience(
    run: Ask, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with pytest.raises(UserError, match=r"was stopped after .* s\. It never imported"):
        run("", start=[sys.executable, "-c", "import time; time.sleep(60)"], limits=Limits(60, 1.5))
    awaited = "On the CPU: waiting for the script to import torch, at most 1 s more"
    assert awaited in capsys.readouterr().err


def test_a_killed_ask_takes_the_script_with_it(tmp_path: Path) -> None:
    script = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    command = [sys.executable, "-m", "photofinish", "ask", "--show-output"]
    command += [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as asking:
        assert asking.stdout
        started = psutil.Process(int(asking.stdout.readline()))
        asking.kill()
        started.wait()


def test_processes_that_insist_on_gpus_and_that_make_starts_train_together_on_the_cpu(
    run: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("Makefile").write_text("train:\n\tbash train.sh\n", encoding="utf-8")
    launch = LAUNCH.format(python=warm_python.executable(), port=free_port())
    Path("train.sh").write_text(launch, encoding="utf-8")
    record = run(TOGETHER, start=["make"])[0]["records"]["cpu"]
    assert (record["device_count"], record["operations"]["images"]) == (2, 2 * 64)
    line = "Times are of all processes: 2 on the CPU. Estimates are of one GPU with the batches"
    assert line in capsys.readouterr().out


def test_torchrun_of_a_module_is_watched_and_a_hidden_sitecustomize_still_runs(
    run: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import builtins\nbuiltins.kept = True\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    answers = run("kept\n" + NEXT, start=[torchrun, "--nproc-per-node", "1", "-m", "train"])
    assert answers[0]["records"]["cpu"]["operations"]["images"] == 16


def test_operators_without_a_formula_are_named_and_nothing_is_estimated(run: Ask) -> None:
    length = Length("max_steps", 10**7, "--steps")
    (answer,) = run(UNCOUNTED, length=length, limits=TO_THE_END)
    operations = answer["records"]["cpu"]["operations"]
    assert any("fft" in name for name in operations["without_formula"])
    assert answer["answer"]["answer"] == "Can't tell"
    assert "aten::_fft" in answer["answer"]["lines"][0]


def test_ask_waits_for_some_steps_of_the_second_epoch() -> None:
    process = in_epochs([3.0] * 16)
    until_seconds = process.seconds_until_second_epoch(figures_of(process))
    assert until_seconds == 3.0 * (4 + 10)
