"""The training stage by hand, on both devices, compared if the packages for it are installed.

What the stages before it would do (plan, download, split) is done here, because a bare GPU machine
lacks their packages.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
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

_TO_COMPARE = ("pandas", "sklearn")
_SETTINGS = {
    "dataset": "mnist", "input": {"name": "resident"}, "schedule": {"name": "constant"},
    "precision": "fp32", "seed": 0,
}  # fmt: skip
_EXPERIMENTS: dict[str, dict[str, Any]] = {
    "mnist-linear": {"model": LINEAR, "optimizer": {"name": "sgd", "lr": 0.5}, "batch_size": 128},
    "mnist-mlp": {"model": MLP, "optimizer": ADAM, "batch_size": 128},
    "mnist-lenet": {"model": LENET, "optimizer": SGD, "batch_size": 1000},
}


def run(findings: Findings, out: Path, data_folder: Path | None) -> None:
    """Train on both devices. Keeps results and records for reference/ in results.tar.gz."""
    small = here() == CPU
    images = mnist(data_folder, *((3000, 1000) if small else (50_000, 10_000)))
    with tempfile.TemporaryDirectory(prefix="photofinish-probe-") as name:
        project = Path(name)
        _write_split(project / "split", images)
        # Two threads wait for each other on a busy machine.
        cpu = CpuDevice(threads=1 if small else None)
        for label, host in zip(records.DEVICE_LABELS, fingerprint(Devices(cpu=cpu)), strict=True):
            _write(project / "hosts" / f"{label}.json", host.model_dump_json())
        _write(project / "metrics.json", '{"metrics": [], "custom_code": {}}')
        for experiment_name, settings in _EXPERIMENTS.items():
            length = {"epochs": 3 if small else 10, "repeats": 1 if small else 5}
            experiment = Experiment.model_validate(_SETTINGS | settings | length)
            plan = ExperimentPlan(**dict(experiment), custom_code={})
            _write(project / "experiments" / f"{experiment_name}.json", plan.model_dump_json())
            for device in records.DEVICE_LABELS:
                _train(findings, project, experiment_name, device)
        _compare(findings, project)
        for path in project.iterdir():
            if path.name not in ("results", "reference"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.make_archive(str(out / "results"), "gztar", project)


def _write(path: Path, text: str) -> None:
    write_bytes_atomically(path, text.encode())


def _write_split(folder: Path, images: data.Data) -> None:
    """Write the split. The test images are the validation images."""
    folder.mkdir(parents=True)
    parts: dict[PartName, data.Part] = {
        "train": images.train, "validation": images.validation, "test": images.validation,
    }  # fmt: skip
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
    _write(folder / MANIFEST, manifest.model_dump_json())


def _run_stage(project: Path, stage: str, **arguments: str) -> int:
    """Run a stage as DVC does. Returns its exit status."""
    command = [sys.executable, str(ROOT / "stages" / f"{stage}.py")]
    for key, value in arguments.items():
        command += [f"--{key}", value]
    inherited = {}
    for name, value in os.environ.items():
        if not name.startswith(("DVC_", "MLFLOW_")):
            inherited[name] = value
    environment = inherited | {"DVC_ROOT": str(project)}
    return subprocess.run(command, cwd=project, env=environment, check=False).returncode


def _train(findings: Findings, project: Path, name: str, device: records.DeviceLabel) -> None:
    """Run the training stage, and add the figures of its records."""
    variant, out = f"{name} on {device}", f"results/{name}/{device}"
    files = {"experiment": f"experiments/{name}.json", "host": f"hosts/{device}.json"}
    if status := _run_stage(project, "train", device=device, data="split", out=out, **files):
        findings.add("training stage", f"FAILED with status {status}", variant=variant)
        return
    record = records.read_training(project / out / records.MODEL)
    if isinstance(record, records.Unavailable):
        findings.skip("training stage", record.reason, variant=variant)
        return
    file = project / out / records.TIMINGS_FOLDER / records.TIMINGS
    timings = records.read_record(file, records.Timings)
    taken = timings.steps_taken
    kind, why = (taken.kind, taken.why) if taken else ("eager", "")
    findings.add("kind of steps", kind, variant=variant, note=why)
    step_seconds = min(timings.steady_state.step_seconds)
    findings.add("an epoch", timings.median_epoch_seconds * 1e3, "ms", variant=variant)
    findings.add("a steady step", step_seconds * 1e6, "us", variant=variant)
    findings.add("start-up", timings.startup_seconds, "s", variant=variant)
    findings.add("warm-up", timings.warm_up_seconds, "s", variant=variant)
    findings.add("the whole job", timings.total_seconds, "s", variant=variant)
    if timings.peak_memory_bytes:
        findings.add("peak memory", timings.peak_memory_bytes / 2**20, "MiB", variant=variant)
    for energy in timings.energy:
        if energy.joules is None:
            findings.skip(f"energy of the {energy.of}", energy.reason or "", variant=variant)
        else:
            findings.add(f"energy of the {energy.of}", energy.joules, "J", variant=variant)
    if clocks := [window.gpu_clock_mhz for window in timings.load if window.gpu_clock_mhz]:
        findings.add("clock", f"{min(clocks)} to {max(clocks)}", "MHz", variant=variant)
    if timings.not_attributed:
        findings.skip("attribution", timings.not_attributed, variant=variant)


def _compare(findings: Findings, project: Path) -> None:
    """Evaluate, and add each verdict and the parity of each layer."""
    missing = [package for package in _TO_COMPARE if importlib.util.find_spec(package) is None]
    if missing:
        findings.skip("parity, diagnosis and records", f"not installed here: {', '.join(missing)}")
        return
    from photofinish.comparing.pairs import read_pair
    from photofinish.reporting.sentences import layer_finding, verdict
    from photofinish.results.references import record_all

    for name in _EXPERIMENTS:
        out = f"results/{name}/{records.EVALUATED}"
        files = {"results": "results", "data": "split", "metrics": "metrics.json"}
        if status := _run_stage(project, "evaluate", name=name, out=out, **files):
            findings.add("evaluation", f"FAILED with status {status}", variant=name)
            continue
        pair = read_pair(name, project / "results" / name)
        findings.add("verdict", verdict(pair).text, variant=name)
        if pair.compared and (parity := pair.compared.parity):
            for layer in parity.layers:
                finding = layer_finding(layer, parity)
                findings.add(f"parity: {layer.name}", finding, variant=name)
    reference = project / "reference"
    record_all(project / "experiments", project / "results", reference, None)
    count = len(list(reference.rglob("*.json")))
    findings.add("records", str(count), "files", note="reference/ in results.tar.gz")
