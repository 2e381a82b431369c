"""The recorder in a script's process: without photofinish, and what it sees there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import warm_python
from conftest import run_command
from watched_scripts import figures_of

from photofinish.inside.recorder_files import LineFile
from photofinish.scripts.run_script import Watched, recording
from photofinish.scripts.script_lines import Process, WatchedScript
from photofinish.scripts.script_record import jobs

BLOCKED = """
import sys
for name in ("photofinish", "pydantic", "numpy", "psutil", "filelock"):
    sys.modules[name] = None  # then its import fails
"""
TRAINS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
data = TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
def train(loader):
    net.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        seen = loss.item()
def validate():
    net.eval()
    with torch.no_grad():
        for _ in range(20):
            net(data.tensors[0])
"""


def recorded(folder: Path, script: str, python: str = sys.executable) -> Process:
    """Return what a process recorded that can import nothing but torch."""
    (folder / "train.py").write_text(TRAINS + script, encoding="utf-8")
    with recording("cpu") as (lines, variables):
        sitecustomize = lines / "sitecustomize.py"
        sitecustomize.write_text(BLOCKED + sitecustomize.read_text(encoding="utf-8"))
        environment = os.environ | variables
        run_command([python, "train.py"], folder, environment)
        watched = WatchedScript(lines)
        watched.read()
    assert watched.process
    return watched.process


EPOCHS = """
for epoch in range(6):
    optimizer.param_groups[0]["params"][0].requires_grad_(epoch > 1)  # a frozen weight
    train(DataLoader(data, batch_size=8))
    validate()
"""


def test_a_script_without_our_packages_is_recorded_and_counted(tmp_path: Path) -> None:
    for name in ("parts.py", "small.yaml", "written.yaml"):
        (tmp_path / name).touch()
    files = "import os, parts\nopen('small.yaml').close()\nopen('written.yaml', 'w').close()\n"
    process = recorded(tmp_path, f"{files}os.chdir('..')\n{EPOCHS}")
    figures = figures_of(process)
    assert (figures.steps, figures.epochs, figures.longest_epoch_steps) == (48, 6, 8)
    assert [part.holds for part in figures.parts].count("start") >= 2  # one may be counted
    assert process.counts
    assert process.counts["operations"]["images"] == 8
    assert process.counts["operations"]["flops"] == 2 * 8 * (
        2 * 4 * 8 + 3 * 8 * 2
    )  # with all weights
    assert [what for _, _, what in process.stalls] == ["item"]
    assert [Path(file).name for file in process.files] == ["parts.py", "small.yaml", "train.py"]
    assert min(process.step_parts.values()) > 0
    assert process.peak_bytes["host_bytes"]
    assert 0 < figures.validation_step_seconds < 20 * figures.step_seconds


COMPILES = """
import sys
del sys.modules["filelock"]  # PyTorch's compiler needs it
net = torch.compile(net, backend="eager")
"""


@pytest.mark.parametrize(
    ("version", "begin", "uncounted", "unseen"),
    [
        ((2, 1), "", "from torch 2.2 on", None),
        ((2, 5), COMPILES, "from torch 2.6 on", None),
        ((2, 2), COMPILES, "", "torch.compile"),
    ],
)
def test_a_script_with_an_older_torch_runs_and_what_is_not_seen_of_it_has_a_reason(
    tmp_path: Path, version: tuple[int, int], begin: str, uncounted: str, unseen: str | None
) -> None:
    older = f"import _photofinish.hooks\n_photofinish.hooks.start().torch_version = {version}\n"
    process = recorded(tmp_path, f"{older}{begin}{EPOCHS}", warm_python.executable())
    assert figures_of(process).steps == 48
    assert uncounted in (process.uncounted or "")
    assert (unseen or "") in (process.unseen or "")
    assert bool(process.unseen) == bool(unseen)


