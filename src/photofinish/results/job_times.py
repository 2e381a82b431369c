"""Times that every job has, whether photofinish or a script trains it."""

from __future__ import annotations

from typing import Annotated

from photofinish.machine.fingerprint import GpuTarget
from photofinish.machine.load import LoadWindow, load_warnings
from photofinish.results.figures import Figure
from photofinish.results.measurements import (
    MOST_UNEXPLAINED_SHARE,
    LoopSteps,
    StepMeasurements,
    StepParts,
)
from photofinish.results.pass_times import PassTimes
from photofinish.results.records import TrainingTimes
from photofinish.results.timed_parts import EpochByParts, epoch_by_parts

_STEP = Figure(
    "step (median)", csv="step_seconds", dvc=True, mlflow="median_step_seconds", needs_steps=True
)


class JobTimes(PassTimes, StepMeasurements):
    """Times of a job and of its steps, which may come from two processes."""

    sampled_steps: int | None = None
    """Number of steps that `photofinish ask` took, if it extrapolates the epochs from them."""
    loop_steps: LoopSteps | None = None
    """Steps of a script on the CPU."""
    measured_load: tuple[LoadWindow, ...] = ()
    """Load while `measure` ran. In records without it, the last window of `load` covers that."""

    @property
    def training_load(self) -> tuple[LoadWindow, ...]:
        """Load during the training."""
        return self.load if self.measured_load else self.load[:-1]

    @property
    def step_load(self) -> tuple[LoadWindow, ...]:
        """Load while steps were measured."""
        return self.measured_load or self.load[-1:]

    @property
    def step_warnings(self) -> list[str]:
        """Reasons why the times of steps are unreliable. Empty on a quiet machine."""
        before = [] if self.measured_load else load_warnings(self.load)
        return before or load_warnings(self.step_load)

    @property
    def median_step_seconds(self) -> Annotated[float, _STEP]:
        """Median duration of a step whose batch is on the device."""
        return self.steady_state.median_seconds

    @property
    def epoch_by_parts(self) -> EpochByParts | None:
        """Time of an epoch by the parts that `measure` timed, or None without parts."""
        return epoch_by_parts(self.parts, self.epoch_steps) if self.epoch_steps else None

    @property
    def measured_epoch_seconds(self) -> float:
        """Time of an epoch by the process that measured steps, if it timed parts of one."""
        by_parts = self.epoch_by_parts
        return by_parts.seconds if by_parts else self.median_epoch_seconds

    @property
    def step_parts(self) -> StepParts | None:
        """Parts of a step, or None if a CPU step's parts do not add up to the whole.

        The whole is a step on one batch or, on a quiet machine, an epoch's time per step without
        loading.
        """
        if self.attribution is None:
            return None
        parts = self.attribution.parts
        data_seconds = (
            parts.median_seconds["waiting_seconds"] + parts.median_seconds["copying_seconds"]
        )
        apart_seconds = sum(parts.median_seconds.values()) - data_seconds
        wholes = [self.attribution.same_batch.median_seconds]
        if self.steps_per_epoch and not self.step_warnings:
            wholes.append(self.measured_epoch_seconds / self.steps_per_epoch - data_seconds)
        most = MOST_UNEXPLAINED_SHARE
        fits = any(abs(apart_seconds - whole) <= most * whole for whole in wholes)
        return parts if fits or isinstance(self.host, GpuTarget) else None


class Timings(TrainingTimes, JobTimes):
    """Times of a training, with its steps as `measure` measured them."""
