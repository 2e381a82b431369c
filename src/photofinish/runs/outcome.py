"""Records of a result, and the instruments that watch a training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from photofinish.files import sha256_of_bytes, write_bytes_atomically
from photofinish.results import median_training_seconds, passed_seconds, records
from photofinish.results.learned import weights_of
from photofinish.results.trained import Overhead, Readings, StepsTaken
from photofinish.runs.initial_record import JobClock, process_fields, training_record
from photofinish.runs.training import Epochs, Training
from photofinish.training.torch_device import peak_host_memory_bytes


class Instruments:
    """Instruments of a run in one process, read between epochs only.

    `monitor` watches the load of the first training, then of its repeats.
    """

    def __init__(self, training: Training) -> None:
        self.monitor = training.setup.load_monitor()
        self._training = training

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the first training, and read the instruments at its end."""
        training = self._training
        team = training.team
        epochs_before = training.trainer.progress.epochs_done
        self.monitor.begin()
        started_seconds = training.spent_seconds()
        yield
        loop_seconds = training.spent_seconds() - started_seconds
        passes = training.trainer.progress.timings[epochs_before:]
        self.monitor.training_ended()
        self.overhead = Overhead(
            seconds=max(0.0, loop_seconds - passed_seconds(passes)),
            checkpoint_seconds=training.checkpoint_seconds,
        )
        host_bytes = team.all_gather_object(peak_host_memory_bytes())
        self.readings = Readings(
            peak_memory_bytes=team.peak_memory_bytes(),
            peak_host_memory_bytes=max(filter(None, host_bytes), default=None),
        )


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
    instruments: Instruments,
    repeats: tuple[Epochs, ...],
    *,
    warm_up_seconds: float,
    total_seconds: float,
) -> records.TrainingTimes:
    setup, trainer, steps = training.setup, training.trainer, training.trainer.steps
    run, image_count = setup.run, setup.training.image_count
    epochs = tuple(trainer.progress.timings)
    return records.TrainingTimes(
        **process_fields(setup, clock),
        data_seconds=setup.data_seconds,
        warm_up_seconds=warm_up_seconds,
        steps_taken=StepsTaken(kind=steps.kind, at_once=steps.at_once, why=steps.why),
        epochs=epochs,
        epochs_left=trainer.epochs_left_out(),
        total_seconds=total_seconds,
        tracking_seconds=clock.tracker.waited_seconds,
        resumed_at_epochs=training.resumed_at_epochs,
        training_image_count=image_count,
        steps_per_epoch=trainer.steps_per_epoch,
        images_per_second=image_count / median_training_seconds(chain(epochs, *repeats)),
        repeats=repeats,
        overhead=instruments.overhead,
        load=tuple(instruments.monitor.windows),
        identity=run.identity(),
        **dict(instruments.readings),
    )
