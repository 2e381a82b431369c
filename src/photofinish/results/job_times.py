"""Times that every job has, whether photofinish or a script trains it."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

from photofinish.machine.load import LoadWindow, load_warnings
from photofinish.results import passed_seconds
from photofinish.results.measurements import LoopSteps, StepMeasurements
from photofinish.results.pass_times import ProcessTimes
from photofinish.results.records import TrainingTimes
from photofinish.results.timed_parts import EpochByParts, epoch_by_parts


class TimedShare(NamedTuple):
    """Share of a job that was timed."""

    done: float
    of: float
    unit: Literal["epoch", "step"]


class JobTimes(ProcessTimes, StepMeasurements, ABC):
    """Times of a whole job and of its steps, by the epochs or the parts that were timed.

    A pass is a timed epoch with its validation, or an epoch whose steps are all like a timed part.
    """

    loop_steps: LoopSteps | None = None
    """Steps of a script on the CPU."""
    measured_load: tuple[LoadWindow, ...]
    """Load while `measure` ran."""

    @property
    def is_bound(self) -> bool:
        """True if steps take longer than the time in which none ended."""
        return False

    @property
    @abstractmethod
    def planned_epochs(self) -> float:
        """Number of epochs of the whole job."""

    @property
    @abstractmethod
    def once_seconds(self) -> float:
        """Time outside the passes: start-up, writing results."""

    @property
    @abstractmethod
    def whole_seconds(self) -> float:
        """Duration of the whole job, extrapolated if not all of it was timed."""

    @property
    @abstractmethod
    def seeds_seconds(self) -> float:
        """Time of all further seeds' passes."""

    @property
    @abstractmethod
    def epoch_seconds(self) -> list[float]:
        """Duration of each training pass, without validation."""

    @property
    @abstractmethod
    def pass_seconds(self) -> list[float]:
        """Duration of each pass."""

    @property
    @abstractmethod
    def untimed_epochs(self) -> float:
        """Number of planned epochs that were not timed."""

    @property
    @abstractmethod
    def timed(self) -> TimedShare:
        """Epochs or steps that were timed, of all."""

    @property
    @abstractmethod
    def validation_share(self) -> float:
        """Time of validation as a share of the training passes' time."""

    @property
    def assumed_share(self) -> float:
        """Share of the passes' time that was timed once, and is assumed to be equal in all."""
        return 0.0

    @property
    def interruptions(self) -> int:
        """Number of times that the training was resumed."""
        return 0

    @property
    def job_seconds(self) -> float:
        """Duration of the whole job with its further seeds, without repeats, which only measure."""
        return self.whole_seconds + self.seeds_seconds

    @property
    def passes_seconds(self) -> float:
        """Duration of all passes of the whole job."""
        return self.whole_seconds - self.once_seconds

    @property
    def mean_epoch_seconds(self) -> float:
        """Mean duration of a training pass."""
        return statistics.fmean(self.epoch_seconds)

    @property
    def median_epoch_seconds(self) -> float:
        """Median duration of a training pass."""
        return statistics.median(self.epoch_seconds)

    @property
    def busy(self) -> list[str]:
        """Reasons why the job's times are unreliable. Empty on a quiet machine."""
        return load_warnings(self.load)

    @property
    def step_warnings(self) -> list[str]:
        """Reasons why the times of steps are unreliable. Empty on a quiet machine."""
        return load_warnings(self.measured_load)

    @property
    def median_step_seconds(self) -> float:
        """Median duration of a step whose batch is on the device."""
        return statistics.median(self.step_seconds)

    @property
    def step_seconds(self) -> list[float]:
        """Times of a step whose batch is on the device, or of a script's step without its wait."""
        if self.steady_state:
            return self.steady_state.step_seconds
        steady = [part for part in self.parts if part.holds != "start"] or self.parts
        step = min(1.0, self.epoch_steps or 1.0)  # an epoch may be smaller than a batch
        return [
            step * (part.seconds - (part.waiting_seconds or 0.0)) / part.steps for part in steady
        ]

    @property
    def epoch_by_parts(self) -> EpochByParts | None:
        """Time of an epoch by the parts that `measure` timed, or None without parts."""
        return epoch_by_parts(self.parts, self.epoch_steps) if self.epoch_steps else None

    @property
    def measured_epoch_seconds(self) -> float:
        """Time of an epoch by the process that measured steps, if it timed parts of one."""
        by_parts = self.epoch_by_parts
        return by_parts.seconds if by_parts else self.median_epoch_seconds


class Timings(TrainingTimes, JobTimes):
    """Times of a training, with its steps as `measure` measured them."""

    @property
    def epoch_seconds(self) -> list[float]:
        return [epoch.training_seconds for epoch in self.all_epochs]

    @property
    def pass_seconds(self) -> list[float]:
        return [passed_seconds([epoch]) for epoch in self.all_epochs]

    @property
    def untimed_epochs(self) -> float:
        return float(self.epochs_left)

    @property
    def timed(self) -> TimedShare:
        return TimedShare(len(self.epochs), self.planned_epochs, "epoch")

    @property
    def validation_share(self) -> float:
        training_seconds = sum(epoch.training_seconds for epoch in self.epochs)
        return passed_seconds(self.epochs) / training_seconds - 1

    @property
    def interruptions(self) -> int:
        return len(self.resumed_at_epochs)

    def of_length(self, epochs: int) -> Timings:
        """Return the times of a training of so many epochs: the first of these, or all and more."""
        timed = self.epochs[:epochs]
        changes = {
            "epochs": timed,
            "epochs_left": epochs - len(timed),
            "repeats": tuple(each[:epochs] for each in self.repeats),
            "seeds": tuple(each[:epochs] for each in self.seeds),
            "total_seconds": self.total_seconds - passed_seconds(self.epochs[epochs:]),
        }
        return self.model_copy(update=changes)
