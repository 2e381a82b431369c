"""What is measured of a training besides its epochs: its steps, where they go, what they compute; each figure raw."""

from __future__ import annotations

import statistics
from typing import Literal

from photofinish.params.base import Record


class SteadyState(Record):
    """Training steps on one batch that lies on the device: without data to wait for, timed from end to end."""

    steps_per_sample: int
    sample_seconds: tuple[float, ...]
    """raw: each of so many steps"""

    @property
    def step_seconds(self) -> list[float]:
        """A value for each sample: its mean step."""
        return [seconds / self.steps_per_sample for seconds in self.sample_seconds]


class StepsTaken(Record):
    """How the device was handed the training's steps."""

    kind: Literal["eager", "graph"]
    """one by one, or recorded in a CUDA graph"""
    at_once: int
    """that a graph holds"""
    why: str


class StepParts(Record):
    """Where training steps go, one after the other through the training's own input path: every value is of one step,
    the first of them the first of an epoch. An accelerator notes the time at the end of each part; where it can't, the
    clock waits for it there, and what waiting takes by itself is taken off."""

    waiting_seconds: tuple[float, ...]
    """for the batch: gathered on the device, or loaded, augmented and normalised by the input path named loader; of an
    accelerator their mean"""
    copying_seconds: tuple[float, ...]
    """the batch to the device; nothing where it lies there already; of an accelerator their mean"""
    forward_seconds: tuple[float, ...]
    """with the loss"""
    backward_seconds: tuple[float, ...]
    optimizer_seconds: tuple[float, ...]
    rest_seconds: tuple[float, ...]
    """the whole step less all these"""

    @property
    def median_seconds(self) -> dict[str, float]:
        """Of each part, by its name here, in the order of a step."""
        return {name: statistics.median(getattr(self, name)) for name in type(self).model_fields}


class Attribution(Record):
    """What tells where an epoch goes, and why; see measuring/attribution.py."""

    parts: StepParts
    batch_alone_seconds: tuple[float, ...]
    """waiting for each batch, with no step between: what the input path can do at best; of an accelerator their mean"""
    other_batch_images: int
    same_batch: SteadyState
    other_batch: SteadyState
    """steps on the batch, by turns with steps on so many images, nothing else changed: more where an epoch has room for
    larger batches, else few"""
    issuing_seconds: tuple[float, ...] = ()
    """of single steps on the batch, how long the host was busy with each; of an accelerator that is handed steps one by
    one only"""
    bf16: SteadyState | None = None
    """steps in bfloat16, where the training takes a longer type and the device is made for it"""
    resident: SteadyState | None = None
    """steps with batches gathered on the device, where the training takes them from a loader and images would fit"""


class Product(Record):
    """A product of matrices or a convolution, or a gradient of one; see measuring/operations.py."""

    count: int
    """how many of the same a step has"""
    least_flops: int
    """two for a multiplication with its addition, by the fastest way known, of each"""
    read_values: int
    """numbers that go in, of each"""
    written_values: int
    """and that come out"""


class Operations(Record):
    """What one training step on a batch computes, moves and keeps, however fast."""

    images: int
    """of the batch"""
    flops: int
    """of all products, forward and backward, as they are usually counted"""
    products: tuple[Product, ...]
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    kept_values: int
    """numbers, each once: inputs of layers with weights that lie in memory from the forward to the backward pass"""
    all_kept_bytes: int
    """of all but parameters that lies there from the forward to the backward pass, in the step that was counted"""
    batch_bytes: int
    """that are copied to a device for each step; none where all images lie there"""
    resident_bytes: int
    """of the images that lie on the device all the time"""


class Overhead(Record):
    """What the training loop spends between the timed passes, by what for; of the process that ended the training."""

    passes_seconds: float
    """in training and validation, which the others are to be held against"""
    display_seconds: float
    saving_seconds: float
    """checkpoints, and each epoch's weights where they are kept"""
    tracking_seconds: float
    watching_seconds: float
    """reading how busy the machine is"""
    rest_seconds: float
    """reading the clock, adding up losses"""

    @property
    def seconds(self) -> float:
        """All but the passes."""
        named = self.display_seconds + self.saving_seconds + self.tracking_seconds + self.watching_seconds
        return named + self.rest_seconds

    @property
    def share(self) -> float:
        """Of the passes' time; 0 where there were none."""
        return self.seconds / self.passes_seconds if self.passes_seconds else 0.0
