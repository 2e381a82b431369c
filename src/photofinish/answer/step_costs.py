"""Times of the parts of a training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from photofinish.config.experiment import Experiment
from photofinish.results.job_times import JobTimes
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
_HIDDEN_SHARE = 0.8
"""Launching that takes a smaller share of a step, by hand, is hidden behind the device's work.

A small batch may then wait for the host although the training's batch does not, so a line through
both sizes would be wrong.
"""


@dataclass(frozen=True)
class StepCosts:
    """Times per step of a full batch."""

    experiment: Experiment
    timings: JobTimes
    attribution: StepAttribution
    loading_seconds: float
    """Time to load a batch, as fast as without steps."""

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps. A smaller last batch is a fraction."""
        return max(1.0, self.timings.training_image_count / self.experiment.batch_size)

    @property
    def epoch_seconds(self) -> float:
        """Time of an epoch as `measure` measured it, beside the steps that are taken apart."""
        return self.timings.measured_epoch_seconds

    @property
    def epoch_share_seconds(self) -> float:
        return self.epoch_seconds / self.steps_per_epoch

    @cached_property
    def epoch_share_spread(self) -> tuple[float, float]:
        """Time per step in a fast and in a slow epoch."""
        by_parts = self.timings.epoch_by_parts
        assert by_parts
        return spread([seconds / self.steps_per_epoch for seconds in by_parts.values])

    @cached_property
    def parts_seconds(self) -> dict[str, float]:
        parts = self.attribution.parts
        seconds = parts.median_seconds
        return {name: seconds[field] for name, field in PARTS.items() if field in seconds}

    @property
    def copying_seconds(self) -> float:
        return self.parts_seconds["copying to the device"]

    @property
    def input_seconds(self) -> float:
        """Time per step of an epoch if the steps took no time."""
        source = self.experiment.input
        if source.name == "loader" and source.workers:  # they load the next batches meanwhile
            return max(self.loading_seconds, self.copying_seconds)
        return self.loading_seconds + self.copying_seconds

    @cached_property
    def step_alone_seconds(self) -> float:
        """Steady-state time of a step with its batch on the device."""
        return self.timings.median_step_seconds

    @property
    def busy_share(self) -> float:
        """Share of an epoch that the device needs for its steps.

        For accelerators this is an upper bound, because they also wait for the host within a step.
        """
        return min(1.0, self.step_alone_seconds / self.epoch_share_seconds)

    @cached_property
    def fixed_seconds(self) -> float:
        """Time of a step that does not depend on its number of samples.

        Computed from the fastest steps, because other programs can only slow steps down.
        """
        seconds = min(self.timings.step_seconds)
        launch_seconds = self.attribution.launch_seconds  # only on an accelerator
        if launch_seconds and min(launch_seconds) < _HIDDEN_SHARE * seconds:
            return 0.0
        samples = min(self.experiment.batch_size, self.timings.training_image_count)
        other_seconds = min(self.attribution.other_batch.step_seconds)
        other_samples = self.attribution.other_batch_images
        return self.step_alone_seconds * fixed_share(samples, seconds, other_samples, other_seconds)


def fixed_share(samples: int, seconds: float, other_samples: int, other_seconds: float) -> float:
    """Return the share of a step's time that would be left without samples.

    Extrapolates a line through two batch sizes.
    """
    if samples == other_samples:
        return 0.0
    sample_seconds = (seconds - other_seconds) / (samples - other_samples)
    return min(1.0, max(0.0, 1 - samples * sample_seconds / seconds))


def spread(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(values, [0.1, 0.9])
    return float(low), float(high)
