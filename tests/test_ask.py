"""`photofinish ask`: what it sees of scripts as they are, and what it answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from photofinish.asking.sample import Length
from photofinish.asking.watch import Limits
from photofinish.commands.ask import ask
from photofinish.errors import UserError

Ask = Callable[..., Any]
BEGIN = """
import argparse, itertools, time, torch
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
loader = DataLoader(data, batch_size=32)
while True:
    for i, (x, y) in enumerate(loader):
        (loss_of(x, y) / 2).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
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
LBFGS = """
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)
def closure():
    optimizer.zero_grad()
    loss = loss_of(*data[:])
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
RECURRENT = """
rnn = nn.LSTM(4, 8, batch_first=True)
optimizer = torch.optim.SGD(rnn.parameters(), 0.1)
while True:
    time.sleep(0.01)
    step(rnn(torch.randn(8, 5, 4))[0].mean())
"""
COMPILED = f"""
net = torch.compile(net, backend="aot_eager")
scaler = torch.amp.GradScaler("cpu")
while True:
    for x, y in DataLoader(data, batch_size=64):
        with torch.autocast("cpu", torch.bfloat16):
            {STEP}
"""
SCRIPTS = {
    "epochs with validation and a worker": (EPOCHS, 32, 10),
    "accumulated gradients": (ACCUMULATES, 64, 5),
    "two optimizers": (GAN, 160, 2),
    "a closure": (LBFGS, 1, None),
    "next of an endless loader": (NEXT, 16, None),
    "a recurrent network without a loader": (RECURRENT, 1, None),
    "a compiled network in bfloat16": (COMPILED, 64, 5),
}
"""Each with the samples of a step and the steps of an epoch."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Ask for a script that begins with a network, and return the answers in the JSON file."""
    monkeypatch.chdir(tmp_path)

    def run(script: str, *arguments: str, length: Length | None = None, seconds: float = 2) -> Any:
        Path("train.py").write_text(BEGIN + script, encoding="utf-8")
        command = [sys.executable, "-W", "error", "train.py", *arguments]
        ask(command, length, Limits(seconds, 60), Path("answer.json"), shows_output=False)
        return json.loads(Path("answer.json").read_bytes())

    return run


@pytest.mark.parametrize("name", SCRIPTS)
def test_steps_of_a_script_are_seen_as_it_is(run: Ask, name: str) -> None:
    script, samples, epoch_steps = SCRIPTS[name]
    answers = run(script)
    record = answers[-1]["record"]
    assert record["timings"]["operations"]["flops"] > 0
    assert record["experiment"]["batch_size"] == samples
    if epoch_steps:
        steps = answers[0]["job"]["epoch_steps"]
        assert steps == pytest.approx(epoch_steps, rel=0.05)
    else:
        assert [each["job"]["name"] for each in answers] == ["an hour of training here"]
    files = {path.name for path in Path().iterdir()}
    assert files == {"train.py", "answer.json"}


def test_the_whole_job_is_what_the_arguments_say_and_validation_is_its_own(run: Ask) -> None:
    (answer,) = run(EPOCHS)
    assert answer["job"]["name"] == "1,000 epochs (--epochs)"
    epoch = answer["record"]["timings"]["epochs"][0]
    assert epoch["validation_seconds"] > 0
    (answer,) = run(EPOCHS, length=Length("max_steps", 500, "--steps"))
    assert answer["job"]["epoch_steps"] == 500


def test_a_script_that_ends_is_measured_whole(run: Ask) -> None:
    (answer,) = run(EPOCHS, "--epochs", "3", seconds=60)
    assert answer["job"]["name"] == "the whole run"
    assert answer["job"]["epoch_steps"] == 30
    assert Path("saved").exists()


def test_a_script_that_fails_shows_its_traceback_and_what_was_measured(
    run: Ask, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(ACCUMULATES.replace("while True", "for _ in range(4)") + "boom", seconds=60)
    captured = capfd.readouterr()
    assert "NameError: name 'boom' is not defined" in captured.err
    assert "a step" in captured.out
    assert "steps" not in captured.out.partition("Now:")[0]  # which are no reason


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("for x, y in DataLoader(data, batch_size=32):\n    net(x)", "10 batches .* 40 modules"),
        ("", "0 batches"),
        ("optimizer.step()", "only 1 step"),
    ],
)
def test_a_script_without_steps_ends_with_what_was_seen(
    run: Ask, script: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        run(script)


def test_a_hidden_sitecustomize_still_runs(
    run: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import builtins\nbuiltins.kept = True\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    assert run("kept\n" + RECURRENT)[0]["answer"]
