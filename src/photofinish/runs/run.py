"""Training run requested by its stage, its identity and its costs. Does not import torch."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from photofinish.config.devices import BudgetPlan
from photofinish.config.experiment import ExperimentPlan
from photofinish.config.losses_and_metrics import CrossEntropy
from photofinish.config.networks import FetchedWeights, fetched_weights
from photofinish.custom.imports import check_code_unchanged
from photofinish.data import IGNORED_CLASS, MANIFEST
from photofinish.data.packed import Manifest, PackedSplit
from photofinish.errors import ConfigError, UserError
from photofinish.files import sha256_of_bytes, sha256_of_file, state_folder, to_json
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.nested import leaves
from photofinish.planning.source_code import module_code
from photofinish.results import EpochTiming, passed_seconds, records
from photofinish.results.trained import DeviceLabel
from photofinish.stage.process import own_rank
from photofinish.wording import money

_LEAST_SHOWN = 0.01
LEAST_EPOCHS = 2
"""Minimum number of epochs with a time limit, because an interval needs two."""
REMEDY = (
    "`photofinish spread` trains it there, and so does `dvc repro` on that machine. "
    "If this machine has changed, run `dvc repro plan`."
)


@dataclass(frozen=True)
class Costs:
    """Hourly price of a device, and the budget of a training on it.

    They are not part of a training's cache key, so changing them reruns no training.
    """

    hour_price: float = 0.0
    currency: str = ""
    budget: float | None = None

    @classmethod
    def of(cls, plan: BudgetPlan, device: DeviceLabel) -> Self:
        price = plan.cpu_hour if device == "cpu" else plan.gpu_hour
        return cls(price or 0.0, plan.currency, plan.budget)

    def so_far(self, seconds: float) -> str:
        """Return `0.42 USD so far`, or an empty text below 0.01 or without a price."""
        amount = self._amount(seconds)
        return f"{money(amount, self.currency)} so far" if amount >= _LEAST_SHOWN else ""

    def reach_budget(self, seconds: float) -> bool:
        """Return True if this time costs the budget or more."""
        return self.budget is not None and self._amount(seconds) >= self.budget

    def check(self, seconds: float, title: str, done: str) -> None:
        """Raise UserError if this time costs the budget. `done` is what the checkpoint holds."""
        if self.budget is None or not self.reach_budget(seconds):
            return
        raise UserError(
            f"{title}: stopped after {done} at {money(self._amount(seconds), self.currency)}, "
            f"since compare.budget is {money(self.budget, self.currency)}. Raise or remove "
            f"compare.budget in params.yaml and run `dvc repro` again: it goes on after {done}"
        )

    def _amount(self, seconds: float) -> float:
        return self.hour_price * seconds / 3600


@dataclass(frozen=True)
class Run:
    """One experiment on one device."""

    name: str
    device: DeviceLabel
    experiment: ExperimentPlan
    host: CpuTarget | GpuTarget
    data: Path
    """Folder of the packed split."""
    out: Path
    weights: Path | None = None
    """Folder of published weights, written by `download-weights`."""
    costs: Costs = field(default_factory=Costs)
    apart_for: str | None = None
    """Experiment in a copy of the project that trains again what another experiment finished."""

    @property
    def title(self) -> str:
        return f"{self.name} on {self.device}"

    def check(self) -> None:
        """Raise ConfigError or UserError for settings that do not fit the split or the machine."""
        check_code_unchanged(self.experiment.custom_code)
        experiment = self.experiment
        gpus = len(self.host.accelerators) if isinstance(self.host, GpuTarget) else 0
        devices = max(self.host.processes, gpus)
        if experiment.batch_size < devices:
            key = "processes" if self.device == "cpu" else "count"
            raise ConfigError(
                f"experiments.{self.name}.batch_size is {experiment.batch_size}, but "
                f"{devices} devices or processes share each batch (devices.{self.device}.{key}): "
                f"raise it in params.yaml, or use fewer"
            )
        split = PackedSplit(self.data).manifest
        augmentation = experiment.augmentation
        self._check_input(split)
        self._check_ignored_class(split)
        if (augmentation.flip or augmentation.crop_padding) and split.dtype != "uint8":
            raise ConfigError(
                f"experiments.{self.name}.augmentation is only for images, but samples of "
                f"datasets.{experiment.dataset} are {split.dtype} of shape {split.shape}: "
                f"remove it from params.yaml"
            )

    def _check_input(self, split: Manifest) -> None:
        given, key = self.experiment.input, f"experiments.{self.name}.input"
        dataset = f"datasets.{self.experiment.dataset}"
        if split.decode == "each_epoch" and given.name != "loader":
            raise ConfigError(
                f"{key} must be a loader in params.yaml, such as {{name: loader, workers: 2}}, "
                f"because {dataset}.decode is each_epoch: resident samples are read once"
            )
        shapes = [split.shape] if isinstance(split.dtype, str) else leaves(split.shape)
        if not any(None in shape for shape in (*shapes, split.target_shape)):
            return
        is_one_shape = None not in split.target_shape
        if given.name == "loader" and given.collate:
            return
        if given.name == "loader" and given.transform and given.eval_transform and is_one_shape:
            return
        shown = str(split.shape).replace("None", "any")
        raise ConfigError(
            f"{key} can't batch samples of {dataset}, whose shapes differ {shown}. In params.yaml, "
            f'name a function ({{name: loader, collate: "./file.py:pad"}}) that gets a list of '
            f"(input, target) and returns a batch, or let its transform and eval_transform return "
            f"one shape"
        )

    def _check_ignored_class(self, split: Manifest) -> None:
        loss, ignored = self.experiment.loss, split.ignored_class
        ignore_index = loss.ignore_index if isinstance(loss, CrossEntropy) else IGNORED_CLASS
        key = f"experiments.{self.name}.loss"
        dataset = f"datasets.{self.experiment.dataset}"
        if ignored not in (None, ignore_index):
            raise ConfigError(
                f"{key} in params.yaml takes {ignored} for a class, but the targets of {dataset} "
                f"have {len(split.class_names)} classes, from 0. If {ignored} marks positions that "
                f"do not count, set loss: {{name: cross_entropy, ignore_index: {ignored}}}; a "
                f"custom loss or step needs {IGNORED_CLASS} there"
            )
        if ignore_index != IGNORED_CLASS and not split.target_shape:
            raise ConfigError(
                f"{key}.ignore_index in params.yaml is for targets with a class at each position, "
                f"but each sample of {dataset} has one target ({split.task}): remove it"
            )

    def data_sha256(self) -> str:
        """Return the sha256 of the split's manifest, which holds the sha256 of each data file."""
        return sha256_of_file(self.data / MANIFEST)

    def published_weights(self) -> FetchedWeights | None:
        return fetched_weights(self.experiment.model, self.weights)

    def identity(self) -> str:
        """Return the sha256 of all that determines the training, except its name.

        It leaves out the time limit, so that a run with another limit finds the checkpoints.
        """
        published, rank = self.published_weights(), own_rank()
        facts = [
            self.device,
            self.experiment.model_dump(exclude={"custom_code", "time_limit_seconds"}),
            self.experiment.custom_code,
            self.host.model_dump(),
            rank.size if rank else self.host.processes,
            self.data_sha256(),
            published.sha256 if published else None,
            module_code("photofinish.runs.stage").sha256,
        ]
        return sha256_of_bytes(to_json(facts).encode())

    def key(self) -> str:
        return records.training_key(self.name, self.identity())

    def checkpoint_folder(self) -> Path:
        """Return the folder of this run's checkpoints.

        It remains after the training. If DVC is killed before it stores the result, the next `dvc
        repro` restores the last checkpoint and trains no epoch. Once DVC has stored the result,
        dvc.lock has a new entry and the folder a new name, so `dvc repro --force` trains again.
        """
        facts = f"{self.key()} {_dvc_lock_entry()} {self.apart_for!r}"
        return state_folder() / "checkpoints" / sha256_of_bytes(facts.encode())

    def finished_by(self) -> Path:
        """Return the file with the name of the `dvc exp run` that finished, or with nothing."""
        return self.checkpoint_folder() / "experiment"

    def finished_times(self) -> records.TrainingTimes | None:
        """Return the times kept beside the last checkpoint, or None if it has epochs to train."""
        file = self.checkpoint_folder() / records.TIMINGS
        return records.read_record(file, records.TrainingTimes) if file.is_file() else None

    def keep_times(self, timings: records.TrainingTimes) -> None:
        self.finished_by().write_text(os.environ.get("DVC_EXP_NAME", ""), encoding="utf-8")
        # Written last: a training with this file is finished.
        records.write_record(self.checkpoint_folder() / records.TIMINGS, timings)

    def is_finished(self) -> bool:
        """Return True if it finished, and its time limit was not raised for a further epoch."""
        timings = self.finished_times()
        limit_seconds = self.experiment.time_limit_seconds
        if not timings or not timings.epochs_left:
            return timings is not None
        return epochs_in_time(limit_seconds, timings.total_seconds, timings.epochs) == 0


def _dvc_lock_entry() -> str:
    """Return this stage's part of dvc.lock, or "" outside DVC and before the first result."""
    lock = Path("dvc.lock")
    stage = os.environ.get("DVC_STAGE", "").rpartition(":")[2]
    if not stage or not lock.is_file():
        return ""
    # A regular expression, because parsing hundreds of stages takes seconds.
    text = lock.read_text(encoding="utf-8")
    entry = re.search(rf"^  {re.escape(stage)}:$(\n   .*)*", text, re.MULTILINE)
    return entry[0] if entry else ""


def epochs_in_time(
    limit_seconds: float | None, spent_seconds: float, epochs: Sequence[EpochTiming]
) -> int:
    """Return how many further epochs end before the time limit.

    Each is assumed to take the mean time of `epochs`. Once it is 0, it stays 0 for the same limit,
    because the time that is spent only grows.
    """
    if limit_seconds is None:
        return sys.maxsize
    in_time = (limit_seconds - spent_seconds) / (passed_seconds(epochs) / len(epochs))
    return max(0, int(in_time), LEAST_EPOCHS - len(epochs))
