"""What is known of a job on one device, as plain values: `answer` reads nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.machine.load import LoadWindow
from photofinish.results import EpochMetrics, TimedPart
from photofinish.results.measured import EpochByParts, ScriptFacts
from photofinish.results.measurements import (
    LoaderTimes,
    LoopSteps,
    Operations,
    SteadyState,
    StepAttribution,
)
from photofinish.results.trained import DeviceEvaluation, DeviceLabel, FirstStep, Trained
from photofinish.wording import counted


class TimedShare(NamedTuple):
    done: float
    of: float
    unit: Literal["epoch", "step"]


@dataclass(frozen=True)
class JobSettings:
    values: Mapping[str, str]
    """All settings by their dotted names."""
    dataset: str
    network: str
    batch_size: int
    precision: str
    """Precision in the settings, which a device without it replaces."""
    workers: int | None
    """Number of the loader's workers. None for resident input."""
    persistent_workers: bool
    overlaps_copies: bool
    """True if the loader pins memory and its copies don't block."""
    is_captured: bool
    """True if CUDA graphs capture a full batch's steps."""
    stops_early: bool
    depends_on_epochs: bool
    """True if the learning rate's schedule depends on the number of epochs."""
    steps_key: str
    """Key that trainings with equal steps share."""
    steps_key_on_cpu: str
    """The same without the settings that only accelerators read."""
    losses_key: str
    """Key that trainings with comparable losses share."""


