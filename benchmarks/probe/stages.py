"""Parts 3 and 5: the training stage by hand, on both devices, judged where that can be; and killed, then resumed.

What the stages before it would do (plan, download, split) is done here, for a bare GPU machine lacks their packages.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.probe.findings import ROOT, Findings, here
from benchmarks.probe.trainers import ADAM, LENET, LINEAR, MLP, SGD, mnist
from photofinish.config.devices import CpuDevice, Devices
from photofinish.config.experiment import Experiment, ExperimentPlan
from photofinish.data import MANIFEST, PartName
from photofinish.data.packed import Manifest, part_file
from photofinish.files import sha256_of_file, write_bytes_atomically
from photofinish.machine.fingerprint import fingerprint
from photofinish.results import records
from photofinish.training.torch_device import CPU

_TO_JUDGE = ("pandas", "sklearn")
_SETTINGS = {
    "dataset": "mnist",
    "input": {"name": "resident"},
    "schedule": {"name": "constant"},
    "precision": "fp32",
    "seed": 0,
}
_EXPERIMENTS: dict[str, dict[str, Any]] = {
    "mnist-linear": {"model": LINEAR, "optimizer": {"name": "sgd", "lr": 0.5}, "batch_size": 128},
    "mnist-mlp": {"model": MLP, "optimizer": ADAM, "batch_size": 128},
    "mnist-lenet": {"model": LENET, "optimizer": SGD, "batch_size": 1000},
}


@dataclass(frozen=True)
class Project:
    """A folder with all that `stages/train.py` reads."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, images: data.Data, experiments: dict[str, dict[str, Any]]) -> Project:
        """Experiments on one split, on both devices."""
        _write_split(folder / "split", images)
        cpu = CpuDevice(threads=1 if here() == CPU else None)  # else a busy machine's two threads wait for each other
        for label, host in zip(records.DEVICE_LABELS, fingerprint(Devices(cpu=cpu)), strict=True):
            write_bytes_atomically(folder / "hosts" / f"{label}.json", host.model_dump_json().encode())
        for name, settings in experiments.items():
            experiment = Experiment.model_validate(_SETTINGS | settings)
            plan = ExperimentPlan(**dict(experiment), custom_code={})
            write_bytes_atomically(folder / "experiments" / f"{name}.json", plan.model_dump_json().encode())
        write_bytes_atomically(folder / "metrics.json", b'{"metrics": [], "custom_code": {}}')
        return cls(folder)

    def start(self, name: str, device: records.DeviceLabel, out: str = "results") -> subprocess.Popen[bytes]:
        """As dvc does."""
        arguments = {
            "device": device, "experiment": f"experiments/{name}.json", "host": f"hosts/{device}.json", "data": "split",
            "out": f"{out}/{name}/{device}",
        }  # fmt: skip
        return self._run("train", arguments)

    def evaluate(self, name: str) -> int:
        """How its networks do on the test images."""
        arguments = {
            "name": name, "results": "results", "data": "split", "metrics": "metrics.json",
            "out": f"results/{name}/{records.EVALUATED}",
        }  # fmt: skip
        return self._run("evaluate", arguments).wait()

    def _run(self, stage: str, arguments: dict[str, str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(ROOT / "stages" / f"{stage}.py")]
        command += [text for key, value in arguments.items() for text in (f"--{key}", value)]
        own = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "MLFLOW_"))}
        return subprocess.Popen(command, cwd=self.folder, env=own | {"DVC_ROOT": str(self.folder)})

    def timings(self, name: str, device: records.DeviceLabel) -> records.Timings | None:
        """None where the device isn't there."""
        folder = self.folder / "results" / name / device
        if isinstance(records.read_training(folder / records.MODEL), records.Unavailable):
            return None
        return records.read_record(folder / records.TIMINGS_FOLDER / records.TIMINGS, records.Timings)


def _write_split(folder: Path, images: data.Data) -> None:
    """The validation images are the test images too: nothing is judged by them here but both devices alike."""
    folder.mkdir(parents=True)
    parts: dict[PartName, data.Part] = {
        "train": images.train,
        "validation": images.validation,
        "test": images.validation,
    }
    for part, content in parts.items():
        np.save(folder / part_file(part, "images"), content.images)
        np.save(folder / part_file(part, "labels"), content.labels)
    manifest = Manifest(
        class_names=tuple(map(str, range(images.classes))),
        shape=images.train.images.shape[1:],
        counts={part: len(content.labels) for part, content in parts.items()},
        mean=images.mean,
        std=images.std,
        sha256={path.name: sha256_of_file(path) for path in folder.glob("*.npy")},
    )
    write_bytes_atomically(folder / MANIFEST, manifest.model_dump_json().encode())


def run(found: Findings, out: Path, data_folder: Path | None) -> None:
    """Part 3: parity, energy, clocks, diagnosis, and records for reference/."""
    small = here() == CPU
    images = mnist(data_folder, *((3000, 1000) if small else (50_000, 10_000)))
    how = {"epochs": 3 if small else 10, "repeats": 1 if small else 5}
    with tempfile.TemporaryDirectory(prefix="photofinish-probe-") as name:
        project = Project.make(
            Path(name), images, {each: {**settings, **how} for each, settings in _EXPERIMENTS.items()}
        )
        for experiment in _EXPERIMENTS:
            for device in records.DEVICE_LABELS:
                if status := project.start(experiment, device).wait():
                    found.add("training stage", f"FAILED with status {status}", variant=f"{experiment} on {device}")
                else:
                    _tell_timings(found, experiment, device, project)
        _judge(found, project)
        for folder in project.folder.iterdir():  # one file, for a machine that gives few files back
            if folder.name not in ("results", "reference"):
                shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
        shutil.make_archive(str(out / "results"), "gztar", project.folder)


