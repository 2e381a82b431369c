"""The course of a training stage: is the device there, then train on it, with MLflow told from the first moment.

Torch takes seconds to import, so it comes last: MLflow's process starts up meanwhile. A machine without an accelerator
starts neither for `train-gpu`.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from photofinish.data.packed import PackedSplit
from photofinish.errors import UserError
from photofinish.files import state_folder
from photofinish.locks import machine_to_itself, sole_writer
from photofinish.machine.fingerprint import CpuHost, GpuHost, Machine, differences
from photofinish.machine.host import git_commit, package_versions
from photofinish.params.base import read_plan
from photofinish.params.experiment import ExperimentPlan
from photofinish.processes import Rank, is_started_by_stage, own_rank
from photofinish.results.records import DeviceLabel
from photofinish.runs.run import Run, hand_over, write_unavailable
from photofinish.tracking.client import Tracker
from photofinish.tracking.documents import dataset_facts, run_facts


def train(
    device: DeviceLabel,
    experiment_file: Path,
    host_file: Path,
    data: Path,
    weights: Path | None,
    out: Path,
    metrics: Path | None = None,
) -> None:
    """The stage: this process trains, or starts those that do, or is one of them."""
    host = read_plan(host_file, CpuHost) if device == "cpu" else read_plan(host_file, GpuHost)
    rank = own_rank()
    processes = rank.size if rank else host.processes
    experiment = read_plan(experiment_file, ExperimentPlan)
    run = Run(experiment_file.stem, device, experiment, host, data, out, weights, processes, metrics)
    if rank is None:
        _refuse_elsewhere(run)
        run.check()
        if processes == 1:
            _lead(run, None)
            return
        with _sole_writer(run) as lock_seconds:
            if _handed_over(run):
                return
        from photofinish.runs.distributed import launch

        with machine_to_itself(run.title) as waited_seconds:
            launch(host, lock_seconds + waited_seconds)
        return
    from photofinish.runs.distributed import failures_left_to_the_stage

    with failures_left_to_the_stage():
        run.check()
        if rank.number == 0:
            _lead(run, rank)
        else:
            _follow(run, rank)


def _refuse_elsewhere(run: Run) -> None:
    """A result is of the machine that it is planned for, or of none. By hand, a user may train where they like."""
    if "DVC_STAGE" in os.environ and (found := differences(run.host, Machine.here())):
        raise UserError(
            f"{run.name} on {run.device} is planned for another machine than this one ({'; '.join(found[:3])}): "
            f"`make spread` trains it there, as does `dvc repro` on that machine; `dvc repro --pull` restores what a "
            f"remote has of it. If it is this one that has changed, `dvc repro plan`"
        )


def _lead(run: Run, rank: Rank | None) -> None:
    """Train, alone or as the first of several processes: the one that writes, tracks and talks."""
    with _sole_writer(run) as lock_seconds:
        if rank is None and _handed_over(run):
            return
        if rank is None and isinstance(run.host, GpuHost) and run.host.missing:
            # MLflow has no run of it: nothing ran.
            _record_unavailable(run, f"no accelerator: {run.host.missing}")
            return
        # The machine is held from before MLflow's process starts, which is work too, to after its end. Where the stage
        # starts several processes, it holds it for all of them. Where torchrun was called by hand, the first process
        # does: others on its machine may belong to the same training.
        machine = nullcontext(0.0) if is_started_by_stage() else machine_to_itself(run.title)
        with machine as waited_seconds, Tracker() as tracker:
            manifest, data_sha256 = PackedSplit(run.data).manifest, run.data_sha256()
            dataset = dataset_facts(run.experiment.dataset, data_sha256, manifest.shape, manifest.class_names)
            packages, commit = package_versions(), git_commit()
            facts = run_facts(run.name, run.device, run.experiment, run.host, packages, commit, dataset)
            tracker.start(facts, run.key(), manifest.counts["train"])
            from photofinish.runs.distributed import team_for
            from photofinish.runs.train import lead_training
            from photofinish.training.teams import NoAcceleratorError

            try:
                with team_for(run, rank) as (device, team):
                    lead_training(run, device, team, tracker, lock_seconds + waited_seconds)
            except NoAcceleratorError as error:
                _record_unavailable(run, str(error))
                tracker.stop("KILLED", str(error))


def _sole_writer(run: Run) -> AbstractContextManager[float]:
    """One at a time, from before MLflow hears of the run: another one's run must not be taken for ours."""
    return sole_writer(state_folder() / "locks", str(run.out.resolve()), run.key())


def _handed_over(run: Run) -> bool:
    """Whether this very training has ended, with dvc killed before it had the result, or the experiment renamed since:
    then that is the result."""
    if (why := hand_over(run)) is None:
        return False
    print(f"{run.name} on {run.device}: {why}: its result is taken")
    with Tracker() as tracker:
        tracker.sync([run.name], run.out.parent.parent)
    return True


def _record_unavailable(run: Run, reason: str) -> None:
    if isinstance(run.host, GpuHost) and run.host.if_missing == "fail":
        raise UserError(f"{reason} (devices.gpu.if_missing in params.yaml is 'fail'; 'skip' records it and goes on)")
    print(f"{run.name} on {run.device}: unavailable. {reason}", file=sys.stderr)
    write_unavailable(run, reason)


def _follow(run: Run, rank: Rank) -> None:
    """Train as one of several processes that is not the first."""
    from photofinish.runs.distributed import team_for
    from photofinish.runs.train import follow_training
    from photofinish.training.teams import NoAcceleratorError

    with suppress(NoAcceleratorError), team_for(run, rank) as (device, team):  # the first process records it
        follow_training(run, device, team)
