"""Process that samples an experiment's training on one device, with the code of a stage.

It writes the measurements to a folder of the process that asks, and nothing else.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import psutil
import torch

from photofinish.asking.epochs import EpochSample, estimated_epoch_seconds, sample_epochs
from photofinish.config.base import read_plan
from photofinish.config.experiment import ExperimentPlan
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.profiling.attribution import profile
from photofinish.profiling.loader_parts import measure_loader
from photofinish.results import passed_seconds, records
from photofinish.results.measurements import Overhead
from photofinish.runs.distributed import failures_left_to_the_stage, launch, team_for
from photofinish.runs.instruments import Instruments
from photofinish.runs.outcome import Durations, timings_of, training_record
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup
from photofinish.runs.training import JobClock, Training
from photofinish.stage.locks import exclusive_machine
from photofinish.stage.process import end_on_sigterm, end_with, run_stage
from photofinish.stage.rank import own_rank, seconds_since_stage_start
from photofinish.tracking.client import NoTracker
from photofinish.training.failures import failures_explained
from photofinish.training.torch_device import configure_torch
from photofinish.training.world import World


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=records.DEVICE_LABELS, required=True)
    for name in ("experiment", "host", "data", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--seconds", type=float, required=True, help="most seconds of training")
    args = parser.parse_args()
    end_on_sigterm()
    end_with([psutil.Process(os.getppid())])
    is_cpu = args.device == "cpu"
    host = read_plan(args.host, CpuTarget) if is_cpu else read_plan(args.host, GpuTarget)
    experiment = read_plan(args.experiment, ExperimentPlan)
    run = Run(
        args.experiment.stem, args.device, experiment, host, args.data, args.out, args.weights
    )
    run.check()
    rank = own_rank()
    if rank is None and host.processes > 1:
        with exclusive_machine(f"which samples {run.title}") as waited_seconds:
            launch(host, waited_seconds)
        return
    with failures_left_to_the_stage(), team_for(run, rank) as (device, team):
        if rank:
            sample_training(run, device, team, args.seconds, 0.0)
            return
        with exclusive_machine(f"which samples {run.title}") as waited_seconds:
            sample_training(run, device, team, args.seconds, waited_seconds)


def sample_training(
    run: Run, device: torch.device, team: World, most_seconds: float, waited_seconds: float
) -> None:
    """Sample the training, and write its record and times."""
    experiment = run.experiment
    with failures_explained(run.name, experiment, team, runs_custom_code=bool(run.custom_code)):
        configure_torch(
            device,
            experiment.precision,
            run.host.threads or 1,
            deterministic=experiment.deterministic,
        )
        timings = _measured(run, device, team, most_seconds, waited_seconds)
    if team.is_main:
        records.write_record(run.out / records.TIMINGS, timings)


def _measured(
    run: Run, device: torch.device, team: World, most_seconds: float, waited_seconds: float
) -> records.Timings:
    started_at_unix_seconds = time.time() - seconds_since_stage_start()
    clock = JobClock(NoTracker(), waited_seconds)
    training = Training(Setup(run, device, team), clock=clock)
    trainer, instruments = training.trainer, Instruments(training)
    with clock.excluded():
        warm_up_seconds = trainer.prepare()
        epoch_seconds = estimated_epoch_seconds(trainer)
    startup_seconds = seconds_since_stage_start() - clock.excluded_seconds
    startup_cpu_seconds = time.thread_time() - clock.excluded_cpu_seconds
    with instruments:
        sample = sample_epochs(trainer, epoch_seconds, most_seconds, instruments.epoch_ended)
        if sample.parts:
            instruments.epoch_ended(1)
    if sample.parts:
        instruments.overhead = Overhead(passes_seconds=0.0, seconds=0.0)
    with instruments.measuring():
        profiled = profile(trainer, training.setup.resident_batches)
        loader = measure_loader(trainer)
    if team.is_main:
        records.write_record(run.out / records.RECORD, training_record(training))
    passes_seconds = passed_seconds(sample.epochs) + instruments.overhead.seconds
    durations = Durations(
        started_at_unix_seconds=started_at_unix_seconds,
        startup_seconds=startup_seconds,
        startup_cpu_seconds=startup_cpu_seconds,
        warm_up_seconds=warm_up_seconds,
        total_seconds=startup_seconds + sample.once_seconds + passes_seconds,
        tracking_seconds=0.0,
    )
    parts = tuple((part,) for part in sample.parts)
    timings = timings_of(training, durations, instruments, profiled, loader, parts)
    return timings.model_copy(update=_of_sample(run, sample))


def _of_sample(run: Run, sample: EpochSample) -> dict[str, object]:
    seeds = (sample.epochs,) * (run.experiment.seeds - 1)
    return {"sampled_steps": sample.steps, "seeds": seeds}


if __name__ == "__main__":
    run_stage(main)
