"""A character model as custom code, through `dvc repro`."""

from __future__ import annotations

import json
import re

import pytest
from conftest import ONE_THREAD, Project

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
        self.out = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).split(x.shape[-1], dim=-1)
        x = x + scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(x)
"""


def stages_run(output: str) -> set[str]:
    return set(re.findall(r"^Running stage '(.*)'", output, re.MULTILINE))


def test_a_character_model_trains_and_an_edit_runs_only_what_it_affects(project: Project) -> None:
    project.without_mlflow().environment["CUDA_VISIBLE_DEVICES"] = ""
    files = {"text.py": TEXT, "gpt.py": GPT, "blocks.py": BLOCKS, "song.txt": "la la lu " * 60}
    for name, content in files.items():
        (project.root / name).write_text(content)
    song = {
        "source": "./text.py:Characters",
        "path": "song.txt",
        "length": 6,
        "files": "song.txt",
        "validation": 0.2,
        "test": 0.2,
    }
    gpt = {
        "dataset": "song",
        "model": {"name": "./gpt.py:Gpt", "width": 16},
        "loss": {"name": "./examples/own-network/losses.py:Focal", "gamma": 1.0},
        "metrics": ["accuracy"],
        "epochs": 8,
        "batch_size": 32,
        "optimizer": {"name": "adamw", "lr": 0.01},
    }
    project.write_params(
        {"devices": ONE_THREAD, "datasets": {"song": song}, "experiments": {"gpt": gpt}}
    )
    output = project.repro()
    assert re.search(r"^train \d+, validation \d+, test \d+\n4 classes: ", output, re.MULTILINE)
    metrics = json.loads((project.root / "metrics/gpt.json").read_text())["cpu"]
    assert metrics["test_accuracy"] > 0.9
    assert metrics["accuracy"] == pytest.approx(metrics["test_accuracy"])

    (project.root / "blocks.py").write_text(BLOCKS + "# a comment\n")
    project.repro("plan")
    assert project.stages_to_run() == {"plan", "train-cpu@gpt", "train-gpu@gpt"}
    (project.root / "song.txt").write_text("la la lu " * 61)
    assert stages_run(project.repro("split")) == {"plan", "download@song", "split@song"}
