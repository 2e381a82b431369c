"""A run as a training stage was asked for it, and its result where its device isn't there. No torch here."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from photofinish.data import MANIFEST
from photofinish.data.packed import PackedSplit
from photofinish.errors import MistakeError, UserError
from photofinish.files import sha256_of_bytes, sha256_of_file, to_json
from photofinish.machine.fingerprint import CpuHost, GpuHost
from photofinish.machine.memory import Room, SplitSize, bytes_needed, refuse_too_large, room_now
from photofinish.models.pretrained import checked_file, fetched_weights
from photofinish.params.base import read_plan
from photofinish.params.devices import batch_problem, sharing_key
from photofinish.params.experiment import Experiment, ExperimentPlan, MetricsPlan
from photofinish.params.networks import FetchedWeights
from photofinish.processes import own_rank
from photofinish.results import records
from photofinish.source_code import refuse_changed_code, stage_code


@dataclass(frozen=True)
class Run:
    """One experiment on one device, from its plan on."""

    name: str
    device: records.DeviceLabel
    experiment: Experiment
    host: CpuHost | GpuHost
    data: Path
    out: Path
    weights: Path | None = None
    """the folder that `download-weights` left for the experiment"""
    processes: int = 1
    """that train together, over all nodes"""
    metrics: Path | None = None
    """the plan of its metrics, which are tried before the training and are no part of it"""

    @property
    def title(self) -> str:
        """For whoever waits for it."""
        return f"which trains {self.name} on the {self.device}"

    @property
    def own_code(self) -> dict[str, str]:
        """The sha256 of each of the user's own files that it runs, and the versions of packages they name."""
        return self.experiment.own_code if isinstance(self.experiment, ExperimentPlan) else {}

    def check(self) -> None:
        """Refuse what only the machine and the split tell, and needs no torch."""
        refuse_changed_code(self.own_code)
        # Every device needs at least one image of a batch; `plan` can't tell where all GPUs are asked for.
        count, key = max(self.processes, 1), sharing_key(self.device, self.host.nodes)
        if isinstance(self.host, GpuHost):
            count = max(count, len(self.host.accelerators))
        batch_size = self.experiment.batch_size
        if problem := batch_problem(batch_size, count, key):
            raise MistakeError(f"experiments.{self.name}.batch_size is {batch_size}, and {problem} in params.yaml")
        split, augmentation = self._split_size(), self.experiment.augmentation
        if split.dtype != "uint8" and (augmentation.flip or augmentation.crop_padding):
            raise MistakeError(
                f"experiments.{self.name}.augmentation is for images in params.yaml; the items of "
                f"datasets.{self.experiment.dataset} are {split.dtype} of shape {split.shape}: leave it out"
            )
        # One of several processes counts for itself: the others may have loaded theirs already.
        processes = 1 if own_rank() else self.host.processes
        refuse_too_large(self.name, self.experiment, split, room_now(self.host, processes))

    def try_metrics(self) -> None:
        """Refuse a faulty one before the training, not after it. In a process of its own: a metric is no part of the
        training, so nothing that its file does may reach the network."""
        if self.metrics is None or not read_plan(self.metrics, MetricsPlan).metrics:
            return
        command = [sys.executable, "-m", "photofinish.runs.metrics_trial", str(self.metrics), str(self.data)]
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
        if tried.returncode:
            raise UserError(tried.stderr.strip().removeprefix("error: "))

    def refuse_too_large(self, rooms: list[Room]) -> None:
        """Refuse images that are to lie there and don't fit."""
        refuse_too_large(self.name, self.experiment, self._split_size(), rooms)

    def resident_fits(self, rooms: list[Room]) -> bool:
        """Whether `input: resident` would be let through now, with what is left of these besides."""
        every, split = (*room_now(self.host, 1), *rooms), self._split_size()
        return all(bytes_needed(self.experiment, split, room) <= room.available_bytes for room in every)

    def _split_size(self) -> SplitSize:
        manifest = PackedSplit(self.data).manifest
        return SplitSize(manifest.shape, manifest.counts["train"], manifest.counts["validation"], manifest.dtype)

    def data_sha256(self) -> str:
        """Of the split's manifest, which holds the sha256 of each data file."""
        return sha256_of_file(self.data / MANIFEST)

    def fetched_weights(self) -> FetchedWeights | None:
        """The published weights that the network starts from."""
        return fetched_weights(self.experiment.model, self.weights)

    def weights_file(self) -> Path | None:
        """Theirs, checked against its sha256."""
        fetched = self.fetched_weights()
        return checked_file(fetched, self.weights) if fetched and self.weights else None

    def key(self) -> str:
        """Of this run and no other one: two experiments may be the same but for their names."""
        return sha256_of_bytes(f"{self.name} {self.identity()}".encode())

    def identity(self) -> str:
        """Of everything that determines the run, bit for bit: settings, machine, data and code, whatever its name."""
        fetched = self.fetched_weights()
        experiment = self.experiment.model_dump(exclude={"own_code"})
        facts = [self.device, experiment, self.own_code, self.host.model_dump(), self.processes]
        sha256 = [self.data_sha256(), fetched.sha256 if fetched else None, code_sha256()]
        return sha256_of_bytes(to_json([*facts, *sha256]).encode())


@cache
def code_sha256() -> str:
    """Of all sources that a training stage runs, and of no others: another word in the report leaves it as it is."""
    return stage_code(Path(__file__).with_name("stage.py")).sha256


def write_unavailable(run: Run, reason: str) -> None:
    """Both parts, for whoever reads them; there is nothing to time."""
    record = records.Unavailable(device=run.device, experiment=run.experiment, reason=reason)
    records.write_record(run.out / records.LEARNED / records.RECORD, record)
    records.write_record(run.out / records.TIMED / records.TIMINGS, records.Untimed())
