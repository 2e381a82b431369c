"""Trainers for the probe, of plain settings: a bare GPU machine has no pydantic."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks import data
from photofinish.models.registry import build_model
from photofinish.profiling.scratch import warm_up
from photofinish.training.torch_device import configure_torch
from photofinish.training.trainer import Trainer

LINEAR, LENET = ({"name": name, "init": "default"} for name in ("linear", "lenet"))
MLP = {"name": "mlp", "hidden": (32,), "init": "default"}
SGD: dict[str, Any] = {
    "name": "sgd",
    "lr": 0.01,
    "momentum": 0.9,
    "dampening": 0.0,
    "weight_decay": 0.0,
    "nesterov": False,
}
ADAM: dict[str, Any] = {"name": "adam", "lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
LOADER = {
    "name": "loader", "workers": 0, "pin_memory": False, "non_blocking": False, "prefetch_factor": None,
    "persistent_workers": False, "transform": None,
}  # fmt: skip


def mnist(folder: Path | None, train: int, validation: int) -> data.Data:
    """The first images of MNIST, from a folder in torchvision's layout, or noise of their shape."""
    data.REAL_DATA = folder or Path("/nowhere")
    return data.idx("MNIST", train, validation)


def trainer(images: data.Data, device: torch.device, **changes: Any) -> Trainer:
    """Ready to train; `changes` are settings as params.yaml has them."""
    given: dict[str, Any] = {"model": LINEAR, "loss": None, "optimizer": SGD, "schedule": {"name": "constant"}}
    given |= {"input": {"name": "resident"}}
    given |= {"augmentation": {"flip": 0.0, "crop_padding": 0}, "deterministic": True, "precision": "fp32", "epochs": 3}
    given |= {"batch_size": 128, "validation_batch_size": None, "seed": 0, "cuda_graphs": "off", **changes}
    given["model"] = {"compile": False, "weights": None} | given["model"]
    settings: Any = SimpleNamespace(
        **{key: SimpleNamespace(**value) if isinstance(value, dict) else value for key, value in given.items()}
    )
    configure_torch(device, settings.precision, torch.get_num_threads())
    shape = images.train.images.shape[1:]
    network = build_model(settings.model, shape, images.classes, settings.seed)
    return Trainer(settings, network, *images.batches(settings, device), device)


def trained(made: Trainer) -> Trainer:
    """To its end."""
    warm_up(made)
    list(made.epochs())
    return made


def same_bits(one: Trainer, other: Trainer) -> bool:
    """Whether both learned exactly the same."""
    weights = ([tensor.cpu() for tensor in made.network.state_dict().values()] for made in (one, other))
    return one.progress.metrics == other.progress.metrics and all(map(torch.equal, *weights))


def how(made: Trainer) -> str:
    """Return the kind of steps, and why they are taken that way."""
    return f"{made.steps.kind}: {made.steps.why}"
