"""Whether a script takes the same first steps twice: what differs is found, and rounding is not."""

from __future__ import annotations

import functools
import math
import tempfile
from pathlib import Path

import pytest
import torch
from watched_scripts import recorded

from photofinish.answer.comparison import SameScript, same_script
from photofinish.inside.hooks import SEEDED
from photofinish.inside.tensors import fingerprint_tensor
from photofinish.results.trained import FirstScriptSteps

SCRIPT = """
import os
import photofinish
photofinish.steps([])
import random, torch
import numpy as np
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
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
        with torch.autocast("cpu", enabled=False):
            x = self.hidden(x * (1.0001 if has("SCALED") else 1.0)).relu()
        return self.out(x)
net = Net()
rate = float(np.random.rand()) + random.random()
optimizer = torch.optim.Adam(net.parameters(), rate, fused=has("FUSED"))
scaler = torch.amp.GradScaler("cpu", enabled=has("FUSED"))
if has("COMPILED"):
    import sys
    sys.modules.pop("filelock", None)  # PyTorch's compiler needs it
    net = torch.compile(net, backend="eager")
if has("UNSEEDED"):
    torch.seed()
for x, y in DataLoader(data, batch_size=128, shuffle=True):
    if has("DROPOUT"):
        torch.manual_seed(int(os.environ["DROPOUT"]))
    def passes():
        y_hat = checkpoint(net, x, use_reentrant=False) if has("CHECKPOINT") else net(x)
        loss = F.cross_entropy(y_hat, y, label_smoothing=1e-3 if has("LOSS") else 0.0)
        optimizer.zero_grad()
        scaler.scale(loss.half().float() if has("HALF") else loss).backward()
        return loss
    if has("CLOSURE"):
        optimizer.step(passes)
        continue
    passes()
    if has("GRADIENT"):
        net.hidden.weight.grad[3:] *= 0.5
    if has("OVERFLOWS") and scaler.get_scale() == 2**16:
        net.out.weight.grad[0] = torch.inf
    scaler.step(optimizer)
    scaler.update()
"""


@functools.cache
def first_steps(*names: str, dropout: str = "") -> FirstScriptSteps:
    """Return the first steps of the script with these variables."""
    variables = dict.fromkeys((*names, SEEDED), "1") | ({"DROPOUT": dropout} if dropout else {})
    with tempfile.TemporaryDirectory() as folder:
        process, _ = recorded(Path(folder), SCRIPT, **variables)
    return process.first_steps


def compared(*names: str, precision: str = "fp32") -> SameScript:
    return same_script(first_steps(), first_steps(*names), [precision])


@pytest.mark.parametrize("changed", [(), ("CLOSURE",), ("CHECKPOINT",)], ids=str)
def test_a_step_computed_in_another_way_is_the_same_without_a_seed_of_its_own(
    changed: tuple[str, ...],
) -> None:
    assert compared(*changed) == SameScript("identical")
    assert first_steps(*changed).inputs == first_steps().inputs  # what is computed again is none


@pytest.mark.parametrize("changed", ["THREADS", "COMPILED", "FUSED"])
def test_threads_a_compiler_and_a_fused_optimizer_with_a_scale_are_rounding(changed: str) -> None:
    assert compared(changed).kind in ("same step", "identical")


@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        (("GELU",), "other step"),
        (("SCALED",), "other step"),
        (("LOSS",), "other step"),
        (("GRADIENT",), "other step"),
        (("UNSEEDED",), "unseeded"),
        (("OTHER_SEED",), "unseeded"),
        (("FUSED", "OVERFLOWS"), "other batches"),  # it skips its first step
    ],
)
def test_a_planted_difference_is_found(planted: tuple[str, ...], kind: str) -> None:
    same = compared(*planted)
    assert same.kind == kind
    if planted == ("GRADIENT",):
        assert same.layer == "hidden.weight"


def test_a_compiled_script_draws_if_it_has_dropout() -> None:
    assert first_steps("COMPILED", "DROPOUT", dropout="1").draws
    assert not first_steps("COMPILED").draws


def test_dropout_on_another_device_is_not_comparable() -> None:
    one, other = (first_steps(dropout=seed) for seed in "12")
    assert same_script(one, other, ["fp32"]).kind == "draws"