FOLDS = """
torch.autocast("cpu", torch.bfloat16, True, False)
def fit(weights):
    global optimizer
    optimizer = torch.optim.SGD(weights, 0.1)
    for epoch in range(2):
        train(DataLoader(data, batch_size=8))
    del optimizer  # a later one may have its address
for fold in range(3):
    net = nn.Linear(4, 2)
    fit([net.bias])
    fit(net.parameters())
"""
HEAD_THEN_ALL = """
all_weights, optimizer = optimizer, torch.optim.SGD(net[2].parameters(), 0.1)
train(DataLoader(data, batch_size=8))
optimizer = all_weights
for epoch in range(3):
    train(DataLoader(data, batch_size=8))
"""
CUT = """
import os, tempfile
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)  # which is gone when the first step is taken
for epoch in range(3):
    for batch, (x, y) in enumerate(DataLoader(data, batch_size=8)):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        if batch == 3:
            break
    validate()
"""
PARTS = """
from torch.utils.data import SubsetRandomSampler
for epoch in range(3):
    train(DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(range(48))))
    net.eval()
    with torch.no_grad():
        for x, _ in DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(range(48, 64))):
            net(x)
"""
FORK = """
class WithoutLength(torch.utils.data.SequentialSampler):
    def __len__(self):
        raise NotImplementedError
def main():
    others = DataLoader(data, batch_size=8, sampler=WithoutLength(data))
    for epoch in range(3):
        for (x, y), (other, _) in zip(DataLoader(data, batch_size=8), others):
            optimizer.zero_grad()
            (net(x).sum() + net(other).sum()).backward()
            optimizer.step()
import multiprocessing
fork = multiprocessing.get_context("fork").Process(target=main)
fork.start()
fork.join()
"""
MANY = """
import copy
nets = [copy.deepcopy(net) for _ in range(30)]
optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in nets]
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=8):
        for net, optimizer in zip(nets, optimizers):
            net(x).sum().backward()
            optimizer.step()
"""
IN_BACKWARD = """
optimizers = {each: torch.optim.SGD([each], 0.1) for each in net.parameters()}
def step(weight):
    optimizers[weight].step()
    weight.grad = None
for each in net.parameters():
    each.register_post_accumulate_grad_hook(step)
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=8):
        net(x).sum().backward()
"""


@pytest.mark.parametrize(
    ("script", "steps", "epoch_steps"),
    [
        (FOLDS, 3 * 2 * 2 * 8, 8),
        (HEAD_THEN_ALL, 4 * 8, 8),
        (CUT, 3 * 4, 4),
        (PARTS, 3 * 6, 6),
        (FORK, 3 * 8, 8),
        (MANY, 3 * 8, 8),
        (IN_BACKWARD, 3 * 8, 8),
    ],
    ids=[
        *("folds", "a head, then all", "cut short", "parts of one data set", "a fork", "many"),
        "in backward",
    ],
)
def test_all_trainings_count_and_an_epoch_is_as_long_as_it_was(
    tmp_path: Path, script: str, steps: int, epoch_steps: int
) -> None:
    process = recorded(tmp_path, script, warm_python.executable())
    figures = figures_of(process)
    assert figures.steps == steps
    assert bool(process.uncounted) == (script is IN_BACKWARD)
    assert len(process.steps) > 1 or script in (CUT, PARTS, FORK)
    assert process.counts or script in (HEAD_THEN_ALL, CUT, IN_BACKWARD)
    assert figures.longest_epoch_steps == epoch_steps
    run = Watched("train", process, figures, -9.0, figures.last_step_at, 1.7e9, (), 0)
    (job,) = jobs([run], None)
    assert (job.epochs, job.epoch_steps) == (steps / epoch_steps, epoch_steps)


def test_a_processs_lines_are_no_program(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        LineFile(tmp_path).note(kind="has_torch", value=True)
    finally:
        os.umask(before)
    (lines,) = tmp_path.iterdir()
    assert oct(lines.stat().st_mode & 0o777) == "0o666"