def _tell_timings(found: Findings, name: str, device: records.DeviceLabel, project: Project) -> None:
    timings, variant = project.timings(name, device), f"{name} on {device}"
    if timings is None:
        record = records.read_training(project.folder / "results" / name / device / records.MODEL)
        found.skip("training stage", record.reason if isinstance(record, records.Unavailable) else "", variant=variant)
        return
    taken = timings.steps_taken
    found.add("kind of steps", taken.kind if taken else "eager", variant=variant, note=taken.why if taken else "")
    figures = {
        "an epoch": (timings.median_epoch_seconds * 1e3, "ms"),
        "a steady step": (min(timings.steady_state.step_seconds) * 1e6, "us"),
        "start-up": (timings.startup_seconds, "s"),
        "warm-up": (timings.warm_up_seconds, "s"),
        "the whole job": (timings.total_seconds, "s"),
    }
    for what, (value, unit) in figures.items():
        found.add(what, value, unit, variant=variant)
    if timings.peak_memory_bytes:
        found.add("peak memory", timings.peak_memory_bytes / 2**20, "MiB", variant=variant)
    for energy in timings.energy:
        if energy.joules is None:
            found.skip(f"energy of the {energy.of}", energy.reason or "", variant=variant)
        else:
            found.add(f"energy of the {energy.of}", energy.joules, "J", variant=variant)
    clocks = [window.gpu_clock_mhz for window in timings.load if window.gpu_clock_mhz]
    if device == "gpu":
        slowed = sorted({word for window in timings.load for word in window.gpu_slowdowns})
        if clocks:
            found.add("clock", f"{min(clocks)} to {max(clocks)}", "MHz", variant=variant, note=", ".join(slowed))
        else:
            found.skip("clock", "the driver doesn't tell", variant=variant)
    if timings.not_attributed:
        found.skip("attribution", timings.not_attributed, variant=variant)


def _judge(found: Findings, project: Project) -> None:
    missing = [package for package in _TO_JUDGE if importlib.util.find_spec(package) is None]
    if missing:
        why = f"not installed here: {', '.join(missing)}; results.tar.gz holds what `evaluate` and `compare` want"
        found.skip("parity, diagnosis and records", why)
        return
    from photofinish.comparing.pairs import read_pair
    from photofinish.report.sentences import layer_finding, verdict
    from photofinish.results.references import record_all

    failed = [name for name in _EXPERIMENTS if project.evaluate(name)]
    if failed:
        found.add("evaluation", "FAILED", variant=", ".join(failed))
        return
    for name in _EXPERIMENTS:
        pair = read_pair(name, project.folder / "results" / name)
        found.add("verdict", verdict(pair).text, variant=pair.experiment)
        if compared := pair.compared:
            for layer in compared.parity.layers:
                finding = layer_finding(layer, compared.parity)
                found.add(f"parity: {layer.name}", finding, variant=pair.experiment)
    reference = project.folder / "reference"
    record_all(project.folder / "experiments", project.folder / "results", reference, None)
    found.add("records", str(len(list(reference.rglob("*.json")))), "files", note="reference/ in results.tar.gz")


def kill_and_resume(found: Findings, _out: Path, data_folder: Path | None) -> None:
    """Part 5: SIGKILL after a checkpoint, then the stage again: it must end with the bits of one that ran through."""
    label: records.DeviceLabel = "cpu" if here() == CPU else "gpu"
    images = mnist(data_folder, 2000 if label == "cpu" else 50_000, 500)
    settings = {"model": LENET, "optimizer": SGD, "batch_size": 100, "epochs": 20 if label == "cpu" else 100}
    with tempfile.TemporaryDirectory(prefix="photofinish-probe-") as name:
        project = Project.make(Path(name), images, {"lenet": settings})
        if status := project.start("lenet", label, "whole").wait():
            found.add("training stage", f"FAILED with status {status}", variant=label)
            return
        shutil.rmtree(project.folder / ".photofinish")  # a training that is done would be handed over again
        process = project.start("lenet", label, "resumed")
        while process.poll() is None and not list(project.folder.glob(".photofinish/checkpoints/*/epoch-*.pt")):
            time.sleep(0.01)
        if process.poll() is not None:
            found.skip("resumed after SIGKILL", "it was done before its first checkpoint", variant=label)
            return
        process.send_signal(signal.SIGKILL)
        process.wait()
        status = project.start("lenet", label, "resumed").wait()
        if status:
            found.add("resumed after SIGKILL", f"FAILED with status {status}", variant=label)
            return
        whole, resumed = (
            json.loads((project.folder / out / "lenet" / label / records.MODEL / records.RECORD).read_bytes())
            for out in ("whole", "resumed")
        )
        at = records.read_record(
            project.folder / "resumed" / "lenet" / label / records.TIMINGS_FOLDER / records.TIMINGS, records.Timings
        ).resumed_at_epochs
        same = "the same bits" if whole["weights_sha256"] == resumed["weights_sha256"] else "OTHER BITS"
        found.add("resumed after SIGKILL", same, variant=label, note=f"after epoch {at}")
