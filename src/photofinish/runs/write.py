"""Write what a training learned, and put together how long it took."""

from __future__ import annotations

import platform
from itertools import chain
from typing import Any

import torch

from photofinish.files import sha256_of_bytes, write_bytes_atomically
from photofinish.machine.energy import Energy, unavailable
from photofinish.machine.host import git_commit, package_versions
from photofinish.models.registry import count_parameters
from photofinish.results import median_training_seconds, records
from photofinish.results.learned import rebuilt, weights_of
from photofinish.results.measurements import StepsTaken
from photofinish.runs.resume import Job
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup
from photofinish.runs.views import write_views
from photofinish.training.checkpoint import EpochWeights
from photofinish.training.torch_device import device_name, effective_precision
from photofinish.training.trainer import Trainer


def write_model(
    run: Run,
    setup: Setup,
    trainer: Trainer,
    epoch_weights: EpochWeights,
    initial_weights_sha256: str,
    first_step: records.FirstStep,
) -> None:
    """Write what was learned. Nothing here may differ between two trainings on one machine."""
    folder, manifest = run.out / records.MODEL, setup.split.manifest
    weights, published = weights_of(trainer.network), run.published_weights()
    write_bytes_atomically(folder / records.WEIGHTS, weights)
    epoch_weights.copy_to(folder / records.EPOCHS)
    records.write_history(folder, trainer.progress.metrics)
    is_channels_last = trainer.state.memory_format is torch.channels_last
    record = records.Training(
        device=run.device,
        device_kind=setup.device.type,
        experiment=run.experiment,
        precision=effective_precision(setup.device, run.experiment.precision),
        memory_format="channels_last" if is_channels_last else "contiguous",
        parameter_count=count_parameters(trainer.network),
        task=manifest.task,
        image_shape=manifest.shape,
        dtype=manifest.dtype,
        class_names=manifest.class_names,
        mean=manifest.mean,
        std=manifest.std,
        data_sha256=run.data_sha256(),
        published_weights_sha256=published.sha256 if published else None,
        initial_weights_sha256=initial_weights_sha256,
        weights_sha256=sha256_of_bytes(weights),
        epoch_weights_sha256=tuple(epoch_weights.sha256),
        custom_code=run.custom_code,
    )
    records.write_record(folder / records.RECORD, record)
    records.write_record(folder / records.FIRST_STEP, first_step)


def write_training_views(run: Run, setup: Setup, trainer: Trainer) -> None:
    manifest, state = setup.split.manifest, trainer.network.state_dict()
    classes = len(manifest.class_names)
    network = rebuilt(run.experiment, manifest.shape, classes, state, manifest.dtype)
    write_views(run.out / records.MODEL, network, setup.whole_batches(), manifest)


def timings_record(
    run: Run, setup: Setup, trainer: Trainer, job: Job, energy: tuple[Energy, ...], **measured: Any
) -> records.Timings:
    """Put together how long the training took. `measured` are further fields of the record."""
    if job.resumed_at_epochs:
        reason = "the training was interrupted, and only its last part was measured"
        energy = unavailable(energy, reason)
    device, steps = setup.device, trainer.steps
    cpu = run.host.cpu if device.type == "cpu" else None
    epochs, image_count = trainer.progress.timings, setup.training.image_count
    median_epoch_seconds = median_training_seconds(chain(epochs, *job.repeats))
    return records.Timings(
        host=run.host,
        host_name=platform.node(),
        device_name=cpu.model if cpu else device_name(device),
        git_commit=git_commit(),
        packages=package_versions(),
        data_seconds=setup.data_seconds,
        epochs=tuple(epochs),
        tracking_seconds=job.tracker.waited_seconds if job.tracker else 0.0,
        resumed_at_epochs=job.resumed_at_epochs,
        training_image_count=image_count,
        images_per_second=image_count / median_epoch_seconds,
        device_count=setup.team.device_count,
        repeats=tuple(job.repeats),
        steps_taken=StepsTaken(kind=steps.kind, at_once=steps.at_once, why=steps.why),
        energy=energy,
        identity=run.identity(),
        **measured,
    )
