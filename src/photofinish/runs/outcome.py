"""Records of a result: the model, and its timings."""

from __future__ import annotations

import platform
from itertools import chain
from typing import NamedTuple

import torch

from photofinish.files import sha256_of_bytes, sha256_of_file, write_bytes_atomically
from photofinish.machine.host import git_commit, package_versions
from photofinish.models.registry import count_parameters
from photofinish.profiling.attribution import Profile
from photofinish.results import median_training_seconds, records
from photofinish.results.learned import weights_of
from photofinish.results.measurements import LoaderTimes, StepsTaken
from photofinish.runs.further import Epochs
from photofinish.runs.instruments import Instruments
from photofinish.runs.training import Training
from photofinish.training.torch_device import device_name, effective_precision


def write_model(training: Training, first_step: records.FirstStep) -> None:
    """Write the model. Every file here must have equal bytes for two trainings on one machine."""
    trainer, folder = training.trainer, training.setup.run.out / records.MODEL
    weights = weights_of(trainer.result)
    write_bytes_atomically(folder / records.WEIGHTS, weights)
    epoch_weights = sorted(training.epoch_weights.glob("epoch-*.safetensors"))
    for path in epoch_weights:
        write_bytes_atomically(folder / records.EPOCHS / path.name, path.read_bytes())
    records.write_history(folder, trainer.progress.metrics)
    record = training_record(training).model_copy(
        update={
            "weights_sha256": sha256_of_bytes(weights),
            "epoch_weights_sha256": tuple(map(sha256_of_file, epoch_weights)),
        }
    )
    records.write_record(folder / records.RECORD, record)
    records.write_record(folder / records.FIRST_STEP, first_step)


def training_record(training: Training) -> records.TrainingRecord:
    """Return the record of a training that still has its initial weights."""
    setup, trainer = training.setup, training.trainer
    run, manifest, published = setup.run, setup.split.manifest, setup.run.published_weights()
    is_channels_last = trainer.state.memory_format is torch.channels_last
    return records.TrainingRecord(
        device=run.device,
        device_kind=setup.device.type,
        experiment=run.experiment,
        precision=effective_precision(setup.device, run.experiment.precision),
        memory_format="channels_last" if is_channels_last else "contiguous",
        parameter_count=count_parameters(trainer.network),
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
        initial_weights_sha256=training.initial_weights_sha256,
        weights_sha256=training.initial_weights_sha256,
        custom_code=run.custom_code,
    )


class Durations(NamedTuple):
    """Durations of the job's parts."""

    started_at_unix_seconds: float
    startup_seconds: float
    startup_cpu_seconds: float
    warm_up_seconds: float
    total_seconds: float
    tracking_seconds: float


def timings_of(
    training: Training,
    durations: Durations,
    instruments: Instruments,
    profile: Profile,
    loader: LoaderTimes | None,
    repeats: tuple[Epochs, ...],
) -> records.Timings:
    """Return the record of the times of the training and its parts."""
    setup, trainer = training.setup, training.trainer
    run, steps, image_count = setup.run, trainer.steps, setup.training.image_count
    cpu = run.host.cpu if run.device == "cpu" else None
    epochs = tuple(trainer.progress.timings)
    return records.Timings(
        host=run.host,
        host_name=platform.node(),
        device_name=cpu.model if cpu else device_name(setup.device),
        git_commit=git_commit(),
        packages=package_versions(),
        started_at_unix_seconds=durations.started_at_unix_seconds,
        startup_seconds=durations.startup_seconds,
        startup_cpu_seconds=durations.startup_cpu_seconds,
        data_seconds=setup.data_seconds,
        warm_up_seconds=durations.warm_up_seconds,
        epochs=epochs,
        epochs_left=trainer.epochs_left_out(),
        replaces=run.replaces,
        total_seconds=durations.total_seconds,
        tracking_seconds=durations.tracking_seconds,
        resumed_at_epochs=training.resumed_at_epochs,
        training_image_count=image_count,
        steps_per_epoch=trainer.steps_per_epoch,
        images_per_second=image_count / median_training_seconds(chain(epochs, *repeats)),
        device_count=setup.team.device_count,
        repeats=repeats,
        steady_state=profile.steady_state,
        tried_threads=profile.tried_threads,
        steps_taken=StepsTaken(kind=steps.kind, at_once=steps.at_once, why=steps.why),
        overhead=instruments.overhead,
        load=instruments.load,
        attribution=profile.attribution,
        loader=loader,
        not_attributed=profile.not_attributed,
        operations=profile.operations,
        not_counted=profile.not_counted,
        identity=run.identity(),
        **dict(instruments.readings),
    )