@dataclass(frozen=True)
class Job:
    """Job on one device, seen whole or in part. What is not known is None or empty.

    A pass is an epoch of training with its validation.
    """

    name: str
    device: DeviceLabel
    settings: JobSettings | None
    """None for a script."""
    script: ScriptFacts | None
    precision: str
    parameter_count: int | None
    metrics: Mapping[str, float | None]
    """Custom test metrics, or numbers of a script's metrics file, by name."""
    trained: Trained | None
    """Trained model. None for a script, and if the job was only measured."""
    first_step: FirstStep | None
    """First step of an experiment, as `measure` recorded it."""

    host: CpuTarget | GpuTarget
    host_name: str
    device_name: str
    device_count: int
    hardware: str
    """Hardware in words, such as `2 x NVIDIA H100`."""
    started_at_unix_seconds: float
    load: tuple[LoadWindow, ...]
    measured_load: tuple[LoadWindow, ...]
    """Load while `measure` ran."""
    busy: tuple[str, ...]
    """Reasons why the job's times are unreliable. Empty on a quiet machine."""
    step_warnings: tuple[str, ...]
    """Reasons why the times of steps are unreliable."""

    epochs: float
    """Number of epochs of the whole job."""
    epoch_steps: float | None
    """Number of steps of an epoch, a smaller last batch as a fraction."""
    steps_per_epoch: int | None
    samples: int
    """Number of an epoch's samples, or 0 if it is not known."""
    timed: TimedShare
    untimed_epochs: float
    """Number of epochs that were not timed."""

    startup_seconds: float
    startup_cpu_seconds: float | None
    once_seconds: float
    """Time outside the passes: start-up, a first epoch's excess, writing results."""
    passes_seconds: float
    """Duration of all passes of the whole job, extrapolated if not all of it was timed."""
    seeds_seconds: float
    """Time of all further seeds' passes."""
    total_seconds: float
    """Time of what was seen of the job."""
    epoch_seconds: tuple[float, ...]
    """Duration of each training pass, or of an epoch whose steps are all like a timed part."""
    pass_seconds: tuple[float, ...]
    """The same with validation."""
    mean_epoch_seconds: float
    by_parts: EpochByParts | None
    """An epoch by the parts that `measure` timed, or None without parts."""
    loading_seconds: float | None
    """Time to load an epoch's batches: the waits, or what workers hide, with their start.

    Without a trial of these workers, they load as fast as if each had a core. It is None if loading
    was not timed.
    """
    loads_itself: bool
    """True if the process that trains also loads the batches."""
    validation_share: float
    """Time of validation as a share of the training passes' time."""

    parts: tuple[TimedPart, ...]
    step_seconds: tuple[float, ...]
    """Times of a step whose batch is on the device, or of a script's step without its wait."""
    steady_state: SteadyState | None
    tried_threads: Mapping[int, SteadyState]
    loop_steps: LoopSteps | None
    attribution: StepAttribution | None
    not_attributed: str | None
    loader: LoaderTimes | None
    operations: Operations | None
    not_counted: str | None
    fp32_flops_a_second: float | None

    peak_memory_bytes: int | None
    peak_host_memory_bytes: int | None
    samples_per_second: float | None
    data_seconds: float | None = None
    warm_up_seconds: float | None = None
    interruptions: int = 0
    """Number of times that the training was resumed."""
    may_stop_early: bool = False
    """True if early stopping may end the job before its untimed epochs."""
    is_bound: bool = False
    """True if steps take longer than the time in which none ended."""
    is_outdated: bool = False
    """True if the script was changed since."""
    machine: str = ""
    """Name of the other machine that recorded the job."""

    @property
    def whole_seconds(self) -> float:
        """Duration of the whole job."""
        return self.once_seconds + self.passes_seconds

    @property
    def job_seconds(self) -> float:
        """Duration of the whole job with its further seeds, without repeats, which only measure."""
        return self.whole_seconds + self.seeds_seconds

    @property
    def has_busy_steps(self) -> bool:
        """True if `measure` ran beside other programs and the training did not.

        Its steps then seem to take longer than the epochs that contain them.
        """
        return bool(self.step_warnings) and not self.busy

    @property
    def median_epoch_seconds(self) -> float:
        return statistics.median(self.epoch_seconds)

    @property
    def median_step_seconds(self) -> float:
        return statistics.median(self.step_seconds)

    @property
    def measured_epoch_seconds(self) -> float:
        """Time of an epoch by the process that measured steps, if it timed parts of one."""
        return self.by_parts.seconds if self.by_parts else self.median_epoch_seconds

    @property
    def waiting_share(self) -> float:
        """Share of the timed parts spent waiting for batches."""
        return self.by_parts.mean_waiting_seconds / self.by_parts.seconds if self.by_parts else 0.0

    @property
    def history(self) -> Sequence[EpochMetrics]:
        """Epochs of the training, or empty without one."""
        return self.trained.history if self.trained else ()

    @property
    def scores(self) -> DeviceEvaluation | None:
        return self.trained.scores if self.trained else None

    @property
    def in_graphs(self) -> bool:
        """True if CUDA graphs trained it."""
        taken = self.trained.steps_taken if self.trained else None
        return taken is not None and taken.kind == "graph"

    @property
    def is_extrapolated(self) -> bool:
        """True if not all of the job was timed."""
        return self.untimed_epochs > 0

    @property
    def timed_text(self) -> str:
        """Text such as `3 of 50 epochs`, or `50 epochs` if all of the job was timed."""
        whole = counted(round(self.timed.of), self.timed.unit)
        return f"{round(self.timed.done):,} of {whole}" if self.is_extrapolated else whole

    @property
    def done_text(self) -> str:
        """Text such as `3 epochs`: those that were timed."""
        return counted(round(self.timed.done), self.timed.unit)

    @property
    def seen_step_seconds(self) -> float:
        """Mean of the timed steps, or a bound on it."""
        steps = [part for part in self.parts if part.holds == "steps"]
        return sum(part.seconds for part in steps) / (sum(part.steps for part in steps) or 1.0)

    @property
    def uncounted(self) -> Sequence[str]:
        """Operators of a step without a formula for their arithmetic."""
        return self.operations.without_formula if self.operations else ()

    @property
    def has_steps(self) -> bool:
        """True if steps were seen, False for a script that is timed as a whole."""
        return all(part.holds != "run" for part in self.parts)


class JobPair(NamedTuple):
    cpu: Job
    gpu: Job | None = None
    why_no_gpu: str | None = None
    references: tuple[Job, ...] = ()
    """Jobs with the same steps and length on other machines. Scripts have none."""