def test_a_fault_in_any_direction_shows_from_5_percent_of_a_gradient_on() -> None:
    noise, seen = torch.Generator().manual_seed(1), 0

    def step(*gradients: torch.Tensor) -> FirstScriptSteps:
        names = {str(number): [*fingerprint_tensor(it)] for number, it in enumerate(gradients)}
        return FirstScriptSteps(inputs=[], weights="", losses=[1.0], gradients=names, draws=False)

    for _ in range(200):
        one, other = torch.randn(2, 10_000, generator=noise)
        fault, rounding = torch.randn(2, 10_000, generator=noise)
        right, wrong = step(one, other), step(one + 0.05 * fault, other)
        seen += same_script(right, wrong, ["fp32"]) == SameScript("other step", "0")
        rounded = step(one + 1e-3 * rounding, other)
        assert same_script(right, rounded, ["fp32"]) == SameScript("same step")
    assert seen >= 180


def test_half_precision_may_round_more() -> None:
    steps = first_steps()
    there = steps.model_copy(deep=True)
    for gradient in there.gradients.values():
        gradient[:] = [value * (1 + 2.0**-10 * math.sin(9 * value)) for value in gradient]
    assert same_script(steps, there, ["bf16"]).kind == "same step"


def test_the_scale_of_a_grad_scaler_is_left_out_and_skipped_steps_are_not_compared() -> None:
    steps = first_steps()
    scaled = steps.model_copy(deep=True)
    (loss,) = scaled.losses
    scaled.losses[:] = [loss * 2**16]
    assert same_script(steps, scaled, ["fp16"]).kind == "same step"
    scaled.losses[:] = [loss * 2**16 * 1.1]
    assert same_script(steps, scaled, ["fp16"]) == SameScript("other step", "the loss")
    scaled.losses[:] = [loss * 2**16, loss * 2**15]
    assert same_script(steps, scaled, ["fp16"]).kind == "other batches"


def test_the_norm_of_many_values_has_no_rounding_of_its_own(tmp_path: Path) -> None:
    script = READS.replace("INPUTS", "torch.full((1_500_000, 4), 0.125)")
    process, _ = recorded(tmp_path, script.replace("FORWARD", "self.net(x)"))
    assert process.first_steps.inputs[0][0] == pytest.approx(0.125 * math.sqrt(6e6), rel=1e-12)


CAPTURING = """torch.ones(2, 4)
torch.cuda.is_initialized = torch.cuda.is_current_stream_capturing = lambda: True
torch.accelerator.synchronize = None
torch.Tensor.tolist = torch.Tensor.cpu = lambda *_: os._exit(3)  # to read a value is an error
"""
READS = """
import os, warnings
warnings.simplefilter("error")
import photofinish
photofinish.steps([])
import torch
from torch import nn
net = nn.Linear(4, 2)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net
    def forward(self, x):
        return FORWARD
net_of_inputs = Net()
run = net_of_inputs
inputs = INPUTS
optimizer = torch.optim.SGD(net_of_inputs.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    run(inputs).sum().backward()
    optimizer.step()
print("trained")
"""


@pytest.mark.parametrize(
    ("inputs", "forward", "is_recorded"),
    [
        ("torch.eye(4).to_sparse()", "self.net(torch.sparse.mm(x, torch.eye(4)))", True),
        ("torch.full((2, 4), -torch.inf)", "self.net(x.nan_to_num()) * torch.inf", True),
        ("torch.ones(2, 4); run = torch.vmap(net_of_inputs)", "self.net(x)", False),
        (CAPTURING, "self.net(x)", False),
        ("torch.ones(2, 4, dtype=torch.complex64)", "self.net(x.real)", True),
    ],
)
def test_values_that_cannot_be_read_fail_no_script(
    inputs: str, forward: str, is_recorded: bool, tmp_path: Path
) -> None:
    script = READS.replace("INPUTS", inputs).replace("FORWARD", forward)
    process, printed = recorded(tmp_path, script)
    assert printed == "trained\n"
    assert bool(process.first_steps) == is_recorded
    if process.first_steps:
        text = process.first_steps.model_dump_json()
        assert FirstScriptSteps.model_validate_json(text) == process.first_steps
