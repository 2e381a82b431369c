"""The training stage: check the device, then start a process for each device, or act as one."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from photofinish.config.base import read_plan
from photofinish.config.devices import BudgetPlan
from photofinish.config.experiment import ExperimentPlan
from photofinish.data.packed import PackedSplit
from photofinish.files import is_copy, state_folder
from photofinish.machine.fingerprint import GpuTarget, check_machine, read_host, report_missing
from photofinish.results import records
from photofinish.results.trained import DeviceLabel
from photofinish.runs.run import REMEDY, Costs, Run
from photofinish.stage.locks import exclusive, exclusive_machine
from photofinish.stage.process import Rank, own_rank
from photofinish.tracking.client import NoTracker, Tracker

_RESUMING = ". Run `dvc repro` again: it resumes from the last checkpoint"


def train(
    device: DeviceLabel,
    experiment_file: Path,
    host_file: Path,
    data: Path,
    weights: Path | None,
    out: Path,
    budget_file: Path | None = None,
) -> None:
    host = read_host(device, host_file)
    experiment = read_plan(experiment_file, ExperimentPlan)
    name, rank, costs = experiment_file.stem, own_rank(), Costs()
    if budget_file:
        costs = Costs.of(read_plan(budget_file, BudgetPlan), device)
    run = Run(name, device, experiment, host, data, out, weights, costs)
    if rank is None:
        check_machine(run.title, host, REMEDY)
    run.check()
    if rank is None and host.processes > 1:
        # Imported here, because torch takes seconds, while MLflow's process starts.
        from photofinish.runs.distributed import launch

        launch(host, f"training {run.title}", _RESUMING)
    elif rank is None or rank.is_main:
        _train_with_mlflow(run, rank)
    else:
        from photofinish.runs.train import train_rank

        train_rank(run, rank, NoTracker())


def _train_with_mlflow(run: Run, rank: Rank | None) -> None:
    """Train as the only process or as rank 0."""
    with exclusive(state_folder() / "locks", str(run.out.resolve()), run.key()) as lock_seconds:
        if rank is None and isinstance(run.host, GpuTarget) and run.host.missing:
            _record_unavailable(run, f"no accelerator: {run.host.missing}")
            return
        # With several processes, the stage that starts them holds the lock for all.
        machine = nullcontext(0.0) if rank else exclusive_machine(f"training {run.title}")
        run = _apart_from_another(run)
        # MLflow has what is finished.
        with (
            machine as waited_seconds,
            nullcontext() if run.is_finished() else Tracker() as tracker,
        ):
            if tracker:
                data = run.data_sha256(), PackedSplit(run.data).manifest.counts
                tracker.start(run.name, run.device, run.experiment, run.key(), *data)
            from photofinish.runs.train import train_rank

            waited_seconds += lock_seconds
            why_unavailable = train_rank(run, rank, tracker or NoTracker(), waited_seconds)
            if why_unavailable:
                _record_unavailable(run, why_unavailable)
                if tracker:
                    tracker.stop("KILLED", why_unavailable)


def _apart_from_another(run: Run) -> Run:
    """Give the run checkpoints of its own if it is in a copy and another experiment finished it."""
    name, file = os.environ.get("DVC_EXP_NAME", ""), run.finished_by()
    finished_by = file.read_text(encoding="utf-8") if file.is_file() else ""
    if not is_copy() or finished_by in ("", name):
        return run
    apart = replace(run, apart_for=name)
    if not apart.checkpoint_folder().is_dir():
        print(f"{run.title}  trains again, so that its times are no copies of {finished_by}'s")
    return apart


def _record_unavailable(run: Run, reason: str) -> None:
    report_missing(run.title, run.host, reason)
    record = records.Unavailable(device=run.device, experiment=run.experiment, reason=reason)
    records.write_record(run.out / records.MODEL / records.RECORD, record)
    records.write_record(run.out / records.TIMINGS_FOLDER / records.TIMINGS, records.Untimed())
