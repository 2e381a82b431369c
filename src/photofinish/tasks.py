"""What a training stage was asked to do, and the result where its device isn't there. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from photofinish import records
from photofinish.datasets.packed import MANIFEST
from photofinish.files import sha256_of_bytes, sha256_of_file, to_json
from photofinish.hosts import CpuHost, GpuHost
from photofinish.params import Experiment
from photofinish.provenance import source_sha256


@dataclass(frozen=True)
class TrainingTask:
    name: str
    device: records.DeviceLabel
    experiment: Experiment
    host: CpuHost | GpuHost
    data: Path
    out: Path

    def data_sha256(self) -> str:
        """Of the split's manifest, which holds the sha256 of each data file."""
        return sha256_of_file(self.data / MANIFEST)

    def key(self) -> str:
        """Of everything that determines the run, bit for bit: settings, machine, data and code."""
        facts = [self.name, self.device, self.experiment.model_dump(), self.host.model_dump()]
        return sha256_of_bytes(to_json([*facts, self.data_sha256(), source_sha256()]).encode())


def write_unavailable(task: TrainingTask, reason: str) -> None:
    """Both outs, as DVC expects them; there is nothing to time."""
    record = records.Unavailable(device=task.device, experiment=task.experiment, reason=reason)
    records.write_record(task.out / records.LEARNED / records.RECORD, record)
    records.write_record(task.out / records.TIMED / records.TIMINGS, records.Untimed())
