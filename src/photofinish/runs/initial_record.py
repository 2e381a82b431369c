"""Fields that a training and a measurement record alike."""

from __future__ import annotations

from typing import Any

import torch

from photofinish.results import records
from photofinish.results.pass_times import StepsTaken, made_here
from photofinish.runs.job_clock import JobClock
from photofinish.runs.setup import Setup
from photofinish.training.torch_device import device_name, effective_precision
from photofinish.training.trainer import Trainer


def training_record(
    setup: Setup, trainer: Trainer, initial_weights_sha256: str
) -> records.TrainingRecord:
    """Return the record of a training that still has its initial weights."""
    run, manifest, published = setup.run, setup.split.manifest, setup.run.published_weights()
    is_channels_last = trainer.state.memory_format is torch.channels_last
    return records.TrainingRecord(
        device=run.device,
        device_kind=setup.device.type,
        experiment=run.experiment,
        precision=effective_precision(setup.device, run.experiment.precision),
        memory_format="channels_last" if is_channels_last else "contiguous",
        parameter_count=sum(weight.numel() for weight in trainer.network.parameters()),
        task=manifest.task,
        image_shape=setup.sample.shape,
        dtype=setup.sample.dtype,
        target_shape=manifest.target_shape,
        class_names=manifest.class_names,
        mean=manifest.mean if setup.sample.is_normalised else (),
        std=manifest.std if setup.sample.is_normalised else (),
        data_sha256=run.data_sha256(),
        decode=manifest.decode,
        samples=manifest.counts,
        published_weights_sha256=published.sha256 if published else None,
        initial_weights_sha256=initial_weights_sha256,
        weights_sha256=initial_weights_sha256,
        custom_code=run.experiment.custom_code,
    )


def process_fields(setup: Setup, trainer: Trainer, clock: JobClock) -> dict[str, Any]:
    """Return the fields about this process: its machine, its start-up, how it launches steps."""
    steps = trainer.steps
    cpu = setup.run.host.cpu if setup.run.device == "cpu" else None
    return {
        **made_here(setup.run.host),
        "device_name": cpu.model if cpu else device_name(setup.device),
        "device_count": setup.team.device_count,
        "started_at_unix_seconds": clock.started_at_unix_seconds,
        "startup_seconds": clock.startup_seconds,
        "startup_cpu_seconds": clock.startup_cpu_seconds,
        "data_seconds": setup.data_seconds,
        "steps_taken": StepsTaken(kind=steps.kind, at_once=steps.at_once, why=steps.why),
    }
