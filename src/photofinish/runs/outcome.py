"""Records of a result."""

from __future__ import annotations

from itertools import chain
from typing import Any

from photofinish.files import sha256_of_bytes, write_bytes_atomically
from photofinish.results import median_training_seconds, passed_seconds, records
from photofinish.results.learned import weights_of
from photofinish.results.pass_times import Overhead, StepsTaken
from photofinish.runs.initial_record import JobClock, process_fields, training_record
from photofinish.runs.training import Epochs, Training
from photofinish.training.torch_device import peak_host_memory_bytes


def readings_of(training: Training, epochs_before: int, loop_seconds: float) -> dict[str, Any]:
    """Return fields of the first training's times, at the end of its loop in this process."""
    passes = training.trainer.progress.timings[epochs_before:]
    host_bytes = training.team.all_gather_object(peak_host_memory_bytes())
    return {
        "overhead": Overhead(
            seconds=max(0.0, loop_seconds - passed_seconds(passes)),
            checkpoint_seconds=training.checkpoint_seconds,
        ),
        "peak_memory_bytes": training.team.peak_memory_bytes(),
        "peak_host_memory_bytes": max(filter(None, host_bytes), default=None),
    }


def write_model(training: Training) -> None:
    """Write the model. Every file here must have equal bytes for two trainings on one machine."""
    setup, trainer = training.setup, training.trainer
    folder = setup.run.out / records.MODEL
    weights = weights_of(trainer.result)
    write_bytes_atomically(folder / records.WEIGHTS, weights)
    if setup.run.experiment.save_weights == "every_epoch":
        for epoch in range(1, trainer.progress.epochs_done + 1):  # a killed process may leave more
            path = training.epoch_weights(epoch)
            write_bytes_atomically(folder / records.EPOCHS / path.name, path.read_bytes())
    records.write_history(folder, trainer.progress.metrics)
    record = training_record(setup, trainer, training.initial_weights_sha256).model_copy(
        update={"weights_sha256": sha256_of_bytes(weights)}
    )
    records.write_record(folder / records.RECORD, record)


def timings_of(
    training: Training,
    clock: JobClock,
    repeats: tuple[Epochs, ...],
    **measured: Any,
) -> records.TrainingTimes:
    setup, trainer, steps = training.setup, training.trainer, training.trainer.steps
    run, image_count = setup.run, setup.training.image_count
    epochs = tuple(trainer.progress.timings)
    return records.TrainingTimes(
        **process_fields(setup, clock),
        data_seconds=setup.data_seconds,
        steps_taken=StepsTaken(kind=steps.kind, at_once=steps.at_once, why=steps.why),
        epochs=epochs,
        epochs_left=trainer.epochs_left_out(),
        tracking_seconds=clock.tracker.waited_seconds,
        resumed_at_epochs=training.resumed_at_epochs,
        training_image_count=image_count,
        steps_per_epoch=trainer.steps_per_epoch,
        images_per_second=image_count / median_training_seconds(chain(epochs, *repeats)),
        repeats=repeats,
        identity=run.identity(),
        **measured,
    )
