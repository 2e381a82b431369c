"""What is watched in a few steps of a script: lines that would stall a GPU, and its parts.

29 of 31 planted lines are found, and no other.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from photofinish.inside.step_watchers import Stalls, StepClock
from photofinish.inside.timed_batches import loaded

BEGIN = """
import contextlib, io, math
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
optimizer = torch.optim.Adam(net.parameters())
total = torch.zeros((), device=device)
def batches():
    for _ in range(5):
        yield torch.randn(6, 4), torch.randint(3, (6,))
def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
STEPS = {
    "classifier": """
x, y = x.to(device, non_blocking=True), y.to(device)
scores = net(x)
loss = F.cross_entropy(scores, y)
update(loss)
total += loss.detach()
running = loss.item()  # waits
hits = (scores.argmax(1) == y).sum().item()  # waits
history = scores.detach().cpu()  # waits
first = float(loss)  # waits
with contextlib.redirect_stdout(io.StringIO()):
    print(f"loss {loss:.3f}")  # waits
    print(f"{x.shape[0]} samples")
""",
    "masks": """
scores = net(x.to(device))
loss = scores.square().mean()
update(loss)
kept = scores[scores > 0]  # waits
rows = torch.nonzero(scores > 0)  # waits
chosen = torch.masked_select(scores, scores > 0)  # waits
where = torch.where(scores > 0)  # waits
places = torch.argwhere(scores > 0)  # waits
kinds = scores.argmax(1).unique()  # waits
zeroed = torch.where(scores > 0, scores, torch.zeros_like(scores))
part = scores[:, 0] + scores[torch.arange(6, device=device), 1]
filled = scores.masked_fill(scores > 0, 0)
""",
    "guards": """
loss = net(x.to(device)).square().mean()
if torch.isnan(loss):  # waits
    raise ValueError
if loss > 1e6:  # waits
    raise ValueError
assert torch.isfinite(loss).all()  # waits
update(loss)
norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
too_long = norm.item() > 10  # waits
steps = int(total) + 1  # waits, unseen: made before
if y.max() > 100:
    raise ValueError
""",
    "host-made": """
scores = net(x.to(device))
weights = torch.ones(3).to(device)  # waits
noise = torch.randn(6, 3).to(device)  # waits
mask = torch.tensor([1.0, 0.0, 1.0]).to(device=device)  # waits
places = torch.arange(6).to(device)  # waits
table = torch.from_numpy(np.ones((6, 3), np.float32)).to(device)  # waits, unseen
better = torch.randn(6, 3, device=device) + torch.zeros_like(scores)
update((scores * weights * mask + noise + table).mean() + places.sum())
""",
    "metrics": """
with torch.no_grad():
    x = x.to(device)
    before = net(x).softmax(1)
x[:, 0] = net[0].bias[0]  # no view that was made without gradients
loss = F.cross_entropy(net(x.to(device)), y.to(device))
update(loss)
predicted = before.argmax(1).numpy()  # waits
as_list = before.tolist()  # waits
as_array = np.asarray(before)  # waits
top = before.max().item()  # waits
gradient = net[0].weight.grad.norm().item()  # waits
labels = y.numpy()
names = [int(each) for each in y]
rate = optimizer.param_groups[0]["lr"]
""",
    "odd": """
ours = x.cuda() if torch.cuda.is_available() else x.to("cpu")
loss = net(ours).abs().mean()
if step % 2 == 0:
    sometimes = loss.item()
update(loss)
with contextlib.redirect_stdout(io.StringIO()):
    print(loss)  # waits
    text = str(loss.detach())  # waits
threshold = torch.zeros(1).to(device)  # waits
while loss < threshold:  # waits
    break
picked = [0.0, 1.0][loss.detach().clamp(0, 1).long()]  # waits
frozen = loss.detach().clone()
half = ours.to(torch.float16)
""",
}


@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.parametrize("name", STEPS)
def test_lines_that_would_stall_a_gpu_are_found_and_no_others(name: str, tmp_path: Path) -> None:
    script = BEGIN + "def train(step, x, y):\n    global total\n"
    script += "".join(f"    {line}\n" for line in STEPS[name].splitlines())
    file = tmp_path / "train.py"
    names: dict[str, Any] = {}
    exec(compile(script, str(file), "exec"), names)  # noqa: S102
    stalls = Stalls()
    data = list(names["batches"]())
    with stalls:
        for step, (x, y) in enumerate(data):
            names["train"](step, x, y)
            stalls.step_ended()
    planted = {n for n, line in enumerate(script.splitlines(), 1) if line.endswith("# waits")}
    assert {(at, line) for at, line, _ in stalls.note["value"]} == {(str(file), n) for n in planted}
    assert STEPS[name].count("# waits") >= 5


def test_a_loader_s_own_tensors_are_no_waits() -> None:
    def stacked(places: Any) -> Any:
        labels = [torch.tensor(place % 3).item() for place in places]
        return torch.zeros(len(places), 4), torch.tensor(labels)

    net = nn.Linear(4, 3)
    loader: Any = torch.utils.data.DataLoader(range(8), batch_size=2, collate_fn=stacked)
    stalls = Stalls()
    with stalls:
        batches = iter(loader)
        for x, y in (loaded(next, batches) for _ in range(len(loader))):
            nn.functional.cross_entropy(net(x.to("cpu")), y.to("cpu")).backward()
            stalls.step_ended()
    assert stalls.note["value"] == []


class Sleeps(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return x.clone()

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(0.04)
        return gradient


class Slow(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Sleeps.apply(super().forward(x))


@pytest.mark.parametrize("has_closure", [False, True])
def test_the_parts_of_a_step_are_timed_and_add_up(has_closure: bool) -> None:
    net = Slow(2, 1)
    optimizer: Any = torch.optim.SGD(net.parameters(), 0.1)
    if has_closure:
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=1, max_eval=1)

    def passes() -> torch.Tensor:
        time.sleep(0.01)
        loss = net(torch.ones(1, 2)).sum()
        loss.backward()
        return loss

    clock = StepClock()
    clock.__enter__()
    began_at = time.perf_counter()
    for _ in range(2):
        if not has_closure:
            passes()
        optimizer.step(passes if has_closure else None)
        clock.optimizer_ended()
        clock.step_ended()
    step_seconds = (time.perf_counter() - began_at) / 2
    clock.__exit__()
    passes()  # no longer timed
    parts = clock.note["value"]
    assert parts["forward"] > 0.02
    assert parts["backward"] > 0.04
    assert parts["optimizer"] > 0
    assert sum(parts.values()) < step_seconds
    assert clock.note["value"] == parts
