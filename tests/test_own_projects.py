"""A character model and a regression on a table, as custom code, through `dvc repro`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ONE_THREAD, Project
from sklearn.datasets import load_diabetes

pytestmark = pytest.mark.slow

TEXT = """
from pathlib import Path
import torch
from torch.utils.data import Dataset

class Characters(Dataset):
    # The next character after each window of a text.
    def __init__(self, path, length):
        text = Path(path).read_text()
        self.classes = sorted(set(text))
        self.ids = torch.tensor([self.classes.index(one) for one in text])
        self.length = length
    def __len__(self):
        return len(self.ids) - self.length
    def __getitem__(self, index):
        return self.ids[index : index + self.length], self.ids[index + self.length].item()
"""
GPT = """
import torch
from torch import nn
from blocks import Block

class Gpt(nn.Module):
    def __init__(self, shape, classes, width=16):
        super().__init__()
        self.tokens, self.places = nn.Embedding(classes, width), nn.Embedding(shape[0], width)
        self.block = Block(width)
        self.head = nn.Linear(width, classes, bias=False)
        self.head.weight = self.tokens.weight
    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.block(x)[:, -1])
"""
BLOCKS = """
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).split(x.shape[-1], dim=-1)
        x = x + scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(x)
"""
PATIENTS = """
import numpy
import torch
from torch.utils.data import Dataset

class Patients(Dataset):
    target_names = ["progression"]
    def __init__(self, path):
        self.table = torch.from_numpy(numpy.loadtxt(path)).float()
    def __len__(self):
        return len(self.table)
    def __getitem__(self, index):
        return self.table[index, :-1] * 20, self.table[index, -1:] / 100
"""
REGRESSOR = """
from torch import nn

class Regressor(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(10, width), nn.Tanh(), nn.Linear(width, 1))

def relative(outputs, targets):
    return ((outputs - targets) / targets).abs().mean()
"""


def write_patients(root: Path, count: int) -> None:
    table = load_diabetes()
    np.savetxt(root / "patients.txt", np.column_stack([table.data, table.target])[:count])


def stages_run(output: str) -> set[str]:
    return set(re.findall(r"^Running stage '(.*)'", output, re.MULTILINE))


def test_a_character_model_and_a_regression_train_and_an_edit_runs_only_what_it_affects(
    project: Project,
) -> None:
    project.without_mlflow().environment["CUDA_VISIBLE_DEVICES"] = ""
    files = {
        "text.py": TEXT,
        "gpt.py": GPT,
        "blocks.py": BLOCKS,
        "patients.py": PATIENTS,
        "regressor.py": REGRESSOR,
        "song.txt": "la la lu " * 60,
    }
    for name, content in files.items():
        (project.root / name).write_text(content)
    write_patients(project.root, 442)
    parts = {"validation": 0.2, "test": 0.2}
    document: dict[str, Any] = {
        "defaults": {
            "epochs": 8,
            "batch_size": 32,
            "optimizer": {"name": "adamw", "lr": 0.01},
        },
        "devices": ONE_THREAD,
        "datasets": {
            "song": {
                "source": "./text.py:Characters",
                "path": "song.txt",
                "length": 6,
                "files": "song.txt",
                **parts,
            },
            "patients": {
                "source": "./patients.py:Patients",
                "path": "patients.txt",
                "files": "patients.txt",
                **parts,
            },
        },
        "experiments": {
            "gpt": {
                "dataset": "song",
                "model": {"name": "./gpt.py:Gpt", "width": 16},
                "loss": {"name": "./examples/own-network/losses.py:Focal", "gamma": 1.0},
                "metrics": ["accuracy"],
            },
            "age": {
                "dataset": "patients",
                "model": {"name": "./regressor.py:Regressor", "width": 8},
                "loss": "smooth_l1",
            },
        },
    }
    project.write_params(document)
    output = project.repro()
    metrics = {}
    for name in ("gpt", "age"):
        metrics[name] = json.loads((project.root / f"metrics/{name}.json").read_text())["cpu"]
    assert re.search(r"^train \d+, validation \d+, test \d+\n4 classes: ", output, re.MULTILINE)
    assert metrics["gpt"]["test_accuracy"] > 0.9
    assert metrics["gpt"]["accuracy"] == pytest.approx(metrics["gpt"]["test_accuracy"])
    assert 0.2 < metrics["age"]["r2"] < 0.7
    error = metrics["age"]["mean_absolute_error"]
    assert f"mean absolute error of {error:.4g} on the test data" in output

    for name in ("blocks.py", "patients.py"):
        (project.root / name).write_text(files[name] + "# a comment\n")
    document["experiments"]["age"]["metrics"] = ["./regressor.py:relative"]
    project.write_params(document)
    packed = {"plan", "download@patients", "split@patients"}
    assert stages_run(project.repro("evaluate@age")) == {*packed, "evaluate@age"}
    assert "relative" in (project.root / "results/age/evaluation/evaluation.json").read_text()
    assert project.stages_to_run() == {"plan", "train-cpu@gpt", "train-gpu@gpt", "compare"}

    write_patients(project.root, 440)
    assert stages_run(project.repro("split@patients")) == packed
    assert "train-cpu@age" in project.stages_to_run()
