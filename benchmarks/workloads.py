"""Workloads: one for each row of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from benchmarks import data
from benchmarks.probe.trainers import PLAIN_STEPS, plain
from photofinish.models.registry import build_model
from photofinish.training.batches import batch_order
from photofinish.training.torch_device import CPU
from photofinish.training.trainer import Trainer

SEED = 0


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    model: SimpleNamespace
    data: data.Data
    batch_size: int
    learning_rate: float = 0.01
    momentum: float = 0.0
    epochs: int = 1
    untimed_epochs: int = 0
    """Epochs that aren't timed, from the first on."""

    def network(self) -> nn.Module:
        """Build the network with the initial weights of all sides."""
        model: Any = self.model  # stands for one of the schema's
        _, *shape = self.data.train.images.shape
        return build_model(model, (shape[0], shape[1], shape[2]), self.data.classes, SEED)

    def order(self, epoch: int) -> torch.Tensor:
        """Return the order of the images, which all sides share."""
        return batch_order(len(self.data.train.labels), SEED, epoch)

    def experiment(self) -> Any:
        """Return the settings as a plain object, for machines without pydantic."""
        return SimpleNamespace(
            model=self.model,
            loss=None,
            optimizer=plain(
                "sgd",
                lr=self.learning_rate,
                momentum=self.momentum,
                dampening=0,
                weight_decay=0,
                nesterov=False,
            ),
            schedule=plain("constant"),
            **PLAIN_STEPS,
            input=SimpleNamespace(name="resident"),
            augmentation=SimpleNamespace(flip=0, crop_padding=0),
            deterministic=True,
            cuda_graphs="auto",
            precision="fp32",
            epochs=self.epochs,
            batch_size=self.batch_size,
            validation_batch_size=None,
            seed=SEED,
        )

    def trainer(self) -> Trainer:
        """Build photofinish's trainer, as the training stage does."""
        experiment = self.experiment()
        return Trainer(experiment, self.network(), *self.data.batches(experiment, CPU), CPU)


def _model(name: str, **settings: Any) -> SimpleNamespace:
    return SimpleNamespace(name=name, init="default", weights=None, compile=False, **settings)


def _linear(quick: bool, _scratch: Path) -> Workload:
    images = data.idx("MNIST", *((1280, 256) if quick else (50000, 10000)))
    title = "MNIST linear, batch 128"
    return Workload("mnist-linear", title, _model("linear"), images, batch_size=128)


def _mlp(quick: bool, _scratch: Path) -> Workload:
    images = data.idx("MNIST", *((1280, 256) if quick else (50000, 10000)))
    model, title = _model("mlp", hidden=(32,)), "MNIST 784-32-10, batch 128"
    return Workload("mnist-mlp", title, model, images, batch_size=128)


def _lenet(quick: bool, _scratch: Path) -> Workload:
    images = data.idx("FashionMNIST", *((3000, 1000) if quick else (50000, 10000)))
    model, title = _model("lenet"), "Fashion-MNIST LeNet, batch 1000"
    return Workload("fashion-lenet", title, model, images, batch_size=1000, momentum=0.9)


def _photographs(quick: bool, scratch: Path) -> Workload:
    """Return the photographs. The first epoch, which decodes them, isn't timed."""
    images = data.jpegs(scratch, side=32, most=80 if quick else 200)
    model = _model("cnn", channels=(32, 64), kernel_size=3, padding=0, hidden=(256, 128))
    return Workload(
        "jpegs-cnn",
        "CSV of JPEGs to 32x32, CNN, batch 32",
        model,
        images,
        batch_size=32,
        momentum=0.9,
        epochs=3 if quick else 6,
        untimed_epochs=1,
    )


def _resnet(quick: bool, _scratch: Path) -> Workload:
    images = data.noise((3, 32, 32), *((256, 64) if quick else (2304, 256)))
    model, title = _model("resnet18"), "ResNet-18 on 32x32, batch 256"
    return Workload("resnet18", title, model, images, batch_size=256, momentum=0.9)


_ALL: dict[str, Callable[[bool, Path], Workload]] = {
    "mnist-linear": _linear,
    "mnist-mlp": _mlp,
    "fashion-lenet": _lenet,
    "jpegs-cnn": _photographs,
    "resnet18": _resnet,
}
NAMES = tuple(_ALL)


def workloads(names: tuple[str, ...], *, quick: bool, scratch: Path) -> Iterator[Workload]:
    """Yield one at a time, so that its images are gone before the next are read."""
    for name in names:
        yield _ALL[name](quick, scratch)
