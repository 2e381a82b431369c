"""A training's data on its device, and trainers made from it that all start the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn

from photofinish.data.images import PartName
from photofinish.data.packed import PackedSplit
from photofinish.errors import MistakeError
from photofinish.machine.energy import Energy, added_up, energy_meters
from photofinish.models.registry import build_model, refuse_lone_images
from photofinish.params.experiment import LoaderInput
from photofinish.processes import own_rank
from photofinish.runs.task import TrainingTask
from photofinish.training.batches import Batches, Normaliser, Part
from photofinish.training.clock import Clock
from photofinish.training.input_paths import make_batches
from photofinish.training.teams import Team
from photofinish.training.torch_device import CPU, nvidia_uuid
from photofinish.training.trainer import Trainer


class TrainingJob:
    def __init__(self, task: TrainingTask, device: torch.device, team: Team) -> None:
        self.task, self.device, self.team = task, device, team
        self.clock = Clock(device, team.barrier if team.size > 1 else None)
        started_seconds = self.clock.now_seconds()
        self.split = PackedSplit(task.data)
        self.training, self._validation = self._batches("train"), self._batches("validation")
        self.data_seconds = self.clock.now_seconds() - started_seconds

    def new_network(self) -> nn.Module:
        """With its initial weights, on the CPU."""
        task, manifest, training = self.task, self.split.manifest, self.training
        model, seed = task.experiment.model, task.experiment.seed
        with self._experiment_named():
            network = build_model(model, manifest.shape, len(manifest.class_names), seed, task.weights_file())
            normalised_images = self.team.normalised_images
            refuse_lone_images(network, manifest.shape, training.image_count, training.batch_size, normalised_images)
            return network

    def new_trainer(self, network: nn.Module | None = None) -> Trainer:
        network = network or self.new_network()
        with self._experiment_named():
            return Trainer(self.task.experiment, network, self.training, self._validation, self.device, self.team)

    def whole_batches(self) -> Batches:
        """The training's batches, also where this process trains on a share of each: then read from disk one by one."""
        if self.team.size == 1:
            return self.training
        loader = self.task.experiment.model_copy(update={"input": LoaderInput(name="loader")})
        return make_batches(loader, self._part("train"), CPU)

    def _batches(self, name: PartName) -> Batches:
        return self.team.placed(make_batches(self.task.experiment, self._part(name), self.device, self.team.share))

    def _part(self, name: PartName) -> Part:
        normalise = Normaliser(self.split.manifest.mean, self.split.manifest.std)
        return Part(name, self.split.images(name), self.split.labels(name), normalise)

    @contextmanager
    def _experiment_named(self) -> Iterator[None]:
        """Around what finds mistakes in an experiment's settings, and knows their keys but not whose they are."""
        try:
            yield
        except MistakeError as error:
            task = self.task
            raise MistakeError(
                f"experiments.{task.name}.{error}. Its images are those of datasets.{task.experiment.dataset}"
            ) from error


class TeamEnergy:
    """Every process of the team watches its own devices; the first one on each machine its CPU besides."""

    def __init__(self, team: Team) -> None:
        self._team, rank = team, own_rank()
        uuids = [nvidia_uuid(device) for device in team.devices]
        leads = rank is None or rank.local_number == 0
        self._meters = energy_meters(team.devices[0].type, uuids, first_of_machine=leads)

    def begin(self) -> None:
        for meter in self._meters:
            meter.begin()

    def epoch_ended(self) -> None:
        for meter in self._meters:
            meter.epoch_ended()

    def training_ended(self) -> tuple[Energy, ...]:
        """Of everyone: the other processes ask at the same time."""
        everyones = self._team.gather_lists([meter.training_ended() for meter in self._meters])
        return added_up(chain.from_iterable(everyones))
