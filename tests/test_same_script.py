"""Whether a script takes the same first steps twice: what differs is found, and rounding is not."""

from __future__ import annotations

import functools
import math
import tempfile
from pathlib import Path

import pytest
from watched_scripts import recorded

from photofinish.answer.same_script import SameScript, same_script
from photofinish.inside.hooks import MOVED, SEEDED
from photofinish.results.measured import FirstScriptSteps

SCRIPT = """
import os
import photofinish
photofinish.steps([])
import random, torch
import numpy as np
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
has = lambda name: name in os.environ
torch.set_num_threads(2 if has("THREADS") else 1)
if has("OTHER_SEED"):
    torch.manual_seed(7)
data = TensorDataset(torch.randn(640, 1, 12, 12), torch.randint(5, (640,)))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 64, 3), nn.BatchNorm2d(64)
        self.hidden, self.out = nn.Linear(1600, 256), nn.Linear(256, 5)
    def forward(self, x):
        kind = "tanh" if has("GELU") else "none"
        x = F.gelu(self.norm(self.conv(x)), approximate=kind)
        x = F.max_pool2d(x, 2).flatten(1)
        if has("DROPOUT"):
            x = F.dropout(x, 0.5)
        x = self.hidden(x * (1.0001 if has("SCALED") else 1.0)).relu()
        return self.out(x)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), float(np.random.rand()) + random.random())
if has("UNSEEDED"):
    torch.seed()
for x, y in DataLoader(data, batch_size=128, shuffle=True):
    if has("DROPOUT"):
        torch.manual_seed(int(os.environ["DROPOUT"]))
    loss = F.cross_entropy(net(x), y, label_smoothing=1e-3 if has("LOSS") else 0.0)
    optimizer.zero_grad()
    (loss.half().float() if has("HALF") else loss).backward()
    if has("GRADIENT"):
        net.hidden.weight.grad[3:] *= 0.99
    optimizer.step()
"""


@functools.cache
def first_steps(*names: str, dropout: str = "") -> FirstScriptSteps:
    """Return the first steps of the script with these variables."""
    variables = dict.fromkeys((*names, SEEDED), "1") | ({"DROPOUT": dropout} if dropout else {})
    with tempfile.TemporaryDirectory() as folder:
        process, _ = recorded(Path(folder), SCRIPT, **variables)
    assert process.first_steps
    return process.first_steps


def compared(*names: str, precision: str = "fp32") -> SameScript:
    return same_script(first_steps(), first_steps(*names), first_steps(MOVED), precision)


def test_a_script_is_the_same_as_itself_without_a_seed_of_its_own() -> None:
    assert compared() == SameScript("identical", 3)


def test_other_numbers_of_threads_are_rounding() -> None:
    assert compared("THREADS").kind in ("same steps", "identical")


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        ("GELU", "steps apart"),
        ("SCALED", "steps apart"),
        ("LOSS", "steps apart"),
        ("GRADIENT", "steps apart"),
        ("UNSEEDED", "other inputs"),
        ("OTHER_SEED", "other inputs"),
    ],
)
def test_a_planted_difference_is_found(plant: str, kind: str) -> None:
    assert compared(plant).kind == kind


def test_the_step_and_the_weight_of_a_difference_are_named() -> None:
    assert compared("GRADIENT") == SameScript("steps apart", 1, "hidden.weight")


def test_dropout_on_another_device_is_not_comparable() -> None:
    one, other = (first_steps(dropout=seed) for seed in "12")
    assert same_script(one, other, one, "fp32").kind == "draws"


def test_half_precision_may_round_more() -> None:
    steps, moved = first_steps(), first_steps(MOVED)
    there = steps.model_copy(deep=True)
    for step in there.steps:
        for gradient in step.gradients.values():
            gradient[:] = [value * (1 + 2.0**-10 * math.sin(9 * value)) for value in gradient]
    assert same_script(steps, there, moved, "bf16").kind == "same steps"
