"""Records of a result: the model, and its timings."""

from __future__ import annotations

from itertools import chain

import torch

from photofinish.files import sha256_of_bytes, sha256_of_file, write_bytes_atomically
from photofinish.models.registry import count_parameters
from photofinish.results import median_training_seconds, records
from photofinish.results.job_times import made_here
from photofinish.results.learned import weights_of
from photofinish.results.measurements import StepsTaken
from photofinish.runs.further import Epochs
from photofinish.runs.instruments import Instruments
from photofinish.runs.job_clock import JobClock
from photofinish.runs.setup import Setup
from photofinish.runs.training import Training
from photofinish.training.torch_device import device_name, effective_precision
from photofinish.training.trainer import Trainer


def write_model(training: Training) -> None:
    """Write the model. Every file here must have equal bytes for two trainings on one machine."""
    setup, trainer = training.setup, training.trainer
    folder = setup.run.out / records.MODEL
    weights = weights_of(trainer.result)
    write_bytes_atomically(folder / records.WEIGHTS, weights)
    epoch_weights = sorted(training.epoch_weights.glob("epoch-*.safetensors"))
    for path in epoch_weights:
        write_bytes_atomically(folder / records.EPOCHS / path.name, path.read_bytes())
    records.write_history(folder, trainer.progress.metrics)
    record = training_record(setup, trainer, training.initial_weights_sha256).model_copy(
        update={
            "weights_sha256": sha256_of_bytes(weights),
            "epoch_weights_sha256": tuple(map(sha256_of_file, epoch_weights)),
        }
    )
    records.write_record(folder / records.RECORD, record)


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
        parameter_count=count_parameters(trainer.network),
        task=manifest.task,
        image_shape=setup.sample.shape,
        dtype=setup.sample.dtype,
        stored_shape=manifest.shape,
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
        custom_code=run.custom_code,
    )


def timings_of(
    training: Training,
    clock: JobClock,
    instruments: Instruments,
    repeats: tuple[Epochs, ...],
    *,
    warm_up_seconds: float,
    total_seconds: float,
) -> records.TrainingTimes:
    """Return the record of the times of the training and its parts."""
    setup, trainer = training.setup, training.trainer
    run, image_count = setup.run, setup.training.image_count
    cpu = run.host.cpu if run.device == "cpu" else None
    epochs = tuple(trainer.progress.timings)
    return records.TrainingTimes(
        **made_here(run.host),
        device_name=cpu.model if cpu else device_name(setup.device),
        started_at_unix_seconds=clock.started_at_unix_seconds,
        startup_seconds=clock.startup_seconds,
        startup_cpu_seconds=clock.startup_cpu_seconds,
        data_seconds=setup.data_seconds,
        warm_up_seconds=warm_up_seconds,
        epochs=epochs,
        epochs_left=trainer.epochs_left_out(),
        replaces=run.replaces,
        total_seconds=total_seconds,
        tracking_seconds=clock.tracking_seconds,
        resumed_at_epochs=training.resumed_at_epochs,
        training_image_count=image_count,
        steps_per_epoch=trainer.steps_per_epoch,
        images_per_second=image_count / median_training_seconds(chain(epochs, *repeats)),
        device_count=setup.team.device_count,
        repeats=repeats,
        steps_taken=steps_taken(trainer),
        overhead=instruments.overhead,
        load=instruments.load,
        identity=run.identity(),
        **dict(instruments.readings),
    )


def steps_taken(trainer: Trainer) -> StepsTaken:
    """Return how the trainer launches its steps."""
    steps = trainer.steps
    return StepsTaken(kind=steps.kind, at_once=steps.at_once, why=steps.why)
