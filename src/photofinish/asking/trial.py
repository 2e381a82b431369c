"""Process that samples an experiment's training on one device, with the code of a stage.

It writes the measurements to a folder of the process that asks, and nothing else.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import psutil
import torch

from photofinish.asking.epochs import estimated_epoch_seconds, sample_epochs
from photofinish.config.base import read_plan
from photofinish.config.experiment import ExperimentPlan
from photofinish.machine.fingerprint import read_host
from photofinish.results import passed_seconds, records
from photofinish.results.measurements import Overhead
from photofinish.runs.distributed import failures_left_to_the_stage, launch, team_for
from photofinish.runs.instruments import Instruments
from photofinish.runs.outcome import timings_of, training_record
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup, torch_configured
from photofinish.runs.training import JobClock, Training
from photofinish.stage.locks import exclusive_machine
from photofinish.stage.process import end_on_sigterm, end_with, run_stage
from photofinish.stage.rank import own_rank
from photofinish.tracking.client import NoTracker
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
    host = read_host(args.device, args.host)
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
    with torch_configured(run, device, team):
        timings = _measured(run, device, team, most_seconds, waited_seconds)
    if team.is_main:
        records.write_record(run.out / records.TIMINGS, timings)


def _measured(
    run: Run, device: torch.device, team: World, most_seconds: float, waited_seconds: float
) -> records.Timings:
    clock = JobClock(NoTracker(), waited_seconds)
    training = Training(Setup(run, device, team), clock=clock)
    trainer, instruments = training.trainer, Instruments(training)
    with clock.excluded():
        warm_up_seconds = trainer.prepare()
        epoch_seconds = estimated_epoch_seconds(trainer)
    clock.startup_ended()
    with instruments:
        sample = sample_epochs(trainer, epoch_seconds, most_seconds, instruments.epoch_ended)
        if sample.parts:
            instruments.epoch_ended(1)
    if sample.parts:
        instruments.overhead = Overhead(passes_seconds=0.0, seconds=0.0)
    instruments.measure()
    if team.is_main:
        records.write_record(run.out / records.RECORD, training_record(training))
    passes_seconds = passed_seconds(sample.epochs) + instruments.overhead.seconds
    timings = timings_of(
        training,
        clock,
        instruments,
        tuple((part,) for part in sample.parts),
        warm_up_seconds=warm_up_seconds,
        total_seconds=clock.startup_seconds + sample.once_seconds + passes_seconds,
    )
    seeds = (sample.epochs,) * (run.experiment.seeds - 1)
    return timings.model_copy(update={"sampled_steps": sample.steps, "seeds": seeds})


if __name__ == "__main__":
    run_stage(main)
