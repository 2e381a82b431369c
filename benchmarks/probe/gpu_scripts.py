"""Scripts as people write them for a GPU, for `benchmarks.probe.asking`.

`python benchmarks/probe/gpu_scripts.py NAME --device cuda` trains one.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

Run = Callable[[torch.device], Iterator[None]]
"""Trains, and yields after each step."""
EPOCHS = 400


class Slow(Dataset[tuple[Tensor, Tensor]]):
    """Whole batches that take `seconds` each to load."""

    def __init__(self, batches: int, shape: tuple[int, ...], seconds: float) -> None:
        self._batches, self._seconds = batches, seconds
        draw = torch.Generator().manual_seed(0)
        self._batch = torch.randn(shape, generator=draw), torch.arange(shape[0]) % 10

    def __len__(self) -> int:
        return self._batches

    def __getitem__(self, _index: int) -> tuple[Tensor, Tensor]:
        until_seconds = time.perf_counter() + self._seconds
        while time.perf_counter() < until_seconds:
            pass
        return self._batch


def hidden_loading(device: torch.device) -> Iterator[None]:
    """Loading on the host, which the GPU's computing hides."""
    network = _mlp(784, 6144).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loader = DataLoader(Slow(50, (4096, 784), 0.004), batch_size=None)
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(network(images.to(device)), labels.to(device)).backward()
            optimizer.step()
            yield


def read_loss(device: torch.device) -> Iterator[None]:
    """No loader, and the loss is read after each step."""
    network = _mlp(784, 4096).to(device)
    optimizer = torch.optim.Adam(network.parameters())
    images = torch.randn(20_000, 784).to(device)
    labels = torch.arange(20_000, device=device) % 10
    losses = []
    for _ in range(EPOCHS):
        for start in range(0, 20_000, 2000):
            batch = slice(start, start + 2000)
            loss = functional.cross_entropy(network(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            yield


def language_model(device: torch.device) -> Iterator[None]:
    """Autocast, scaled gradients and torch.compile on CUDA only, and four batches a step."""
    is_cuda = device.type == "cuda"
    network: Any = _transformer(layers=4, width=256).to(device)
    if is_cuda:
        network = torch.compile(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=is_cuda)
    context = torch.autocast("cuda", torch.float16) if is_cuda else nullcontext()
    text = torch.randint(0, 96, (100_000,))
    for _ in range(EPOCHS * 10):
        for _ in range(4):
            starts = torch.randint(0, len(text) - 129, (8,)).tolist()
            chunk = torch.stack([text[start : start + 129] for start in starts]).to(device)
            with context:
                logits = network(chunk[:, :-1])
                loss = functional.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten()) / 4
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        yield


def short_epochs(device: torch.device) -> Iterator[None]:
    """Epochs of tenths of a second, each followed by validation."""
    network = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 12 * 12, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(2560, 1, 16, 16), torch.arange(2560) % 10
    data = torch.utils.data.TensorDataset(images, labels)
    training, validation = DataLoader(data, 64, shuffle=True), DataLoader(data, 512)
    for _ in range(EPOCHS):
        network.train()
        for inputs, targets in training:
            optimizer.zero_grad()
            functional.cross_entropy(network(inputs.to(device)), targets.to(device)).backward()
            optimizer.step()
            yield
        network.eval()
        with torch.no_grad():
            for inputs, targets in validation:
                functional.cross_entropy(network(inputs.to(device)), targets.to(device)).item()


def only_cuda(_device: torch.device) -> Iterator[None]:
    """Runs on CUDA, wherever it is started."""
    yield from read_loss(torch.device("cuda"))


def compiled_step(device: torch.device) -> Iterator[None]:
    """A whole step under torch.compile, with its autocast and the optimizer's part."""
    network = _mlp(784, 1024).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=torch.tensor(1e-3))

    def train(inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = functional.cross_entropy(network(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = torch.compile(train)
    images, labels = torch.randn(512, 784, device=device), torch.arange(512, device=device) % 10
    for _ in range(EPOCHS * 20):
        step(images, labels)
        yield


def trainer(device: torch.device) -> Iterator[None]:
    """Hugging Face's Trainer, and a small GPT-2 from its configuration."""
    hf: Any = importlib.import_module("transformers")  # no requirement: few machines have it
    config = hf.GPT2Config(vocab_size=96, n_positions=128, n_embd=256, n_layer=4, n_head=4)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 96, (2000, 128))]
    arguments = hf.TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=16, num_train_epochs=EPOCHS,
        report_to=[], save_strategy="no", use_cpu=device.type == "cpu", logging_steps=50,
    )  # fmt: skip
    hf.Trainer(hf.GPT2LMHeadModel(config), arguments, train_dataset=rows).train()
    yield


def _mlp(inputs: int, width: int) -> nn.Module:
    layers = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def _transformer(layers: int, width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(96, width), encoder, nn.Linear(width, 96))


RUNS: dict[str, Run] = {
    each.__name__: each
    for each in (
        read_loss, short_epochs, hidden_loading, language_model, only_cuda, compiled_step, trainer,
    )
}  # fmt: skip
"""Those whose first steps are compared come first, in case that time ends."""


def truth(name: str, device: torch.device, seconds: float = 3.0) -> dict[str, float]:
    """Train for some seconds. Return a step's time, and the GPU's share of it."""
    steps = RUNS[name](device)
    for _ in range(20):
        next(steps)
    wait = torch.accelerator.synchronize if device.type != "cpu" else (lambda: None)
    wait()
    taken, began_seconds = 0, time.perf_counter()
    while time.perf_counter() - began_seconds < seconds:
        for _ in range(10):
            next(steps)
        taken += 10
    wait()
    step_seconds = (time.perf_counter() - began_seconds) / taken
    if device.type == "cpu":
        return {"step_seconds": step_seconds}
    return {"step_seconds": step_seconds, "busy_share": _busy_share(steps, wait)}


def _busy_share(steps: Iterator[None], wait: Callable[[], None]) -> float:
    """Return the share of 40 steps in which kernels run, by PyTorch's profiler."""
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CUDA]) as profile:
        began_seconds = time.perf_counter()
        for _ in range(40):
            next(steps)
        wait()
        passed_seconds = time.perf_counter() - began_seconds
    busy_us: float = sum(event.device_time_total for event in profile.key_averages())
    return busy_us * 1e-6 / passed_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=RUNS)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(0)
    for _ in RUNS[args.name](torch.device(args.device)):
        pass


if __name__ == "__main__":
    main()
