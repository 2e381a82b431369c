"""Measurements of a training beyond its epochs: its steps, their parts, and what they compute. All figures are raw."""

from __future__ import annotations

import statistics
from typing import Literal

from photofinish.config.base import Record


class SteadyState(Record):
    """Timed training steps on one batch that is on the device."""

    steps_per_sample: int
    sample_seconds: tuple[float, ...]
    """duration of each sample of so many steps"""

    @property
    def step_seconds(self) -> list[float]:
        """Mean step of each sample."""
        return [seconds / self.steps_per_sample for seconds in self.sample_seconds]


class StepsTaken(Record):
    """How the training's steps were launched."""

    kind: Literal["eager", "graph"]
    """one by one, or captured in a CUDA graph"""
    at_once: int
    """steps in a graph"""
    why: str


class StepParts(Record):
    """Parts of training steps with the training's own input path, a value for each step from an epoch's first.

    Accelerators time the parts by events. Without events, the host synchronizes after each part, and the duration of
    an empty synchronization is subtracted.
    """

    waiting_seconds: tuple[float, ...]
    """wait for the batch: gathered on the device, or loaded and augmented; the mean on an accelerator"""
    copying_seconds: tuple[float, ...]
    """host-to-device copy; 0 if the batch is there; the mean on an accelerator"""
    forward_seconds: tuple[float, ...]
    """with the loss"""
    backward_seconds: tuple[float, ...]
    optimizer_seconds: tuple[float, ...]
    rest_seconds: tuple[float, ...]
    """the step less its parts"""

    @property
    def median_seconds(self) -> dict[str, float]:
        """Median of each part, in the order of a step."""
        return {name: statistics.median(getattr(self, name)) for name in type(self).model_fields}


class StepBreakdown(Record):
    """Breakdown of an epoch's time; see measuring/attribution.py."""

    parts: StepParts
    batch_alone_seconds: tuple[float, ...]
    """time of each batch with no step between; the mean on an accelerator"""
    other_batch_images: int
    same_batch: SteadyState
    other_batch: SteadyState
    """steps on `other_batch_images` images, in turns with those on the batch"""
    launch_seconds: tuple[float, ...] = ()
    """host time of single steps, on an accelerator without captured steps"""
    bf16: SteadyState | None = None
    """steps in bfloat16, if the device supports it and the training does not use it"""
    resident: SteadyState | None = None
    """steps with batches gathered on the device, if the training uses a loader and the images would fit"""


class Product(Record):
    """A matrix product or convolution, or a gradient of one; see measuring/operations.py."""

    count: int
    """number of equal ones in a step"""
    least_flops: int
    """operations of each by the fastest known algorithm; a multiply-add counts two"""
    read_values: int
    """numbers that each reads"""
    written_values: int
    """numbers that each writes"""


class Operations(Record):
    """Operations, memory traffic and saved tensors of one training step."""

    images: int
    """batch size"""
    flops: int
    """operations of all products, forward and backward, counted as usual"""
    products: tuple[Product, ...]
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    saved_activations: int
    """numbers that layers with weights save from the forward to the backward pass, each counted once"""
    saved_tensor_bytes: int
    """bytes of all tensors but parameters saved from the forward to the backward pass"""
    batch_bytes: int
    """bytes copied to the device for each step; 0 if all images are there"""
    resident_bytes: int
    """bytes of the images that stay on the device"""


class Overhead(Record):
    """Time of the training loop outside the timed passes, in the process that ended the training."""

    passes_seconds: float
    """time in training and validation passes"""
    display_seconds: float
    saving_seconds: float
    """checkpoints and weights of epochs"""
    tracking_seconds: float
    watching_seconds: float
    """reading the machine's load"""
    rest_seconds: float
    """reading the clock, adding up losses"""

    @property
    def seconds(self) -> float:
        """Sum of all but the passes."""
        named = self.display_seconds + self.saving_seconds + self.tracking_seconds + self.watching_seconds
        return named + self.rest_seconds

    @property
    def share(self) -> float:
        """Share of the passes' time; 0 if there were none."""
        return self.seconds / self.passes_seconds if self.passes_seconds else 0.0
