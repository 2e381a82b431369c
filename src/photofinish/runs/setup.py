"""A run's split on its device, trainers made of it that all start the same, what is measured with them besides, and the
same training from further seeds: how far apart are networks that chance alone tells apart?

Each seed is trained after the experiment's own, when the device has its memory back, with checkpoints of its own. The
last of them stays: with more `seeds`, or after a kill, only those of them are trained that are missing. The
experiment's own training is then taken from what is kept of it, with the times that it took.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from photofinish.data import PartName
from photofinish.data.packed import PackedSplit
from photofinish.errors import MistakeError, UserError
from photofinish.files import add_sums, sha256_of_bytes, state_folder, write_bytes_atomically
from photofinish.machine.fingerprint import CpuHost
from photofinish.machine.memory import Room
from photofinish.measuring.attribution import attribute, images_with_room, measure_steps, plan_attribution, plan_samples
from photofinish.measuring.first_step import first_batch, first_step, refuse_what_cannot_be_trained
from photofinish.measuring.operations import count_operations
from photofinish.measuring.rehearsal import forget_optimizer, warm_up
from photofinish.models.own import refuse_another_network
from photofinish.models.registry import build_model, refuse_lone_images
from photofinish.params.experiment import LoaderInput, OwnTransform, ResidentInput
from photofinish.results import EpochMetrics, EpochTiming, median_training_seconds, passed_seconds, records
from photofinish.results.learned import packed_weights, seed_weights, weights_of
from photofinish.results.measurements import Attribution, Operations, SteadyState
from photofinish.runs.run import Run
from photofinish.runs.views import TrainingDisplay
from photofinish.training.batches import Batches, Normaliser, Part
from photofinish.training.checkpoint import CheckpointStore, State, on_cpu
from photofinish.training.failures import failures_explained, too_large_a_network_explained
from photofinish.training.input_paths import make_batches
from photofinish.training.optimisation import Loss, refuse_other_count
from photofinish.training.teams import Team
from photofinish.training.torch_device import CPU, apply_policy, free_memory_bytes
from photofinish.training.trainer import NonFiniteLossError, Trainer, progress_in

Repeats = list[tuple[EpochTiming, ...]]
"""the epochs of each further training from the same start"""
_BYTES_A_VALUE = 4


@contextmanager
def prepared_for(run: Run, device: torch.device, team: Team) -> Iterator[None]:
    """Around all that a process does of a run: with the settings that it asks for, and what fails explained."""
    experiment, threads = run.experiment, run.host.threads or 1
    keep_freed = isinstance(run.host, CpuHost) and run.host.keep_freed_memory
    with failures_explained(run.name, experiment, team, runs_own_code=bool(run.own_code)):
        apply_policy(
            device, experiment.precision, threads, keep_freed=keep_freed, deterministic=experiment.deterministic
        )
        yield


class FurtherMeasurements(NamedTuple):
    """What is measured once a network is trained, on copies of it: fields of `records.Timings`."""

    steady_state: SteadyState
    attribution: Attribution | None
    not_attributed: str | None
    operations: Operations | None
    not_counted: str | None


class Setup:
    """All that trainers of a run are made of, in one of its processes."""

    def __init__(self, run: Run, device: torch.device, team: Team) -> None:
        self.run, self.device, self.team = run, device, team
        run.refuse_too_large(self._device_room())
        clock = team.clock()
        started_seconds = clock.now_seconds()
        self.split = PackedSplit(run.data)
        self.training, self._validation = (
            team.placed(make_batches(run.experiment, self._part(name), device, team.rank, team.size))
            for name in ("train", "validation")
        )
        self.data_seconds = clock.now_seconds() - started_seconds
        with self._experiment_named():
            refuse_other_count(run.experiment.loss, self.split.manifest.class_names)

    def new_network(self) -> nn.Module:
        """With its initial weights, on the CPU."""
        run, manifest, training = self.run, self.split.manifest, self.training
        model, seed = run.experiment.model, run.experiment.seed
        with self._experiment_named():
            shape, dtype, count = manifest.shape, manifest.dtype, training.image_count
            with too_large_a_network_explained(run.name):
                network = build_model(model, shape, len(manifest.class_names), seed, run.weights_file(), dtype)
            refuse_lone_images(network, shape, count, training.batch_size, self.team.normalised_images, dtype)
            return network

    def try_out(self, network: nn.Module) -> None:
        """Refuse a network of the user's own that isn't the same each time, or can't be trained."""
        refuse_another_network(self.run.experiment.model.name, network, self.new_network)
        manifest, batch = self.split.manifest, next(iter(self.training.shuffled(0)))
        with self._experiment_named():
            criterion = Loss(self.run.experiment.loss, manifest.task, self.device)
        refuse_what_cannot_be_trained(self.run.experiment, network, criterion, batch, len(manifest.class_names))

    def new_trainer(self, network: nn.Module | None = None) -> Trainer:
        """Of a new network, or of one that `new_network` made."""
        network = network or self.new_network()
        with self._experiment_named():
            parts, task = (self.training, self._validation), self.split.manifest.task
            return Trainer(self.run.experiment, network, *parts, self.device, self.team, task)

    def whole_batches(self) -> Batches:
        """The training's batches, also where this process trains on a share of each: then read from disk one by one."""
        if self.team.size == 1:
            return self.training
        loader = self.run.experiment.model_copy(
            update={"input": LoaderInput(name="loader", transform=self._own_transform)}
        )
        return make_batches(loader, self._part("train"), CPU)

    @property
    def _own_transform(self) -> OwnTransform | None:
        """What no images that lie on the device could go through."""
        given = self.run.experiment.input
        return given.transform if given.name == "loader" else None

    def _part(self, name: PartName) -> Part:
        manifest = self.split.manifest
        normalise = Normaliser(manifest.mean, manifest.std, len(manifest.shape))
        return Part(name, self.split.images(name), self.split.labels(name), normalise)

    def _device_room(self) -> list[Room]:
        """What other programs leave of an accelerator's memory just now, where it tells: only torch knows."""
        free_bytes = None if self.device.type == "cpu" else free_memory_bytes(self.device)
        return [] if free_bytes is None else [Room(f"{self.device} now", free_bytes)]

    @contextmanager
    def _experiment_named(self) -> Iterator[None]:
        """Around what finds mistakes in an experiment's settings, and knows their keys but not whose they are."""
        try:
            yield
        except MistakeError as error:
            run = self.run
            raise MistakeError(
                f"experiments.{run.name}.{error}. Its images are those of datasets.{run.experiment.dataset}"
            ) from error

    def repeats(
        self, first: Trainer, done: Repeats, on_epoch: Callable[[int, int], None] = lambda _repeat, _epoch: None
    ) -> Iterator[int]:
        """Add to `done` the repeats that are wanted and not there yet, one by one; the number of each when it is."""
        for number in range(len(done) + 2, self.run.experiment.repeats + 1):
            done.append(repeat_training(first, self.new_trainer(), self.run.name, number, partial(on_epoch, number)))
            yield number

    def measure_further(self, trained: Trainer) -> FurtherMeasurements:
        """The training is over: no checkpoint is written of it any more."""
        forget_optimizer(trained)
        timings = trained.progress.timings
        step_seconds = median_training_seconds(timings) / trained.steps_per_epoch
        plan = self.team.from_leader(plan_samples(step_seconds, passed_seconds(timings)))
        steady_state = measure_steps(trained, plan)
        return FurtherMeasurements(steady_state, *self._attribute(trained, step_seconds), *self._count(trained))

    def first_step(self, criterion: Loss) -> records.FirstStep | None:
        """As the training began; only in the process that leads."""
        batch, experiment = first_batch(self.training, self.team), self.run.experiment
        if batch is None:
            return None
        network, labels = self.new_network(), self.split.labels("train")
        return first_step(network, criterion, batch, self.device, experiment.precision, labels, experiment.seed)

    def _attribute(self, trained: Trainer, step_seconds: float) -> tuple[Attribution | None, str | None]:
        if self.team.size > 1:
            return None, "several processes train together: their steps end together, whichever part keeps one of them"
        if self.run.experiment.model.compile:
            return None, "its network is compiled for batches of its own size, and its parts are one"
        most_images = images_with_room(self.device, _BYTES_A_VALUE * math.prod(self.split.manifest.shape))
        training_seconds = passed_seconds(trained.progress.timings)
        plan = plan_attribution(trained, step_seconds, training_seconds, most_images=most_images)
        try:
            return attribute(trained, plan, self._resident_instead()), None
        except torch.OutOfMemoryError:  # a result is there, and not to be lost for want of its reasons
            return None, "the device's memory is too small for more than the training"

    def _count(self, trained: Trainer) -> tuple[Operations | None, str | None]:
        if self.team.size > 1:
            return None, "several processes train together, each on a part of a batch"
        if self.run.experiment.model.compile:
            return None, "its network is compiled, and its operations can't be seen"
        try:
            return count_operations(trained), None
        except RuntimeError as error:  # a network of the user's own may not like to be watched; a result is there
            return None, f"a step that is watched fails ({str(error).partition(chr(10))[0]})"

    def _resident_instead(self) -> Batches | None:
        """The training's batches from images on the device, if it has them from elsewhere and they fit."""
        is_resident = self.run.experiment.input.name == "resident"
        if is_resident or self._own_transform or not self.run.resident_fits(self._device_room()):
            return None
        resident = self.run.experiment.model_copy(update={"input": ResidentInput(name="resident")})
        team = self.team
        return team.placed(make_batches(resident, self._part("train"), self.device, team.rank, team.size))


