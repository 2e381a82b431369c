"""Times of the parts of a training step, and steps on a GPU that take longer than expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from photofinish.answer.estimates import NEWEST_LAUNCH_SECONDS, are_captured, estimate_step
from photofinish.config.compare import accelerators
from photofinish.machine.load import DOUBTFUL_SHARE
from photofinish.results.job import Job, JobSettings
from photofinish.results.measurements import StepAttribution

PARTS = {
    "waiting for data": "waiting_seconds",
    "copying to the device": "copying_seconds",
    "forward": "forward_seconds",
    "backward": "backward_seconds",
    "optimizer": "optimizer_seconds",
    "the rest": "rest_seconds",
}
"""Parts of a step, in order, with their names in the record."""
HIDDEN_SHARE = 0.8
"""Launching that takes a smaller share of a step, by hand, is hidden behind the device's work.

A small batch may then wait for the host although the training's batch does not, so a line through
both sizes would be wrong.
"""
MOST_OF_IT = 0.5
"""Share from which a GPU mostly waits, or launches: more than all else."""
_SLOWER = 2.0
"""Factor, by hand, above a slow step's estimate. Of 44 steps on GPUs, one took 1.3 times it."""
SlowCause = Literal["others", "clock", "host", "loading", "not known"]


@dataclass(frozen=True)
class StepCosts:
    """Times per step of a full batch."""

    settings: JobSettings
    attribution: StepAttribution
    parts_seconds: Mapping[str, float]
    loading_seconds: float
    """Time to load a batch, as fast as without steps."""
    input_seconds: float
    """Time per step of an epoch if the steps took no time."""
    step_alone_seconds: float
    """Steady-state time of a step with its batch on the device."""
    fixed_seconds: float
    """Time of a step that does not depend on its number of samples."""
    epoch_share_seconds: float
    """Time per step of an epoch as `measure` measured it, beside the steps that are taken apart."""
    epoch_share_spread: tuple[float, float]
    """The same in a fast and in a slow epoch."""

    @property
    def copying_seconds(self) -> float:
        return self.parts_seconds["copying to the device"]

    @property
    def busy_share(self) -> float:
        """Share of an epoch that the device needs for its steps.

        For accelerators this is an upper bound, because they also wait for the host within a step.
        """
        return min(1.0, self.step_alone_seconds / self.epoch_share_seconds)


def step_costs(job: Job) -> StepCosts | None:
    """Return the times of a step's parts, or None if its steps were not taken apart."""
    settings, attribution, by_parts = job.settings, job.attribution, job.by_parts
    if not (settings and attribution and by_parts):
        return None
    medians = attribution.parts.median_seconds
    parts_seconds = {name: medians[part] for name, part in PARTS.items() if part in medians}
    loading_seconds = job.loading_seconds or by_parts.mean_waiting_seconds
    loading_seconds /= max(1.0, job.epoch_steps or 1)
    if not by_parts.waiting_seconds:
        loading_seconds = medians["waiting_seconds"]
    input_seconds = loading_seconds + parts_seconds["copying to the device"]
    if settings.workers:  # they load the next batches meanwhile
        input_seconds = max(loading_seconds, parts_seconds["copying to the device"])
    steps = max(1.0, job.samples / settings.batch_size)
    low, high = np.quantile([seconds / steps for seconds in by_parts.values], [0.1, 0.9])
    return StepCosts(
        settings=settings,
        attribution=attribution,
        parts_seconds=parts_seconds,
        loading_seconds=loading_seconds,
        input_seconds=input_seconds,
        step_alone_seconds=job.median_step_seconds,
        fixed_seconds=job.median_step_seconds * _fixed_share(job, settings, attribution),
        epoch_share_seconds=by_parts.seconds / steps,
        epoch_share_spread=(float(low), float(high)),
    )


def _fixed_share(job: Job, settings: JobSettings, attribution: StepAttribution) -> float:
    """Return the share of a step's time that does not depend on its number of samples.

    Computed from the fastest steps, because other programs can only slow steps down.
    """
    seconds = min(job.step_seconds)
    launch_seconds = attribution.launch_seconds  # only on an accelerator
    if launch_seconds and min(launch_seconds) < HIDDEN_SHARE * seconds:
        return 0.0
    samples = min(settings.batch_size, job.samples)
    others = attribution.other_batch
    other_samples = attribution.other_batch_images
    return fixed_share(samples, seconds, other_samples, min(others.step_seconds))


@dataclass(frozen=True)
class EpochStep:
    """Step of an epoch, with its share of all that an epoch takes."""

    costs: StepCosts | None
    """None if its steps were not taken apart."""
    seconds: float | None
    """Time per step of an epoch, which the shares divide, if it is known.

    That of the training's epochs if `measure` ran beside other programs.
    """
    shares: Mapping[str, float]
    """Share of each part. Empty if that is not known."""


