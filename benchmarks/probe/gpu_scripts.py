"""Scripts as people write them for a GPU, which the parts of the probe run.

`python benchmarks/probe/gpu_scripts.py NAME --device cuda` trains one. With `--alone 3` it times
its own steps for 3 s. Without a GPU, networks and batches are small.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
import importlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

Tick = Callable[[], object]
"""What a script calls after each step."""
Run = Callable[..., None]
EPOCHS = 20_000
_IS_SMALL = not torch.accelerator.is_available()
_WARM_UP_SECONDS, _LEAST_STEPS = 0.5, 4
"""A graph of reduce-overhead is captured in the third step."""


class OverError(Exception):
    """A tick's word that enough is known."""


class Slow(Dataset[tuple[Tensor, Tensor]]):
    """Whole batches that take `seconds` each to load."""

    def __init__(self, batches: int, rows: int, seconds: float) -> None:
        self._batches, self._seconds = batches, seconds
        draw = torch.Generator().manual_seed(0)
        self._batch = torch.randn(rows, 784, generator=draw), torch.arange(rows) % 10

    def __len__(self) -> int:
        return self._batches

    def __getitem__(self, _index: int) -> tuple[Tensor, Tensor]:
        until_seconds = time.perf_counter() + self._seconds
        while time.perf_counter() < until_seconds:
            pass
        return self._batch


def _large(count: int) -> int:
    return min(16, count) if _IS_SMALL else count


def loaded(
    device: torch.device,
    tick: Tick,
    *,
    seconds: float,
    rows: int = 16,
    repeats: int = 1,
    batches_a_step: int = 1,
    reads: bool = False,
) -> None:
    """Train on batches of a loader, which take `seconds` each.

    They are repeated on the device, because a large copy from the host would wait for the device.
    Each row takes an H200 5.8 us.
    """
    loader = DataLoader(Slow(52, _large(rows), seconds), batch_size=None)
    network, count = _mlp(_large(6144)), _large(repeats)
    _train(network, loader, device, tick, repeats=count, each=batches_a_step, reads=reads)


def step_of(
    network: nn.Module, optimizer: torch.optim.Optimizer, autocast: torch.dtype | None = None
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a step on a batch, which returns its loss. A CUDA graph can hold it."""

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(inputs.device.type, autocast, enabled=autocast is not None):
            loss = functional.cross_entropy(network(inputs).flatten(0, -2), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def read_loss(device: torch.device, tick: Tick, mode: str | None = None) -> None:
    """No loader, and the loss is read after each step."""
    network = _mlp(_large(4096)).to(device)
    if mode:
        network.compile(mode=mode)
    step, rows = step_of(network, torch.optim.Adam(network.parameters())), _large(2000)
    images = torch.randn(10 * rows, 784).to(device)
    labels = torch.arange(10 * rows, device=device) % 10
    for _ in range(EPOCHS):
        for start in range(0, 10 * rows, rows):
            batch = slice(start, start + rows)
            step(images[batch], labels[batch]).item()
            tick()


def short_epochs(device: torch.device, tick: Tick, *, validates: bool = True) -> None:
    """Epochs of tenths of a second, each followed by validation."""
    network = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 12 * 12, 10),
    )  # fmt: skip
    data = TensorDataset(torch.randn(2560, 1, 16, 16), torch.arange(2560) % 10)
    training, validation = DataLoader(data, 64, shuffle=True), DataLoader(data, 512)
    _train(network, training, device, tick, validation=validation if validates else ())


def epoch_end_read(device: torch.device, tick: Tick, *, validates: bool = True) -> None:
    """The loss is read once an epoch, when the device is many steps behind."""
    training, validation = (DataLoader(Slow(count, 16, 0.0), batch_size=None) for count in (20, 5))
    network, of_epoch = _mlp(_large(6144)), validation if validates else ()
    _train(network, training, device, tick, repeats=_large(128), validation=of_epoch, sums=True)


def _train(
    network: nn.Module,
    training: DataLoader[Any],
    device: torch.device,
    tick: Tick,
    *,
    repeats: int = 1,
    each: int = 1,
    reads: bool = False,
    sums: bool = False,
    validation: Iterable[Any] = (),
) -> None:
    """Step after `each` batches. `reads` reads each loss, and `sums` their sum once an epoch."""
    network.to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        inputs = inputs.to(device).repeat(repeats, *[1] * (inputs.dim() - 1))
        return functional.cross_entropy(network(inputs), targets.to(device).repeat(repeats))

    for _ in range(EPOCHS):
        network.train()
        total = torch.zeros((), device=device)
        for number, batch in enumerate(training, 1):
            loss = loss_of(*batch)
            loss.backward()
            if number % each:
                continue
            optimizer.step()
            optimizer.zero_grad()
            if reads:
                loss.item()
            if sums:
                total += loss.detach()
            tick()
        if sums:
            print(total.item() / len(training))
        network.eval()
        with torch.no_grad():
            for batch in validation:
                loss_of(*batch).item()


def language_model(device: torch.device, tick: Tick) -> None:
    """Autocast, scaled gradients and torch.compile on CUDA only, and four batches a step."""
    is_cuda = device.type == "cuda"
    network: Any = transformer(layers=4, width=256).to(device)
    network.compile(backend="inductor" if is_cuda else "eager")
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=is_cuda)
    text = torch.randint(0, 96, (100_000,))
    for _ in range(EPOCHS):
        for _ in range(4):
            starts = torch.randint(0, len(text) - 129, (_large(64),)).tolist()
            chunk = torch.stack([text[start : start + 129] for start in starts]).to(device)
            with torch.autocast("cuda", torch.float16) if is_cuda else nullcontext():
                logits = network(chunk[:, :-1])
                loss = functional.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten()) / 4
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        tick()


def compiled_step(device: torch.device, tick: Tick) -> None:
    """A whole step under torch.compile, with its autocast and the optimizer's part."""
    network = _mlp(_large(1024)).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=torch.tensor(1e-3))
    step = torch.compile(step_of(network, optimizer, torch.bfloat16))
    images, labels = torch.randn(512, 784, device=device), torch.arange(512, device=device) % 10
    for _ in range(2000):
        step(images, labels)
        tick()


