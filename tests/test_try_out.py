"""`photofinish plan --try` runs users' code on a few samples and reports all that fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT, CustomFiles

from photofinish.commands.try_out import try_out
from photofinish.config.base import read_plan
from photofinish.config.experiment import ExperimentPlan
from photofinish.config.loader import read_params
from photofinish.errors import UserError
from photofinish.planning.plan import write_plan

CODE = """\
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    def forward(self, images): return self.layers(images), None
def Normed(classes):
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(64, classes))
    return nn.Sequential(nn.Flatten(), linear)
def blur(image): return image @ torch.ones(3, 3)
def loss(outputs, targets): return outputs.no_such_loss()
def metric(outputs, targets): return outputs.no_such_metric()
def optimizer(network): return network.no_such_optimizer()
class Data:
    def __len__(self): return 100
    def __getitem__(self, i):
        if i == 99: raise OSError("no such file")
        return torch.rand(1, 8, 8), i % 5
"""
PARAMS = """\
defaults: {epochs: 3, batch_size: 100, optimizer: {name: sgd, lr: 0.05}}
datasets:
  digits: {source: digits, validation: 0.15, test: 0.15}
  mine: {source: './my.py:Data', validation: 0.15, test: 0.15}
experiments:
  good:
    dataset: digits
    model: {name: './my.py:Net', output: 0}
    metrics: [accuracy]
    batch_transform: MixUp
  built-in: {dataset: digits, model: linear}
"""
LATER = "  later: {dataset: later, model: linear}\n"
FAULTY = """\
  many:
    dataset: digits
    model: {name: './my.py:Net', output: 0}
    loss: './my.py:loss'
    metrics: [accuracy, './my.py:metric']
    optimizer: './my.py:optimizer'
    input: {name: loader, workers: 2, transform: './my.py:blur'}
  two: {dataset: digits, model: {name: './my.py:Net'}}
  theirs: {dataset: mine, model: linear}
"""


def planned(custom_files: CustomFiles, params: str) -> Path:
    custom_files.write("my.py", CODE)
    file = custom_files.folder / custom_files.write("params.yaml", params)
    write_plan(read_params(file), custom_files.folder / "plan", ROOT / "stages")
    return custom_files.folder / "plan"


def test_all_that_fails_is_reported_at_once(custom_files: CustomFiles) -> None:
    with pytest.raises(UserError) as raised:
        try_out(planned(custom_files, PARAMS + FAULTY))
    problems = str(raised.value).split("\n\n")[1:]
    assert [problem.partition(": ")[0] for problem in problems] == [
        "datasets.mine",
        "experiments.many.input",
        "experiments.many.loss",
        "experiments.many.metrics.1",
        "experiments.many",
        "experiments.two.model",
    ]
    assert all("my.py" in problem for problem in problems[:-1])


READS = """\
from pathlib import Path
import torch
from torch import nn
def Net(classes):
    width = len(Path(__file__).with_name("vocab.txt").read_text().split())
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, classes))
class Data:
    def __init__(self): self.rows = [[0.0] * 64] * len(Path("rows.txt").read_text())
    def __len__(self): return len(self.rows)
    def __getitem__(self, i): return torch.tensor(self.rows[i]).view(1, 8, 8), float(i)
"""
READING = """\
defaults: {epochs: 3, batch_size: 100, optimizer: {name: sgd, lr: 0.05}}
datasets:
  mine: {source: './reads.py:Data', validation: 0.15, test: 0.15}
experiments:
  words: {dataset: mine, model: './reads.py:Net'}
"""


def test_a_file_that_code_opens_is_named_in_deps_or_reported(
    custom_files: CustomFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    custom_files.write("reads.py", READS)
    custom_files.write("vocab.txt", "a b c")
    custom_files.write("rows.txt", "x" * 100)
    try_out(planned(custom_files, READING))
    notes = [line for line in capsys.readouterr().out.splitlines() if " reads " in line]
    assert [note.partition(", ")[0] for note in notes] == [
        "note: datasets.mine reads rows.txt",
        "note: experiments.words reads vocab.txt",
    ]
    params = READING.replace("0.15}", "0.15, deps: [rows.txt]}")
    params = params.replace("Net'", "Net', deps: [vocab.txt]")
    plans = planned(custom_files, params)
    try_out(plans)
    assert " reads " not in capsys.readouterr().out
    before = read_plan(plans / "on_cpu/words.json", ExperimentPlan).custom_code
    custom_files.write("vocab.txt", "a b c d")
    planned(custom_files, params)
    after = read_plan(plans / "on_cpu/words.json", ExperimentPlan).custom_code
    assert [file for file in after if after[file] != before[file]] == ["vocab.txt"]


def test_what_works_is_tried_without_a_split(
    custom_files: CustomFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    params = PARAMS.replace(
        "  mine:", "  later: {source: FashionMNIST, validation: 100}\n  # mine:"
    )
    normed = "  normed: {dataset: digits, model: './my.py:Normed'}\n"
    scripts = "scripts: {mine: {command: python my.py, deps: [my.py]}}\n"
    plans = planned(custom_files, f"{params}{normed}{LATER}{scripts}")
    try_out(plans)
    lines = capsys.readouterr().out.splitlines()
    (note,) = [line for line in lines if line.startswith("note: ")]
    assert note.startswith("note: experiments.normed.model: MLflow will keep its code and state")
    lines.remove(note)
    assert lines == [
        "experiments.built-in: 2 steps",
        "experiments.good: 2 steps",
        "experiments.normed: 2 steps",
        "Not tried: datasets.later and experiments.later, as the data is not downloaded yet: "
        "`photofinish run download@later`, then try again",
        "Not tried: scripts.mine: `photofinish ask mine` runs them a while",
        "Tried 1 data set and 3 experiments: nothing fails",
    ]
    assert not (custom_files.folder / "data").exists()


def test_a_trial_of_nothing_is_an_error(custom_files: CustomFiles) -> None:
    data = "datasets: {later: {source: FashionMNIST, validation: 100}}\nexperiments:\n"
    params = PARAMS.partition("datasets:")[0] + data + LATER
    with pytest.raises(UserError, match=r"nothing was tried(?s:.)*photofinish run download@later"):
        try_out(planned(custom_files, params))