def epoch_step(job: Job) -> EpochStep:
    costs = step_costs(job)
    seconds = job.median_epoch_seconds / job.steps_per_epoch if job.steps_per_epoch else None
    if costs:
        seconds = costs.epoch_share_seconds
    shares = _shares(job, costs, seconds)
    if costs and job.has_busy_steps:
        seconds = costs.epoch_share_seconds * job.median_epoch_seconds / job.measured_epoch_seconds
    return EpochStep(costs, seconds, shares)


def _shares(job: Job, costs: StepCosts | None, step_seconds: float | None) -> dict[str, float]:
    apart = dict(costs.parts_seconds if costs else job.script.step_parts if job.script else {})
    if job.device == "gpu" and costs:
        return {part: seconds / sum(apart.values()) for part, seconds in apart.items()}
    apart.pop("waiting for data", None)  # the CPU's waits are in its training's parts
    if not (job.by_parts and job.by_parts.waiting_seconds):
        return {}
    waiting = {"waiting for data": job.waiting_share}
    computing = 1 - job.waiting_share
    if not apart or not step_seconds:
        return waiting | {"computing": computing}
    # They were timed in other steps, which may have been slower.
    whole_seconds = max(computing * step_seconds, sum(apart.values()))
    parts = {part: computing * seconds / whole_seconds for part, seconds in apart.items()}
    parts.pop("the rest", None)
    return waiting | parts | {"the rest": max(0.0, computing - sum(parts.values()))}


def fixed_share(
    samples: int,
    seconds: float,
    other_samples: int,
    other_seconds: float,
) -> float:
    """Return the share of a step's time that would be left without samples.

    Extrapolates a line through two batch sizes.
    """
    if samples == other_samples:
        return 0.0
    sample_seconds = (seconds - other_seconds) / (samples - other_samples)
    return min(1.0, max(0.0, 1 - samples * sample_seconds / seconds))


@dataclass(frozen=True)
class SlowGpu:
    step_seconds: float
    expected_seconds: float
    cause: SlowCause


def slow_gpu(cpu: Job, gpu: Job, on_cpu: EpochStep) -> SlowGpu | None:
    """Return how slow a step is on a GPU, or None if the estimate may be off by as much.

    A script's step has its own code, too, which takes as long as on the CPU (`on_cpu`).
    """
    operations = gpu.operations if gpu.script else gpu.operations or cpu.operations
    sheets = {sheet.full_name: sheet for sheet in accelerators().values()}
    sheet = sheets.get(gpu.device_name) if gpu.device_count == 1 else None
    if not (operations and sheet and gpu.has_steps) or gpu.is_bound or gpu.has_busy_steps:
        return None
    precision = cpu.settings.precision if cpu.settings else gpu.precision
    is_captured = are_captured(cpu.settings, operations)
    quickest_seconds = min(cpu.step_seconds)
    step = estimate_step(operations, sheet, precision, quickest_seconds, is_captured=is_captured)
    rest_seconds = 0.0
    if gpu.script:
        rest_seconds = on_cpu.shares.get("the rest", 1.0) * (on_cpu.seconds or 0.0)
    if step is None or rest_seconds > step.seconds:
        return None
    if gpu.median_step_seconds <= _SLOWER * step.spread[2] + rest_seconds:
        return None
    return SlowGpu(gpu.median_step_seconds, step.seconds + rest_seconds, _cause(gpu))


def _cause(gpu: Job) -> SlowCause:
    windows = gpu.measured_load or gpu.load
    least_seconds = DOUBTFUL_SHARE * sum(window.wall_seconds for window in windows)
    if sum(window.wall_seconds for window in windows if window.gpu_others) > least_seconds:
        return "others"
    if sum(window.wall_seconds for window in windows if window.gpu_slowdowns) > least_seconds:
        return "clock"
    launches = gpu.attribution.launch_seconds if gpu.attribution else ()
    if launches and min(launches) >= HIDDEN_SHARE * min(gpu.step_seconds):
        return "host"
    if launching_share(gpu) > MOST_OF_IT:
        return "host"
    knows_waits = gpu.steady_state or (gpu.by_parts and gpu.by_parts.waiting_seconds)
    return "not known" if knows_waits else "loading"


def launching_share(gpu: Job) -> float:
    """Return the least share of a script's step that launching takes."""
    script, operations = gpu.script, gpu.operations
    if not script or script.idle_share < MOST_OF_IT or not operations:
        return 0.0  # the GPU's work hides it
    return min(1.0, operations.kernels * NEWEST_LAUNCH_SECONDS / gpu.median_step_seconds)
