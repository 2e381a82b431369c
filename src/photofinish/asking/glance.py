"""Process that samples several trainings for a moment each, for a forecast of a whole run."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil

from photofinish.asking.epochs import estimated_epoch_seconds, sample_epochs
from photofinish.asking.experiments import PLAN, SPLITS, WEIGHTS, planned_host
from photofinish.config.base import read_plan
from photofinish.config.experiment import ExperimentPlan
from photofinish.files import write_json_atomically
from photofinish.results import passed_seconds
from photofinish.results.records import DeviceLabel
from photofinish.runs.distributed import team_for
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup, torch_configured
from photofinish.stage.locks import exclusive_machine
from photofinish.stage.process import end_on_sigterm, end_with
from photofinish.stage.rank import seconds_since_process_start

_SECONDS = 0.3


def main(device: DeviceLabel, out: Path, names: list[str]) -> None:
    """Write the seconds of the start-up and of an epoch of each training."""
    end_on_sigterm()
    end_with([psutil.Process(os.getppid())])
    imported_seconds = seconds_since_process_start()
    times = {}
    with exclusive_machine(f"which samples {', '.join(names)} for a moment"):
        for name in names:
            startup_seconds, epoch_seconds = _times(_run(name, device, out))
            times[name] = imported_seconds + startup_seconds, epoch_seconds
    write_json_atomically(out, times)


def _run(name: str, device: DeviceLabel, out: Path) -> Run:
    host = planned_host(device)
    experiment = read_plan(PLAN / f"experiments/{name}.json", ExperimentPlan)
    return Run(name, device, experiment, host, SPLITS / experiment.dataset, out, WEIGHTS / name)


def _times(run: Run) -> tuple[float, float]:
    began_seconds = time.perf_counter()
    with team_for(run, None) as (device, team), torch_configured(run, device, team):
        trainer = Setup(run, device, team).new_trainer()
        startup_seconds = time.perf_counter() - began_seconds
        if run.device == "gpu":  # which takes its first steps slowly
            trainer.prepare()
        sample = sample_epochs(trainer, estimated_epoch_seconds(trainer), _SECONDS)
    return startup_seconds, passed_seconds(sample.epochs) / len(sample.epochs)


if __name__ == "__main__":
    _device, _out, *_names = sys.argv[1:]
    main("cpu" if _device == "cpu" else "gpu", Path(_out), _names)
