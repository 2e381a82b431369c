"""Jobs of the five systems, with the settings of examples/, for machines without pydantic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FILES, PICTURES = "caltech101, files", "MNIST, pictures"
"""Images that the loader reads in each epoch, from JPEG files, or as torchvision's MNIST does."""


@dataclass(frozen=True)
class Job:
    """One training of a system: an experiment of its example, or a variant of one."""

    system: str
    name: str
    images: str
    theirs: str
    """Figure of the system's source."""
    settings: dict[str, Any]
    """Settings as in params.yaml, defaults left out."""


def _sgd(lr: float, **settings: float) -> dict[str, Any]:
    return {"name": "sgd", "lr": lr, **settings}


def _loader(workers: int, **settings: bool) -> dict[str, Any]:
    return {"name": "loader", "workers": workers, **settings}


def _linear() -> list[Job]:
    system, theirs = "mnist-linear", "14.5 s an epoch on CPU and GPU"
    settings: dict[str, Any] = {"model": {"name": "linear"}, "optimizer": _sgd(0.005), "epochs": 30}
    settings["batch_size"] = 128
    loaded = settings | {"input": _loader(0)}
    return [
        Job(system, "mnist-linear-pictures", PICTURES, theirs, loaded),
        Job(system, "mnist-linear-loader", "MNIST", "", loaded),
        Job(system, "mnist-linear", "MNIST", "", settings),
    ]


def _mlp() -> list[Job]:
    system, theirs = "mnist-mlp", "2 workers, pinned, non-blocking"
    settings: dict[str, Any] = {
        "model": {"name": "mlp", "hidden": (32,)},
        "optimizer": _sgd(0.5),
        "epochs": 10,
    }
    settings |= {"batch_size": 128, "validation_batch_size": 256}
    loaded = settings | {"input": _loader(2, pin_memory=True, non_blocking=True)}
    return [
        Job(system, "mnist-mlp", "MNIST, plain", theirs, loaded),
        Job(system, "mnist-mlp-resident", "MNIST, plain", "", settings),
    ]


def _grid() -> list[Job]:
    system, theirs, images = "fashion-lenet-grid", "GPU 2 to 3 times faster", "FashionMNIST"
    jobs = []
    for size in (1000, 10_000, 20_000):
        settings: dict[str, Any] = {
            "model": {"name": "lenet"},
            "optimizer": {"name": "adam", "lr": 0.01},
        }
        settings |= {"epochs": 8, "batch_size": size}
        for workers in (0, 1):
            loaded = settings | {"input": _loader(workers)}
            jobs.append(Job(system, f"lenet-{size}-workers-{workers}", images, theirs, loaded))
        jobs.append(Job(system, f"lenet-{size}-resident", images, "", settings))
    return jobs


def _caltech() -> list[Job]:
    system, theirs = "caltech101-cnn", "total time on CPU and GPU"
    init = {"conv": "xavier_normal", "linear": {"normal": 0.01}}
    model: dict[str, Any] = {
        "name": "cnn",
        "channels": (32, 64),
        "hidden": (256, 128),
        "kernel_size": 3,
    }
    settings: dict[str, Any] = {
        "model": model | {"padding": 0, "init": init},
        "optimizer": _sgd(0.001, momentum=0.9, dampening=0.1),
        "augmentation": {"flip": 0.5},
        "epochs": 50,
        "batch_size": 32,
    }
    return [
        Job(system, "caltech101-cnn", FILES, theirs, settings | {"input": _loader(0)}),
        Job(system, "caltech101-resident", "caltech101", "", settings),
    ]


def _cifar() -> list[Job]:
    settings: dict[str, Any] = {
        "model": {"name": "resnet18"},
        "optimizer": _sgd(0.001, momentum=0.9),
    }
    settings |= {"epochs": 10, "batch_size": 256}
    system, theirs = "cifar10-resnet18", "several GPUs share a batch"
    return [Job(system, "cifar10-resnet18", "CIFAR10", theirs, settings)]


SYSTEMS = {
    "mnist-linear": _linear(),
    "mnist-mlp": _mlp(),
    "fashion-lenet-grid": _grid(),
    "caltech101-cnn": _caltech(),
    "cifar10-resnet18": _cifar(),
}
