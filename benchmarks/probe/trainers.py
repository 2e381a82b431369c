"""Trainers for the probe, with plain settings: a bare GPU machine has no pydantic."""

from __future__ import annotations

import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks import data
from benchmarks.plain import PLAIN_STEPS, plain
from benchmarks.probe.findings import Findings
from photofinish.measure.scratch import scratch_steps
from photofinish.models.registry import build_model
from photofinish.training.torch_device import configure_torch
from photofinish.training.trainer import Trainer

LINEAR, LENET = ({"name": name, "init": "default"} for name in ("linear", "lenet"))
MLP = {"name": "mlp", "hidden": (32,), "init": "default"}
SGD: dict[str, Any] = {
    "name": "sgd", "lr": 0.01, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0,
    "nesterov": False,
}  # fmt: skip
ADAM: dict[str, Any] = {
    "name": "adam", "lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0,
}  # fmt: skip
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
LOADER = {
    "name": "loader", "workers": 0, "pin_memory": False, "non_blocking": False,
    "prefetch_factor": None, "persistent_workers": False, "transform": None,
    "eval_transform": None, "collate": None,
}  # fmt: skip
_SETTINGS: dict[str, Any] = {
    "model": LINEAR, "loss": None, "optimizer": SGD, "schedule": {"name": "constant"},
    "input": {"name": "resident"}, "augmentation": {"flip": 0.0, "crop_padding": 0},
    "deterministic": True, "precision": "fp32", "epochs": 3, "batch_size": 128,
    "validation_batch_size": None, "seed": 0, "cuda_graphs": "off", **PLAIN_STEPS,
}  # fmt: skip


def mnist(folder: Path | None, train: int, validation: int) -> data.Data:
    """Return the first images of MNIST, in torchvision's layout, or noise of their shape."""
    data.REAL_DATA = folder or Path("/nowhere")
    return data.idx("MNIST", train, validation)


def trainer(images: data.Data, device: torch.device, **changes: Any) -> Trainer:
    """Build a trainer. `changes` are settings as params.yaml has them."""
    settings = {**_SETTINGS, **changes}
    settings["model"] = {"compile": False, "weights": None, **settings["model"]}
    for key, value in settings.items():
        if isinstance(value, dict):
            make = plain if key in ("optimizer", "schedule") else SimpleNamespace
            settings[key] = make(**value)
    experiment: Any = SimpleNamespace(**settings)
    configure_torch(
        device,
        experiment.precision,
        torch.get_num_threads(),
        deterministic=experiment.deterministic,
    )
    shape = images.train.images.shape[1:]
    network = build_model(experiment.model, shape, images.classes, experiment.seed)
    return Trainer(experiment, network, *images.batches(experiment, device), device)


def trained(built: Trainer) -> Trainer:
    """Train to the end."""
    built.prepare()
    list(built.epochs())
    return built


def add_epoch(findings: Findings, what: str, variant: str, built: Trainer) -> None:
    """Train, and add the median epoch without the first."""
    trained(built)
    timings = built.progress.timings[1:]
    seconds = statistics.median(timing.training_seconds for timing in timings)
    rate = f"{built.training.image_count / seconds:,.0f} images/s"
    findings.add(what, seconds * 1e3, "ms", variant=variant, note=f"{how(built)}; {rate}")


def step_seconds(built: Trainer, layout: torch.memory_format | None = None) -> float:
    """Return the median of some samples, each of several steps."""
    samples, steps = (3, 1) if built.device.type == "cpu" else (10, 10)
    seconds = []
    with scratch_steps(built, layout=layout, at_once=steps) as (take_steps,):
        for _ in range(1 + samples):  # the first is a warm-up
            started_seconds = built.clock.now_seconds()
            take_steps()
            seconds.append((built.clock.now_seconds() - started_seconds) / steps)
    return statistics.median(seconds[1:])


def same_bits(one: Trainer, other: Trainer) -> bool:
    """Return True if both learned exactly the same."""
    if one.progress.metrics != other.progress.metrics:
        return False
    weights = [
        [tensor.cpu() for tensor in built.network.state_dict().values()] for built in (one, other)
    ]
    return all(map(torch.equal, *weights))


def how(built: Trainer) -> str:
    """Return the kind of steps, and the reason for it."""
    return f"{built.steps.kind}: {built.steps.why}"
