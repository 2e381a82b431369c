"""A rank without torchrun: the processes find each other through a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from photofinish.config.experiment import Experiment
from photofinish.data import PartName
from photofinish.data.packed import PackedSplit
from photofinish.errors import UserError
from photofinish.models.registry import build_model
from photofinish.training.batches import Batch, Batches, Normaliser, Part
from photofinish.training.input_paths import make_batches
from photofinish.training.torch_device import CPU, configure_torch
from photofinish.training.trainer import Trainer
from photofinish.training.world import DistributedWorld, World


class _Draws(nn.Module):
    """A network with dropout that notes which numbers of an epoch are drawn first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 3)
        )
        self.drawn: list[float] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.drawn.append(torch.rand(1).item())
        outputs: torch.Tensor = self.layers(images)
        return outputs


class _FailsInSecondStep(nn.Module):
    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.layer, self.fails, self.steps = nn.Linear(64, 3), fails, 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        outputs: torch.Tensor = self.layer(images.flatten(1))
        return outputs * float("nan") if self.fails and self.steps == 2 else outputs


class _Watched(Batches):
    """Batches that note the labels they gave."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self.image_count, self.batch_size = batches.image_count, batches.batch_size
        self.labels: list[list[int]] = []

    def train_batches(self, epoch: int, at_once: int = 1) -> Iterator[Batch]:
        return self._watch(self._batches.train_batches(epoch, at_once))

    def eval_batches(self) -> Iterator[Batch]:
        return self._watch(self._batches.eval_batches())

    def _watch(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for images, labels in batches:
            self.labels.append(labels.tolist())
            yield images, labels


def run_rank(
    folder: Path, rank: int, size: int, experiment: Experiment, data: Path, case: str
) -> None:
    """Train as one rank. Write its observations and results to `<rank>.pt` in the folder."""
    configure_torch(CPU, experiment.precision, threads=1)
    team = World(CPU)
    if size > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size
        )
        team = DistributedWorld(rank, size, CPU)
    result: dict[str, Any] = {}
    try:
        result = _train(team, experiment, PackedSplit(data), case)
    except UserError as error:
        result = {"error": str(error)}
    torch.save(result, folder / f"{rank}.pt")
    sys.stdout.flush()
    os._exit(0)


def _train(team: World, experiment: Experiment, split: PackedSplit, case: str) -> dict[str, Any]:
    def batches(part: PartName) -> _Watched:
        normalise = Normaliser(split.manifest.mean, split.manifest.std)
        images = Part(part, split.images(part), split.labels(part), normalise)
        return _Watched(make_batches(experiment, images, CPU, team.rank, team.size))

    training, validation = batches("train"), batches("validation")
    network = _network(experiment, case, team.rank)
    trainer = Trainer(experiment, network, training, validation, CPU, team)
    if "not finite" not in case:
        trainer.prepare()
    if "resumed" in case:
        trainer = _resumed(trainer, experiment, case, team, training, validation)
    training.labels.clear()
    validation.labels.clear()
    if isinstance(network, _Draws):
        network.drawn.clear()
    list(trainer.epochs())
    return {
        "weights": trainer.network.state_dict(),
        "metrics": trainer.progress.metrics,
        "labels": training.labels,
        "validation_images": sum(map(len, validation.labels)),
        "drawn": getattr(network, "drawn", None),
    }


def _resumed(
    trainer: Trainer,
    experiment: Experiment,
    case: str,
    team: World,
    training: Batches,
    validation: Batches,
) -> Trainer:
    """One that goes on after the first epoch, from what rank 0 has then."""
    trainer.experiment = experiment.model_copy(update={"epochs": 1})
    list(trainer.epochs())
    state = team.broadcast_object(trainer.state_dict() if team.rank == 0 else None)
    fresh = Trainer(
        experiment, _network(experiment, case, team.rank), training, validation, CPU, team
    )
    fresh.load_state_dict(state)
    fresh.prepare()
    return fresh


def _network(experiment: Experiment, case: str, rank: int) -> nn.Module:
    torch.manual_seed(0)
    if "dropout" in case:
        return _Draws()
    if "not finite" in case:
        return _FailsInSecondStep(fails=rank == 1)
    return build_model(experiment.model, (1, 8, 8), 3, experiment.seed)