def whole_graph(device: torch.device, tick: Tick) -> None:
    """PyTorch's recipe of a whole step in a CUDA graph, with the loader's name."""
    photofinish = importlib.import_module("photofinish")
    network = _mlp(_large(4096)).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    rows, loss = _large(2000), torch.zeros((), device=device)
    images, labels = torch.randn(rows, 784, device=device), torch.arange(rows, device=device) % 10
    train = step_of(network, optimizer)

    def step() -> None:
        loss.copy_(train(images, labels))

    replay = captured(step) if device.type == "cuda" else step
    loader = DataLoader(Slow(100, rows, 0.0), batch_size=None)
    for _ in range(EPOCHS):
        for inputs, targets in photofinish.steps(loader):
            images.copy_(inputs)
            labels.copy_(targets)
            replay()
            loss.item()
            tick()


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """Return the replay of a step's CUDA graph, which PyTorch's recipe captures."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def gpt2(device: torch.device, tick: Tick) -> None:
    """Hugging Face's Trainer, a small GPT-2 from its configuration, and four batches a step."""
    hf: Any = importlib.import_module("transformers")  # no requirement: few machines have it

    class Ticks(hf.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            tick()

    config = hf.GPT2Config(vocab_size=96, n_positions=128, n_embd=256, n_layer=4, n_head=4)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 96, (2000, 128))]
    arguments = hf.TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=16, num_train_epochs=EPOCHS,
        gradient_accumulation_steps=4, report_to=[], save_strategy="no",
        use_cpu=device.type == "cpu", logging_steps=50,
    )  # fmt: skip
    model = hf.GPT2LMHeadModel(config)
    hf.Trainer(model, arguments, train_dataset=rows, callbacks=[Ticks()]).train()


