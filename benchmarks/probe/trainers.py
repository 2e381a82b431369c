"""Trainers for the probe, with plain settings: a bare GPU machine has no pydantic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from benchmarks import data
from photofinish.models.registry import build_model
from photofinish.training.torch_device import configure_torch
from photofinish.training.trainer import Trainer

LINEAR = {"name": "linear", "init": "default"}
SGD: dict[str, Any] = {
    "name": "sgd", "lr": 0.01, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0,
    "nesterov": False,
}  # fmt: skip
LOADER = {
    "name": "loader", "workers": 0, "pin_memory": False, "non_blocking": False,
    "prefetch_factor": None, "persistent_workers": False, "transform": None,
    "eval_transform": None, "collate": None,
}  # fmt: skip
PLAIN_STEPS: dict[str, Any] = {
    "warmup_steps": 0, "clip_grad_norm": None, "accumulate": 1, "ema": None,
    "early_stopping": None, "sampler": None, "batch_transform": None, "step": None,
    "validation_step": None,
}  # fmt: skip
"""Defaults of the optional settings. The trainer reads them all."""
_SETTINGS: dict[str, Any] = {
    "model": LINEAR, "loss": None, "optimizer": SGD, "schedule": {"name": "constant"},
    "input": {"name": "resident"}, "augmentation": {"flip": 0.0, "crop_padding": 0},
    "deterministic": True, "precision": "fp32", "epochs": 3, "batch_size": 128,
    "validation_batch_size": None, "seed": 0, "cuda_graphs": "off", **PLAIN_STEPS,
}  # fmt: skip


def plain(name: str, **arguments: Any) -> SimpleNamespace:
    """Return the settings of an optimizer or schedule of PyTorch."""
    own = {"weight_decay_exclude": None, "every": None}
    return SimpleNamespace(name=name, arguments=arguments, **own)


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


def how(built: Trainer) -> str:
    """Return the kind of steps, and the reason for it."""
    return f"{built.steps.kind}: {built.steps.why}"
