"""The share of a training of one process that isn't the first of several: what it learns, the first one writes."""

from __future__ import annotations

import torch

from photofinish.batches.loader import worker_faults_explained
from photofinish.hardware.devices import apply_policy
from photofinish.measuring.further_measurements import Repeats, measure_further, repeat, repeats_in
from photofinish.training.failures import failures_explained
from photofinish.training.job import TrainingJob
from photofinish.training.task import TrainingTask
from photofinish.training.teams import Team
from photofinish.training_stage.energy import TeamEnergy


def follow_training(task: TrainingTask, device: torch.device, team: Team) -> None:
    with failures_explained(task.name, task.experiment, team), worker_faults_explained():
        apply_policy(device, task.experiment.precision, task.host.threads or 1)
        job, repeats = TrainingJob(task, device, team), Repeats()
        trainer = job.new_trainer()
        if state := team.from_leader(None):
            trainer.load_state_dict(state["trainer"])
            repeats = repeats_in(state)
        trainer.warm_up()
        team.forget_peak_memory()
        energy = TeamEnergy(team)
        energy.begin()
        trainer.train(lambda _metrics, _timing: energy.epoch_ended())
        energy.training_ended()
        team.peak_memory_bytes()
        repeat(job, trainer, repeats)
        measure_further(job, trainer)