def repeat_training(
    first: Trainer, again: Trainer, name: str, number: int, on_epoch: Callable[[int], None]
) -> tuple[EpochTiming, ...]:
    """Train `again`, which has not begun, for its times alone: what it learns must be the same bit for bit as what
    `first` did, which is done.

    `on_epoch` is told the epoch, from 1.
    """
    first.steps.forget()  # what they are recorded in is memory that this one needs, too
    warm_up(again)
    done = again.train(lambda metrics, _timing: on_epoch(metrics.epoch))
    if first.experiment.deterministic and (difference := _difference(first, again)):
        raise UserError(
            f"{name}, repeat {number}: it did not learn the same as the first time, from the same start: {difference}. "
            f"Times of different work can't be put together. Something on this device doesn't repeat bit for bit, "
            f"which is worth telling PyTorch's or photofinish's makers; repeats: 1 in params.yaml does without"
        )
    return tuple(done.timings)


def _difference(first: Trainer, again: Trainer) -> str | None:
    for before, now in zip(first.progress.metrics, again.progress.metrics, strict=True):
        if before != now:
            return f"from epoch {now.epoch} on (training loss {now.training_loss!r}, was {before.training_loss!r})"
    same = weights_of(first.network) == weights_of(again.network)
    return None if same else "the weights differ at the end, though no epoch's figures do"


