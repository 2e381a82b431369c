"""A training run as its stage requests it, and what identifies it. Does not import torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from photofinish.config.base import read_plan
from photofinish.config.devices import batch_problem, sharing_key
from photofinish.config.experiment import Experiment, ExperimentPlan, MetricsPlan
from photofinish.config.networks import FetchedWeights, checked_file, fetched_weights
from photofinish.data import MANIFEST
from photofinish.data.packed import PackedSplit
from photofinish.errors import ConfigError, UserError
from photofinish.files import sha256_of_bytes, sha256_of_file, state_folder, to_json
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.machine.memory import Room, SplitSize, bytes_needed, check_memory_needed, room_now
from photofinish.processes import own_rank
from photofinish.results import records
from photofinish.source_code import check_code_unchanged, our_code


@dataclass(frozen=True)
class Run:
    """One experiment on one device."""

    name: str
    device: records.DeviceLabel
    experiment: Experiment
    host: CpuTarget | GpuTarget
    data: Path
    """Folder of the packed split."""
    out: Path
    weights: Path | None = None
    """Folder of published weights, written by `download-weights`."""
    processes: int = 1
    """World size."""
    metrics: Path | None = None
    """Plan of custom metrics. They are tried before the training and do not influence it."""

    @property
    def custom_code(self) -> dict[str, str]:
        """Return the sha256 of each custom file that runs, and the versions of its packages."""
        return self.experiment.custom_code if isinstance(self.experiment, ExperimentPlan) else {}

    def check(self) -> None:
        """Raise ConfigError or UserError for settings that do not fit the split or the machine."""
        check_code_unchanged(self.custom_code)
        experiment = self.experiment
        gpus = len(self.host.accelerators) if isinstance(self.host, GpuTarget) else 0
        # `plan` cannot count the devices if all GPUs are requested.
        devices = max(self.processes, gpus)
        key = sharing_key(self.device)
        if problem := batch_problem(experiment.batch_size, devices, key):
            raise ConfigError(
                f"experiments.{self.name}.batch_size is {experiment.batch_size}, "
                f"and {problem} in params.yaml"
            )
        split, augmentation = self._split_size(), experiment.augmentation
        if split.dtype != "uint8" and (augmentation.flip or augmentation.crop_padding):
            raise ConfigError(
                f"experiments.{self.name}.augmentation is for images in params.yaml. Samples of "
                f"datasets.{experiment.dataset} are {split.dtype} of shape {split.shape}: "
                f"leave it out"
            )
        # A rank counts only itself: the others may have loaded their data already.
        processes = 1 if own_rank() else self.host.processes
        self.check_memory(room_now(self.host, processes))

    def check_metrics(self) -> None:
        """Raise UserError if a custom metric fails on made-up outputs.

        This runs in a separate process, so that nothing in a metric's file can reach the network.
        """
        if self.metrics is None or not read_plan(self.metrics, MetricsPlan).metrics:
            return
        module = "photofinish.runs.evaluation"
        command = [sys.executable, "-m", module, str(self.metrics), str(self.data)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise UserError(result.stderr.strip().removeprefix("error: "))

    def check_memory(self, rooms: list[Room]) -> None:
        """Raise UserError if resident data does not fit into `rooms`."""
        check_memory_needed(self.name, self.experiment, self._split_size(), rooms)

    def resident_fits(self, rooms: list[Room]) -> bool:
        """Return True if `input: resident` would fit into the memory that is free now."""
        every, split = (*room_now(self.host, 1), *rooms), self._split_size()
        return all(
            bytes_needed(self.experiment, split, room) <= room.available_bytes for room in every
        )

    def _split_size(self) -> SplitSize:
        manifest = PackedSplit(self.data).manifest
        counts = manifest.counts
        return SplitSize(manifest.shape, counts["train"], counts["validation"], manifest.dtype)

    def data_sha256(self) -> str:
        """Return the sha256 of the split's manifest, which holds the sha256 of each data file."""
        return sha256_of_file(self.data / MANIFEST)

    def published_weights(self) -> FetchedWeights | None:
        """Return the published weights that the network starts from, if any."""
        return fetched_weights(self.experiment.model, self.weights)

    def weights_file(self) -> Path | None:
        """Return the file of published weights, checked against its sha256."""
        published = self.published_weights()
        return checked_file(published, self.weights) if published and self.weights else None

    def identity(self) -> str:
        """Return the sha256 of all that determines the training, except its name."""
        published = self.published_weights()
        facts = [
            self.device,
            self.experiment.model_dump(exclude={"custom_code"}),
            self.custom_code,
            self.host.model_dump(),
            self.processes,
            self.data_sha256(),
            published.sha256 if published else None,
            code_sha256(),
        ]
        return sha256_of_bytes(to_json(facts).encode())

    def key(self) -> str:
        return records.training_key(self.name, self.identity())

    def checkpoint_folder(self) -> Path:
        """Return where this run keeps its checkpoints.

        They stay when the training ends. If DVC is killed before it has stored the result, the next
        `dvc repro` finds them and has no epoch left. Once DVC has stored it, dvc.lock has another
        entry and the folder another name, so `dvc repro --force` trains again.
        """
        name = sha256_of_bytes(f"{self.key()} {_dvc_lock_entry()}".encode())
        return state_folder() / "checkpoints" / name


@cache
def code_sha256() -> str:
    return our_code("train").sha256


def _dvc_lock_entry() -> str:
    """Return this stage's part of dvc.lock, or "" outside DVC and before its first result."""
    lock = Path("dvc.lock")
    stage = os.environ.get("DVC_STAGE", "").rpartition(":")[2]
    if not stage or not lock.is_file():
        return ""
    # A regular expression, because parsing hundreds of stages takes seconds.
    text = lock.read_text(encoding="utf-8")
    entry = re.search(rf"^  {re.escape(stage)}:$(\n   .*)*", text, re.MULTILINE)
    return entry[0] if entry else ""


def write_unavailable(run: Run, reason: str) -> None:
    record = records.Unavailable(device=run.device, experiment=run.experiment, reason=reason)
    records.write_record(run.out / records.MODEL / records.RECORD, record)
    records.write_record(run.out / records.TIMINGS_FOLDER / records.TIMINGS, records.Untimed())
