"""Counted steps of small scripts, whose data sets compute by torch as transforms do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from watched_scripts import recorded

BEGIN = """
import os
import photofinish
photofinish.steps([])
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

WORKERS = int(os.environ["WORKERS"])

class Data(Dataset):
    def __init__(self, *shape, transform=lambda each: each, size=96):
        self.shape, self.transform, self.size = shape, transform, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        sample = torch.randint(256, self.shape).float().div(255)
        sample = (sample - sample.mean()) / (sample.std() + 1e-6)
        return self.transform(sample.flip(-1)), index % 4

def loader(data, **settings):  # 12 batches an epoch: the 13th step is counted
    return DataLoader(data, 8, num_workers=WORKERS, **settings)

def train(net, batches, between=lambda: None):
    optimizer = torch.optim.AdamW([each for each in net.parameters() if each.requires_grad])
    for _ in range(2):
        for x, y in batches:
            optimizer.zero_grad()
            functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        between()

def cnn():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 4))
"""
END = "os._exit(0)  # without the loader's parts, which are measured at the end"

SCRIPTS = {
    "several batches a step, shuffled, in bfloat16": """
net = cnn()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
batches = loader(Data(3, 16, 16), shuffle=True)
with torch.autocast("cpu", torch.bfloat16):
    for _ in range(4):
        for group in zip(*[iter(batches)] * 3):
            optimizer.zero_grad()
            sum(functional.cross_entropy(net(x), y) for x, y in group).backward()
            optimizer.step()
""",
    "sequences, padded": """
class Recurrent(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0][:, -1]
def padded(samples):
    rows = [torch.ones(4 + y, 5) * x[0] for x, y in samples]
    return nn.utils.rnn.pad_sequence(rows, True), torch.tensor([y for _, y in samples])
train(Recurrent(5, 4, batch_first=True), loader(Data(5), collate_fn=padded))
""",
    "a transformer on spectra that another network has seen": """
other = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).double()
def features(rows):
    with torch.no_grad():
        return other(torch.fft.fft2(rows).abs().double()).float()
layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
net = nn.Sequential(layer, nn.Flatten(), nn.Linear(80, 4))
train(net, loader(Data(10, 16, transform=features)))
""",
}


def counted(folder: Path, script: str, workers: int) -> dict[str, Any]:
    folder = folder / str(workers)
    folder.mkdir(parents=True)
    process, _ = recorded(folder, f"{BEGIN}{script}\n{END}", WORKERS=str(workers))
    assert process.counts
    return process.counts


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return True if two steps have the same names and precisions, and counts within 2 %."""
    flat, other_flat = (each | each["operations"] | {"operations": None} for each in (one, other))
    numbers = {name for name, value in flat.items() if isinstance(value, int)}
    return flat.keys() == other_flat.keys() and all(
        other_flat[name] == (pytest.approx(value, rel=0.02) if name in numbers else value)
        for name, value in flat.items()
    )


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_step_counts_the_same_if_the_main_process_loads_the_batches(
    tmp_path: Path, script: str
) -> None:
    here, in_workers = (counted(tmp_path, script, workers) for workers in (0, 2))
    assert same(here, in_workers)
    assert here["operations"]["kernels"] > 5


IN_A_THREAD = """
import queue, threading
class Ahead:
    def __init__(self, batches):
        self.batches = batches
    def __iter__(self):
        ahead = queue.Queue(2)
        def load():
            for batch in self.batches:
                ahead.put(batch)
            ahead.put(None)
        threading.Thread(target=load).start()
        return iter(ahead.get, None)
def slowly(row):
    threading.Event().wait(0.005)
    return row
net = nn.Sequential(nn.Linear(16, 2000), nn.ReLU(), nn.Linear(2000, 4))
train(net, Ahead(loader(Data(16, transform=slowly))))
"""


def test_a_step_counts_the_same_while_a_thread_loads_the_next_batch(tmp_path: Path) -> None:
    ahead, without = (
        counted(tmp_path / name, script, 0)
        for name, script in (("a", IN_A_THREAD), ("b", IN_A_THREAD.replace(", Ahead(", ", (")))
    )
    assert ahead["operations"]["flops"] == without["operations"]["flops"] > 0
    assert ahead["operations"]["kernels"] == without["operations"]["kernels"]


VALIDATES = """
net = cnn()
def validate():
    net.eval()
    with torch.no_grad():
        for x, _ in DataLoader(Data(3, 16, 16, size=4)):
            net(x)
    net.train()
train(net, loader(Data(3, 16, 16)), between=validate)
"""


def test_a_step_counts_without_the_validation_before_it(tmp_path: Path) -> None:
    validates, without = (
        counted(tmp_path / name, script, 0)
        for name, script in (("one", VALIDATES), ("other", VALIDATES.replace("=validate", "=list")))
    )
    assert same(validates, without)


SLOW = """
import time
def slowly(row):
    time.sleep(0.02)
    return row
class Spectrum(nn.Linear):
    def forward(self, x):
        return super().forward(torch.fft.fft2(x, s=(256, 256)).abs().mean(1))
train(Spectrum(256, 4), loader(Data(64, 16, transform=slowly, size=56)))
"""


def test_slow_loading_hides_no_operator_without_a_formula(tmp_path: Path) -> None:
    (name,) = counted(tmp_path, SLOW, 0)["operations"]["without_formula"]
    assert name.startswith("aten::_fft")


AUTOCAST = """
from contextlib import nullcontext
torch.manual_seed(0)
class Cast(nn.Sequential):
    def forward(self, x):
        with CAST:
            y = super().forward(x)
            y.detach().NUMPY()  # which has no bfloat16
        return y
layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0)
net = Cast(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 320), nn.Tanh(),
           nn.Unflatten(1, (10, 32)), layer, nn.Flatten(), nn.Linear(320, 4))
train(net, loader(Data(3, 16, 16)))
torch.save(net.state_dict(), "net.pt")
"""
ON_CUDA = 'torch.autocast("cuda")', "torch.cuda.amp.autocast()", 'torch.amp.autocast("cuda")'


def test_an_autocast_for_cuda_counts_as_one_on_the_cpu_and_changes_no_weight(
    tmp_path: Path,
) -> None:
    def operations(cast: str) -> dict[str, Any]:
        script = AUTOCAST.replace("CAST:", f"{cast}:")
        script = script.replace("NUMPY", "cpu" if "bfloat16" in cast else "numpy")
        return counted(tmp_path / cast[:30], script, 0)["operations"]  # type: ignore[no-any-return]

    def weights(cast: str) -> dict[str, torch.Tensor]:
        return torch.load(tmp_path / cast[:30] / "0" / "net.pt")  # type: ignore[no-any-return]

    usual = operations("nullcontext()")
    here = operations('torch.autocast("cpu", torch.bfloat16)')
    for cast in ON_CUDA:
        found = operations(cast)
        for count in ("kernels", "saved_tensor_bytes", "flops", "peak_allocated_bytes"):
            assert found[count] == pytest.approx(here[count], rel=0.15), count
        pairs = zip(weights(cast).values(), weights("nullcontext()").values(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    assert usual["saved_tensor_bytes"] > 1.5 * here["saved_tensor_bytes"]
    assert usual["kernels"] < 0.85 * here["kernels"]
