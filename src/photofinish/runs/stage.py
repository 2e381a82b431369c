"""The course of a training stage: is the device there, then train on it, with MLflow told from the first moment.

Torch takes seconds to import, so it comes last: MLflow's process starts up meanwhile. A machine without an accelerator
starts neither for `train-gpu`.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from photofinish.data.packed import PackedSplit
from photofinish.errors import UserError
from photofinish.files import state_folder
from photofinish.locks import machine_to_itself, sole_writer
from photofinish.machine.fingerprint import CpuHost, GpuHost
from photofinish.machine.software import git_commit, package_versions
from photofinish.params.base import read_plan
from photofinish.params.experiment import Experiment
from photofinish.processes import Rank, is_started_by_stage, own_rank, quick_imports
from photofinish.results.records import DeviceLabel
from photofinish.runs.task import TrainingTask, write_unavailable
from photofinish.tracking.client import Tracker
from photofinish.tracking.documents import dataset_facts, run_facts


def train(
    device: DeviceLabel, experiment_file: Path, host_file: Path, data: Path, weights: Path | None, out: Path
) -> None:
    host = read_plan(host_file, CpuHost) if device == "cpu" else read_plan(host_file, GpuHost)
    rank = own_rank()
    processes = rank.size if rank else host.processes
    experiment = read_plan(experiment_file, Experiment)
    task = TrainingTask(experiment_file.stem, device, experiment, host, data, out, weights, processes)
    if rank is None:
        task.check()
        if processes == 1:
            _lead(task, None)
            return
        from photofinish.runs.distributed import launch

        with machine_to_itself(_title(task)) as waited_seconds:
            launch(processes, host.threads or 1, waited_seconds)
        return
    from photofinish.runs.distributed import failures_left_to_the_stage

    with failures_left_to_the_stage():
        task.check()
        if rank.number == 0:
            _lead(task, rank)
        else:
            _follow(task, rank)


def _lead(task: TrainingTask, rank: Rank | None) -> None:
    """Train, alone or as the first of several processes: the one that writes, tracks and talks."""
    # One writer at a time, from before MLflow hears of the run: another one's run must not be taken for ours.
    writer = sole_writer(state_folder() / "locks", str(task.out.resolve()), task.key())
    with writer as lock_seconds:
        if rank is None and isinstance(task.host, GpuHost) and task.host.missing:
            # MLflow's process would take longer to start than all of this; the next stage that has one tells it.
            _record_unavailable(task, f"no accelerator: {task.host.missing}")
            return
        with _machine(task) as waited_seconds, Tracker() as tracker:
            _announce(tracker, task)
            reason = _train_if_available(task, rank, tracker, lock_seconds + waited_seconds)
            if reason is not None:
                _record_unavailable(task, reason)
                tracker.training_ended(task.name, task.device, task.out.parent.parent, [])


def _record_unavailable(task: TrainingTask, reason: str) -> None:
    if isinstance(task.host, GpuHost) and task.host.if_missing == "fail":
        raise UserError(f"{reason} (devices.gpu.if_missing in params.yaml is 'fail'; 'skip' records it and goes on)")
    print(f"{task.name} on {task.device}: unavailable. {reason}", file=sys.stderr)
    write_unavailable(task, reason)


def _machine(task: TrainingTask) -> AbstractContextManager[float]:
    """Held from before MLflow's process starts, which is work too, to after its end.

    Where the stage starts several processes, it holds the machine for all of them. Where torchrun was called by hand,
    the first process does: others on its machine may belong to the same training.
    """
    if is_started_by_stage():
        return nullcontext(0.0)
    return machine_to_itself(_title(task))


def _title(task: TrainingTask) -> str:
    return f"which trains {task.name} on the {task.device}"


def _follow(task: TrainingTask, rank: Rank) -> None:
    """Train as one of several processes that is not the first."""
    with quick_imports():
        from photofinish.runs.distributed import team_for
        from photofinish.runs.run import follow_training
        from photofinish.training.torch_device import NoAcceleratorError

    with suppress(NoAcceleratorError), team_for(task, rank) as (device, team):  # the first process records it
        follow_training(task, device, team)


def _announce(tracker: Tracker, task: TrainingTask) -> None:
    manifest = PackedSplit(task.data).manifest
    dataset = dataset_facts(task.experiment.dataset, task.data_sha256(), manifest.shape, manifest.class_names)
    facts = run_facts(task.name, task.device, task.experiment, task.host, package_versions(), git_commit(), dataset)
    tracker.start(facts, task.key(), manifest.counts["train"])


def _train_if_available(task: TrainingTask, rank: Rank | None, tracker: Tracker, lock_seconds: float) -> str | None:
    """Train, or tell why the device can't be used."""
    with quick_imports():
        from photofinish.runs.distributed import team_for
        from photofinish.runs.run import run_training
        from photofinish.training.torch_device import NoAcceleratorError

    try:
        with team_for(task, rank) as (device, team):
            run_training(task, device, team, tracker, lock_seconds)
    except NoAcceleratorError as error:
        return str(error)
    return None
