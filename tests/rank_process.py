"""A rank without torchrun: the processes find each other through a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from recipe import FailsAtStep
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


def _noting(give: Callable[..., Iterator[Batch]], labels: list[list[int]]) -> Any:
    """Let a method that gives batches note their labels."""

    def batches(*arguments: int) -> Iterator[Batch]:
        for images, targets in give(*arguments):
            labels.append(targets.tolist())
            yield images, targets

    return batches


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
    labels: dict[PartName, list[list[int]]] = {"train": [], "validation": []}

    def batches(part: PartName) -> Batches:
        normalise = Normaliser(split.manifest.mean, split.manifest.std)
        images = Part(part, split.images(part), split.labels(part), normalise)
        made = make_batches(experiment, images, CPU, team.rank, team.size)
        for name in ("train_batches", "eval_batches"):
            setattr(made, name, _noting(getattr(made, name), labels[part]))
        return made

    def new_trainer() -> Trainer:
        parts = batches("train"), batches("validation")
        return Trainer(experiment, _network(experiment, case, team.rank), *parts, CPU, team)

    trainer = new_trainer()
    if "resumed" in case:  # after the first epoch, from what rank 0 has then
        first = new_trainer()
        first.prepare()
        next(iter(first.epochs()))
        trainer.load_state_dict(
            team.broadcast_object(first.state_dict() if team.rank == 0 else None)
        )
    if "not finite" not in case:
        trainer.prepare()
    for noted in labels.values():
        noted.clear()
    drawn = getattr(trainer.network, "drawn", [])
    drawn.clear()
    list(trainer.epochs())
    return {
        "weights": trainer.network.state_dict(),
        "metrics": trainer.progress.metrics,
        "labels": labels["train"],
        "validation_images": sum(map(len, labels["validation"])),
        "drawn": drawn,
    }


def _network(experiment: Experiment, case: str, rank: int) -> nn.Module:
    torch.manual_seed(0)
    if "dropout" in case:
        return _Draws()
    if "not finite" in case:
        return FailsAtStep(2 if rank == 1 else -1)
    return build_model(experiment.model, (1, 8, 8), 3, experiment.seed)
