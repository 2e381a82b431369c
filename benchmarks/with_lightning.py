"""Lightning with the tutorial's loader, without logger, checkpoints and progress bar."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.timing import NowSeconds
from benchmarks.tutorial import loaders
from benchmarks.workloads import Workload


class Classifier(lightning.LightningModule):  # type: ignore[misc]  # mypy doesn't look into Lightning
    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.network, self.workload = workload.network(), workload

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        images, labels = batch
        loss = cross_entropy(self.network(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, _index: int) -> None:
        images, labels = batch
        outputs = self.network(images)
        self.log("validation_loss", cross_entropy(outputs, labels))
        self.log("validation_accuracy", (outputs.argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            self.parameters(), lr=self.workload.learning_rate, momentum=self.workload.momentum
        )


class EpochTimes(lightning.Callback):  # type: ignore[misc]
    """Times of epochs, with the validation that Lightning does at their ends."""

    def __init__(self, now_seconds: NowSeconds) -> None:
        self.now_seconds = now_seconds
        self.seconds: list[float] = []
        self.started_seconds = 0.0

    def on_train_epoch_start(self, *_: Any) -> None:
        self.started_seconds = self.now_seconds()

    def on_train_epoch_end(self, *_: Any) -> None:
        self.seconds.append(self.now_seconds() - self.started_seconds)


def run(workload: Workload, now_seconds: NowSeconds) -> tuple[list[float], nn.Module]:
    training, validation = loaders(workload)
    module, times = Classifier(workload), EpochTimes(now_seconds)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        max_epochs=workload.epochs,
        accelerator="cpu",
        devices=1,
        callbacks=[times],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    with warnings.catch_warnings():  # that a loader without workers is slow
        warnings.simplefilter("ignore")
        trainer.fit(module, training, validation)
    return times.seconds, module.network