def train_further_seeds(run: Run, device: torch.device, team: Team) -> dict[int, State]:
    """What trainers of each seed after the experiment's own ended with: trained now, by all of a team, or before."""
    first = run.experiment.seed + 1
    return {seed: _train(run, seed, device, team) for seed in range(first, first + run.experiment.seeds - 1)}


def write_seeded(learned: Path, states: dict[int, State]) -> None:
    """The weights and the history of each seed, beside the experiment's own."""
    runs = []
    for seed, state in states.items():
        path, weights = seed_weights(learned, seed), packed_weights(state["network"])
        digest = sha256_of_bytes(weights)
        add_sums(learned, {str(path.relative_to(learned)): digest})
        write_bytes_atomically(path, weights)
        runs.append(records.SeedRun(seed=seed, weights_sha256=digest, history=tuple(progress_in(state).metrics)))
    if runs:
        records.write_record(learned / f"{records.SEEDS}.json", records.FurtherSeeds(runs=tuple(runs)))


def _train(run: Run, seed: int, device: torch.device, team: Team) -> State:
    """Only who leads has a store of checkpoints, and tells of it."""
    name, epochs = f"{run.name} on {run.device}, seed {seed}", run.experiment.epochs
    alone = {"seed": seed, "seeds": 1, "repeats": 1, "save_weights": "last"}
    run = replace(run, experiment=run.experiment.model_copy(update=alone))
    store: CheckpointStore | None = None
    state: State | None = None
    if team.rank == 0:
        store = CheckpointStore(state_folder() / "checkpoints" / run.identity())
        state = store.load_latest(
            lambda path: print(f"{run.name}, seed {seed}: checkpoint {path} is damaged: not taken")
        )
    state = team.from_leader(state)
    if state is None or progress_in(state).epochs_done < epochs:
        trainer = Setup(run, device, team).new_trainer()
        if state:
            trainer.load_state_dict(state)
        warm_up(trainer)
        _train_on(trainer, name, store)
        state = on_cpu(trainer.state_dict()) | {"optimizer": {}}  # which no further epoch needs
        if store:
            store.save(epochs, state)
    return state


def _train_on(trainer: Trainer, name: str, store: CheckpointStore | None) -> None:
    display, experiment = TrainingDisplay(name, trainer), trainer.experiment

    def epoch_ended(metrics: EpochMetrics, timing: EpochTiming) -> None:
        if store is None:
            return
        display.epoch_ended(metrics, timing)
        if store.is_due() and metrics.epoch < experiment.epochs:
            store.save(metrics.epoch, trainer.state_dict())

    try:
        with display if store else nullcontext():
            trainer.train(epoch_ended)
    except NonFiniteLossError as error:
        raise NonFiniteLossError(f"from seed {experiment.seed}, {error}") from error
