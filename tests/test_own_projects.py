"""Two projects of users' own through `dvc repro`: a small character model, and a regression on a table."""

from __future__ import annotations

import json

import pytest
from conftest import ONE_THREAD, Project
from test_own_data_pipeline import stages_run

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
DIABETES = """
import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import Dataset

class Patients(Dataset):
    target_names = ["progression"]
    def __init__(self):
        table = load_diabetes()
        self.values, self.targets = torch.tensor(table.data).float(), torch.tensor(table.target).float()
    def __len__(self):
        return len(self.targets)
    def __getitem__(self, index):
        return self.values[index] * 20, self.targets[index] / 100

class Regressor(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(10, width), nn.Tanh(), nn.Linear(width, 1))

def relative(outputs, targets):
    return ((outputs - targets) / targets).abs().mean()
"""


def test_a_character_model_and_a_regression_train_and_only_what_a_change_touches_runs_again(project: Project) -> None:
    files = {"text.py": TEXT, "gpt.py": GPT, "blocks.py": BLOCKS, "diabetes.py": DIABETES, "song.txt": "la la lu " * 60}
    for name, content in files.items():
        (project.root / name).write_text(content)
    project.environment["CUDA_VISIBLE_DEVICES"] = ""
    parts = {"validation": 0.2, "test": 0.2}
    document = {
        "defaults": {"epochs": 8, "batch_size": 32, "optimizer": {"name": "adamw", "lr": 0.01}},
        "devices": ONE_THREAD,
        "datasets": {
            "song": {"source": "./text.py:Characters", "path": "song.txt", "length": 6, "files": "song.txt", **parts},
            "patients": {"source": "./diabetes.py:Patients", **parts},
        },
        "experiments": {
            "gpt": {"dataset": "song", "model": {"name": "./gpt.py:Gpt", "width": 16}, "metrics": ["accuracy"]},
            "age": {
                "dataset": "patients",
                "model": {"name": "./diabetes.py:Regressor", "width": 8},
                "loss": "smooth_l1",
            },
        },
    }
    project.write_params(document)
    output = project.repro()
    gpt, age = (json.loads((project.root / f"metrics/{name}.json").read_text())["cpu"] for name in ("gpt", "age"))
    assert gpt["test_accuracy"] > 0.9
    assert gpt["accuracy"] == pytest.approx(gpt["test_accuracy"])
    assert 0.2 < age["r2"] < 0.7
    assert f"mean absolute error of {age['mean_absolute_error']:.4g} on the test data" in output

    (project.root / "blocks.py").write_text(BLOCKS + "# a comment\n")
    document["experiments"]["age"]["metrics"] = ["./diabetes.py:relative"]  # type: ignore[index]
    project.write_params(document)
    assert stages_run(project.repro("evaluate@age")) == {"plan", "evaluate@age"}
    assert "relative" in (project.root / "results/age/evaluation/evaluation.json").read_text()
    assert project.stages_to_run() == {"plan", "train-cpu@gpt", "train-gpu@gpt", "compare"}