def same(device: torch.device, tick: Tick, *, kind: str, is_faulty: bool = False) -> None:
    """A step whose values are compared: the same size on each device."""
    torch.manual_seed(0)
    makes: dict[str, Callable[[], nn.Module]] = {
        "cnn": lambda: nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(4),
            nn.Flatten(), nn.Linear(64 * 7 * 7, 10),
        ),
        "transformer": lambda: transformer(layers=2, width=128),
        "mlp": lambda: _mlp(256),
    }  # fmt: skip
    network, dtypes = makes[kind](), {"transformer": torch.bfloat16, "mlp": torch.float16}
    pictures, tokens = torch.randn(64, 3, 32, 32), torch.randint(0, 96, (16, 64))
    inputs = {"cnn": pictures, "transformer": tokens, "mlp": torch.randn(256, 784)}[kind]
    labels = inputs.flatten() if kind == "transformer" else torch.arange(len(inputs)) % 10
    network.to(device)
    if is_faulty:
        next(iter(network)).register_forward_hook(lambda _module, _args, out: 1.3 * out)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=kind == "mlp")
    scaler = torch.amp.GradScaler(device.type, enabled=kind == "mlp")
    inputs, labels = inputs.to(device), labels.to(device)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        with torch.autocast(device.type, dtypes.get(kind), enabled=kind in dtypes):
            loss = functional.cross_entropy(network(inputs).flatten(0, -2), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        tick()


def evaluates_first(device: torch.device, tick: Tick) -> None:
    """An evaluation before the training, which takes the CPU 8 s and any other device one."""
    network = _mlp(256).to(device)
    until_seconds = time.perf_counter() + (8 if device.type == "cpu" else 1)
    with torch.no_grad():
        while time.perf_counter() < until_seconds:
            network(torch.randn(64, 784).to(device)).sum().item()
    loaded(device, tick, seconds=0.0)


def two_ranks(device: torch.device, tick: Tick) -> None:
    """Data-parallel training, as torchrun starts it on each GPU."""
    device = torch.device(f"{device.type}:{os.environ['LOCAL_RANK']}")
    torch.distributed.init_process_group()
    network = nn.parallel.DistributedDataParallel(_mlp(256).to(device))
    step = step_of(network, torch.optim.SGD(network.parameters(), lr=0.01))
    labels = torch.arange(64, device=device) % 10
    for _ in range(EPOCHS):
        step(torch.randn(64, 784, device=device), labels)
        tick()


def beside(device: torch.device, _tick: Tick, *, works: bool) -> None:
    """Have a context, or work, for as long as another script is watched."""
    matrix, ends_seconds = torch.randn(8192, 8192, device=device), time.monotonic() + 15
    while time.monotonic() < ends_seconds:
        (matrix @ matrix)[0, 0].item() if works else time.sleep(1)


def _mlp(width: int) -> nn.Sequential:
    layers = [nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def transformer(layers: int, width: int) -> nn.Sequential:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(96, width), encoder, nn.Linear(width, 96))


WATCHED: dict[str, Run] = {
    "hidden_loading": partial(loaded, seconds=0.004, rows=4096),
    "read_loss": read_loss,
    "short_epochs": short_epochs,
    "epoch_end_read": epoch_end_read,
    "accumulate": partial(loaded, seconds=0.03, repeats=108, batches_a_step=4),
    "slow_steps": partial(loaded, seconds=0.225, repeats=810, reads=True),
    "long_hidden": partial(loaded, seconds=0.25, repeats=3250),
    "reduce_overhead": partial(read_loss, mode="reduce-overhead"),
    "whole_graph": whole_graph,
    "gpt2": gpt2,
}
VALIDATES = {"short_epochs": 40, "epoch_end_read": 20}
"""Steps of an epoch of scripts with validation."""
RUNS: dict[str, Run] = WATCHED | {
    "language_model": language_model,
    "compiled_step": compiled_step,
    "evaluates_first": evaluates_first,
    "two_ranks": two_ranks,
    "idles": partial(beside, works=False),
    "multiplies": partial(beside, works=True),
    **{f"same_{kind}": partial(same, kind=kind) for kind in ("cnn", "transformer", "mlp")},
    "same_faulty": partial(same, kind="cnn", is_faulty=True),
}


def alone(name: str, device: torch.device, seconds: float) -> dict[str, float]:
    """Train without photofinish: times of a step and of its share of the job, and memory."""
    every, script = VALIDATES.get(name, 1), RUNS[name]
    figures = measured(script, device, seconds, every)
    figures["job_seconds"] = figures["step_seconds"]
    if name in VALIDATES:
        figures |= measured(partial(script, validates=False), device, seconds / 2, every)
    if device.type == "cuda":
        figures["reserved_bytes"] = torch.cuda.max_memory_reserved()
    return figures


def measured(script: Run, device: torch.device, seconds: float, every: int) -> dict[str, float]:
    """Return a step's time, and the share of the time in which kernels run, by the profiler."""
    from photofinish.training.torch_device import Clock

    now_seconds, kind = Clock(device).now_seconds, torch.profiler.ProfilerActivity.CUDA
    figures: dict[str, float] = {}

    def phases() -> Iterator[None]:
        yield from _steps(_WARM_UP_SECONDS, every)
        began_seconds = now_seconds()
        steps = yield from _steps(seconds, every)
        figures["step_seconds"] = (now_seconds() - began_seconds) / steps
        if device.type == "cuda":
            with torch.profiler.profile(activities=[kind]) as seen:
                began_seconds = time.perf_counter()
                yield from _steps(1.0, every)
                passed_seconds = now_seconds() - began_seconds
            busy_us = sum(event.device_time_total for event in seen.key_averages())
            figures["busy_share"] = busy_us * 1e-6 / passed_seconds
        raise OverError

    under_way = phases()
    with suppress(OverError):
        script(device, lambda: next(under_way))
    return figures


def _steps(seconds: float, every: int) -> Generator[None, None, int]:
    """Pass some time, of whole epochs of `every` steps. Return the number of steps."""
    began_seconds, steps = time.perf_counter(), 0
    while steps < _LEAST_STEPS or steps % every or time.perf_counter() - began_seconds < seconds:
        yield
        steps += 1
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=RUNS)
    parser.add_argument("--device", type=torch.device, default="cuda")
    parser.add_argument("--alone", type=float, help="seconds, after which its times are printed")
    parser.add_argument("--memory", type=float, help="share of the GPU's memory that it may take")
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.memory:
        torch.cuda.set_per_process_memory_fraction(args.memory)
    if args.alone:
        print(json.dumps(alone(args.name, args.device, args.alone)))
    else:
        RUNS[args.name](args.device, lambda: None)


if __name__ == "__main__":
    main()
