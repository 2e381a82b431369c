"""Times that every job has, whether photofinish or a script trains it."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Annotated, Any

from photofinish.config.base import Record
from photofinish.machine.energy import Energy
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.machine.host import git_commit, package_versions
from photofinish.machine.load import LoadWindow, load_warnings
from photofinish.results import EpochTiming, median_training_seconds, passed_seconds
from photofinish.results.figures import Figure
from photofinish.results.measurements import (
    MOST_UNEXPLAINED_SHARE,
    LoaderTimes,
    LoopSteps,
    Operations,
    SteadyState,
    StepAttribution,
    StepParts,
    TriedThreads,
)

_STEP = Figure(
    "step (median)", csv="step_seconds", dvc=True, mlflow="median_step_seconds", needs_steps=True
)
_EPOCH = Figure(
    "epoch (median)", csv="epoch_seconds", dvc=True, mlflow="median_epoch_seconds", needs_steps=True
)
_RATE = Figure(
    "samples/s",
    "a second",
    csv="images_per_second",
    mlflow="median_images_per_second",
    needs_steps=True,
)
_STARTUP = Figure("start-up", csv="startup_seconds", mlflow="startup_seconds", needs_steps=True)
_TOTAL = Figure("total", csv="total_seconds", dvc=True, mlflow="total_seconds")
_DEVICE_MEMORY = Figure(
    "memory (peak)", "bytes", csv="peak_memory_bytes", mlflow="peak_memory_bytes"
)
_HOST_MEMORY = Figure(
    "host memory (peak)",
    "bytes",
    csv="peak_host_memory_bytes",
    mlflow="peak_host_memory_bytes",
)


class Readings(Record):
    """Readings of instruments that watch a job."""

    peak_memory_bytes: Annotated[int | None, _DEVICE_MEMORY] = None
    """Peak memory of the device, or of the process on the CPU. The largest of several peaks."""
    peak_host_memory_bytes: Annotated[int | None, _HOST_MEMORY] = None
    """Largest resident set of the training process, or of any rank."""
    energy: tuple[Energy, ...] = ()
    """Energy of the first training, for each part of the machine."""


class JobTimes(Readings):
    """Duration, place and date of a job."""

    host: CpuTarget | GpuTarget
    host_name: str
    device_name: str
    git_commit: str | None
    packages: dict[str, str]
    started_at_unix_seconds: float
    epochs: tuple[EpochTiming, ...]
    epochs_left: int = 0
    """Number of planned epochs that were not trained because of a time limit."""
    sampled_steps: int | None = None
    """Number of steps that `photofinish ask` took, if it extrapolates the epochs from them."""
    repeats: tuple[tuple[EpochTiming, ...], ...] = ()
    """Epochs of each further training from the same start."""
    seeds: tuple[tuple[EpochTiming, ...], ...] = ()
    """Epochs of the training from each further seed."""
    resumed_at_epochs: tuple[int, ...] = ()
    training_image_count: int
    steps_per_epoch: int | None = None
    images_per_second: Annotated[float | None, _RATE]
    """Training samples divided by the median training time of an epoch, over all repeats."""
    startup_seconds: Annotated[float, _STARTUP]
    """Time from the process's start to the first step, without warm-up and photofinish's checks."""
    startup_cpu_seconds: float | None = None
    """CPU time of the main thread in the start-up."""
    total_seconds: Annotated[float, _TOTAL]
    """Time from the process's start to the last result, without warm-up, checks and tracking.

    For a resumed run, the sum over its processes.
    """
    device_count: int = 1
    """Number of GPUs, or of processes on the CPU, that shared the training."""
    steady_state: SteadyState
    tried_threads: tuple[TriedThreads, ...] = ()
    """Steps with one, half, and all of the threads, measured in turns."""
    fp32_flops_a_second: float | None = None
    """Rate of an fp32 matrix product on the CPU. Measured if the steps are in half precision."""
    loop_steps: LoopSteps | None = None
    """Steps of a script on the CPU."""
    load: tuple[LoadWindow, ...]
    """Load between readings after epochs.

    The last window covers the measurements after the training.
    """
    attribution: StepAttribution | None = None
    loader: LoaderTimes | None = None
    """Breakdown of a loader's time for a batch."""
    operations: Operations | None = None
    not_counted: str | None = None
    """Reason why there are no operations."""

    @property
    def all_epochs(self) -> list[EpochTiming]:
        """Epochs of the first training and of its repeats."""
        return [*self.epochs, *(timing for repeat in self.repeats for timing in repeat)]

    @property
    def epoch_seconds(self) -> list[float]:
        """Duration of each training pass, all repeats included."""
        return [epoch.training_seconds for epoch in self.all_epochs]

    @property
    def median_step_seconds(self) -> Annotated[float, _STEP]:
        """Median duration of a step whose batch is on the device."""
        return self.steady_state.median_seconds

    @property
    def median_epoch_seconds(self) -> Annotated[float, _EPOCH]:
        """Median duration of a training pass."""
        return median_training_seconds(self.all_epochs)

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
        if self.steps_per_epoch and not load_warnings(self.load):
            wholes.append(self.median_epoch_seconds / self.steps_per_epoch - data_seconds)
        most = MOST_UNEXPLAINED_SHARE
        fits = any(abs(apart_seconds - whole) <= most * whole for whole in wholes)
        return parts if fits or isinstance(self.host, GpuTarget) else None

    @property
    def once_seconds(self) -> float:
        """Time outside the passes: start-up, writing results."""
        once_seconds = self.total_seconds - passed_seconds(self.epochs)
        least_seconds = min(self.startup_seconds, once_seconds)
        return max(least_seconds, once_seconds - self.overhead_seconds)

    @property
    def planned_epochs(self) -> int:
        """Number of epochs of the whole job."""
        return len(self.epochs) + self.epochs_left

    @property
    def overhead_seconds(self) -> float:
        """Time in the total that a plain training would not take, or 0 if unknown."""
        return 0.0

    def left_seconds(self, epochs: Sequence[EpochTiming]) -> float:
        """Return the time of the epochs left, if each takes the mean time of `epochs`."""
        return self.epochs_left * passed_seconds(epochs) / len(epochs)

    @property
    def whole_seconds(self) -> float:
        """Duration of the whole job, extrapolated if a time limit left epochs untrained."""
        passes_seconds = passed_seconds(self.epochs) + self.left_seconds(self.epochs)
        return self.once_seconds + passes_seconds

    @property
    def seeds_seconds(self) -> float:
        """Time of all further seeds' passes, including the epochs left."""
        return sum(passed_seconds(seed) + self.left_seconds(seed) for seed in self.seeds)

    @property
    def job_seconds(self) -> float:
        """Duration of the whole job with its further seeds, without repeats, which only measure."""
        return self.whole_seconds + self.seeds_seconds

    @property
    def end_to_end_seconds(self) -> list[float]:
        """Duration of the whole job, for each repeat."""
        repeats = [passed_seconds(repeat) + self.left_seconds(repeat) for repeat in self.repeats]
        return [self.whole_seconds, *(self.once_seconds + seconds for seconds in repeats)]


def made_here(host: CpuTarget | GpuTarget) -> dict[str, Any]:
    """Return the fields about machine and software, for a job of this process."""
    return {
        "host": host,
        "host_name": platform.node(),
        "git_commit": git_commit(),
        "packages": package_versions(),
    }
