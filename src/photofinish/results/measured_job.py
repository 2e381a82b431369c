"""Times of a whole job by its measured parts, if all its steps are like them."""

from __future__ import annotations

import math

from photofinish.config.experiment import Experiment
from photofinish.results.job_times import JobTimes, TimedShare
from photofinish.results.measured import Measured
from photofinish.results.timed_parts import EpochByParts, epoch_by_parts


class MeasuredJob(Measured, JobTimes):
    """Times of a job that was measured. Only the timed parts were seen of it."""

    job_epochs: float
    """Number of epochs of the whole job."""
    job_epoch_steps: float
    """Number of steps of an epoch, a smaller last batch as a fraction."""
    job_seeds: int = 1

    @property
    def is_bound(self) -> bool:
        return self.script is not None and self.script.is_bound

    @property
    def epoch_by_parts(self) -> EpochByParts:
        return epoch_by_parts(self.parts, self.job_epoch_steps)

    @property
    def timed_steps(self) -> float:
        return self.script.steps if self.script else sum(part.steps for part in self.parts)

    @property
    def planned_epochs(self) -> float:
        return self.job_epochs

    @property
    def once_seconds(self) -> float:
        return self.startup_seconds + self.epoch_by_parts.once_seconds + self.end_seconds

    @property
    def _validation_seconds(self) -> float:
        """Time of validation for an epoch."""
        return self.job_epoch_steps * self.validation_step_seconds

    @property
    def whole_seconds(self) -> float:
        epoch_seconds = self.epoch_by_parts.seconds + self._validation_seconds
        return self.once_seconds + self.job_epochs * epoch_seconds

    @property
    def seeds_seconds(self) -> float:
        return (self.job_seeds - 1) * self.passes_seconds

    @property
    def epoch_seconds(self) -> list[float]:
        return list(self.epoch_by_parts.values)

    @property
    def mean_epoch_seconds(self) -> float:
        return self.epoch_by_parts.seconds  # the last part may be a small batch

    @property
    def pass_seconds(self) -> list[float]:
        return [seconds + self._validation_seconds for seconds in self.epoch_by_parts.values]

    @property
    def untimed_epochs(self) -> float:
        return max(0.0, self.job_epochs - self.timed_steps / self.job_epoch_steps)

    @property
    def timed(self) -> TimedShare:
        epochs, epoch_steps = self.job_epochs, self.job_epoch_steps
        if float(epochs).is_integer():
            epoch_steps = math.ceil(epoch_steps)
        return TimedShare(self.timed_steps, epochs * epoch_steps, "step")

    @property
    def validation_share(self) -> float:
        return self._validation_seconds / self.epoch_by_parts.seconds

    @property
    def assumed_share(self) -> float:
        return self.validation_share / (1 + self.validation_share)


def measured_job(
    measured: Measured, epochs: float, epoch_steps: float, seeds: int = 1
) -> MeasuredJob:
    """Return the times of the whole job, which has so many epochs of so many steps."""
    seconds = epoch_by_parts(measured.parts, epoch_steps).seconds
    a_step = measured.script.samples_per_step if measured.script else None
    samples = round(epoch_steps * a_step) if a_step else 0
    if measured.training:
        samples = measured.training.samples["train"]
    return MeasuredJob(
        **dict(measured),
        measured_load=measured.load,
        job_epochs=epochs,
        job_epoch_steps=epoch_steps,
        job_seeds=seeds,
        training_image_count=samples,
        steps_per_epoch=math.ceil(epoch_steps),
        images_per_second=samples / seconds if samples else None,
        total_seconds=measured.startup_seconds
        + sum(part.seconds for part in measured.parts)
        + measured.end_seconds,
    )


def experiment_job(measured: Measured, job: Experiment) -> MeasuredJob:
    """Return the times of an experiment's whole job."""
    assert measured.epoch_steps
    return measured_job(measured, job.epochs, measured.epoch_steps, job.seeds)


def script_job(measured: Measured, epoch_share: float | None = None) -> MeasuredJob:
    """Return the times of a script's whole job, or of what it ran if its length is not known.

    `epoch_share` is what another run saw of an epoch's length, if this one did not.
    """
    assert measured.script
    steps, length = float(measured.script.steps), next(iter(measured.script.lengths), None)
    epoch_steps = measured.epoch_steps
    if epoch_steps:
        epoch_steps *= measured.script.epoch_share or epoch_share or 1.0
    if length and length.unit == "epochs" and epoch_steps:
        return measured_job(measured, length.value, epoch_steps)
    if length and length.unit == "steps":
        steps = length.value
    return measured_job(measured, *in_epochs(steps, epoch_steps))


def in_epochs(steps: float, epoch_steps: float | None) -> tuple[float, float]:
    """Return the numbers of epochs and of an epoch's steps, or one epoch if that is not known."""
    return (steps / epoch_steps, epoch_steps) if epoch_steps else (1.0, steps)
