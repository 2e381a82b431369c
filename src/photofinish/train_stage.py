"""The course of a training stage: is the device there, then train on it, with MLflow told from the first moment.

Torch takes seconds to import, so it comes last: MLflow's process starts up meanwhile, and a machine without an
accelerator never imports it for `train-gpu`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from photofinish.datasets.packed import PackedSplit
from photofinish.errors import UserError
from photofinish.hosts import CpuHost, GpuHost
from photofinish.locks import sole_writer
from photofinish.params import Experiment
from photofinish.plan_reader import read_plan
from photofinish.provenance import git_commit, package_versions, state_folder
from photofinish.records import DeviceLabel
from photofinish.tasks import TrainingTask, write_unavailable
from photofinish.tracking.client import Tracker
from photofinish.tracking.documents import dataset_facts, run_facts


def train(device: DeviceLabel, experiment_file: Path, host_file: Path, data: Path, out: Path) -> None:
    host = read_plan(host_file, CpuHost) if device == "cpu" else read_plan(host_file, GpuHost)
    task = TrainingTask(experiment_file.stem, device, read_plan(experiment_file, Experiment), host, data, out)
    # One writer at a time, from before MLflow hears of the run: another one's run must not be taken for ours.
    writer = sole_writer(state_folder() / "locks", str(out.resolve()), task.key())
    with writer as lock_seconds, Tracker() as tracker:
        _announce(tracker, task)
        reason = _train_if_available(task, tracker, lock_seconds)
        if reason is None:
            return
        if isinstance(host, GpuHost) and host.if_missing == "fail":
            raise UserError(
                f"{reason} (devices.gpu.if_missing in params.yaml is 'fail'; 'skip' records it and goes on)"
            )
        print(f"{task.name} on {device}: unavailable. {reason}", file=sys.stderr)
        write_unavailable(task, reason)
        tracker.training_ended(task.name, device, out.parent.parent, [], None)


def _announce(tracker: Tracker, task: TrainingTask) -> None:
    manifest = PackedSplit(task.data).manifest
    dataset = dataset_facts(task.experiment.dataset, task.data_sha256(), manifest.shape, manifest.class_names)
    facts = run_facts(task.name, task.device, task.experiment, task.host, package_versions(), git_commit(), dataset)
    tracker.start(facts, task.key(), manifest.counts["train"])


def _train_if_available(task: TrainingTask, tracker: Tracker, lock_seconds: float) -> str | None:
    """Train, or tell why the device can't be used."""
    if isinstance(task.host, GpuHost) and task.host.missing:
        return f"no accelerator: {task.host.missing}"
    from photofinish.devices import CPU, NoAcceleratorError, accelerator
    from photofinish.training import run_training

    try:
        device = accelerator(task.host.kind) if isinstance(task.host, GpuHost) else CPU
    except NoAcceleratorError as error:
        return str(error)
    run_training(task, device, tracker, lock_seconds)
    return None
