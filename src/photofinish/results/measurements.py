"""Measurements of a training beyond its epochs: its steps, their parts, and what they compute."""

from __future__ import annotations

import statistics
from typing import Literal

from pydantic import Field

from photofinish.config.base import Record

MOST_UNEXPLAINED_SHARE = 0.25
"""Largest difference between a whole and its parts, taken apart, that still show a cause."""
MOST_UNEXPLAINED_LOADING = 0.15
"""The same for a loader and its parts."""
CLEARLY_FASTER = 1.1
"""Factor by which loading must be faster if it is to count."""


class SteadyState(Record):
    """Timed training steps on one batch that is on the device."""

    steps_per_sample: int
    sample_seconds: tuple[float, ...]

    @property
    def step_seconds(self) -> list[float]:
        """Mean step of each sample."""
        return [seconds / self.steps_per_sample for seconds in self.sample_seconds]

    @property
    def median_seconds(self) -> float:
        """Median step."""
        return statistics.median(self.step_seconds)


class TriedThreads(Record):
    """Steps on the CPU with a number of threads that was tried after the training."""

    threads: int
    steps: SteadyState
    cpu_seconds: tuple[float, ...]
    """CPU time of the main thread for each step, which includes waiting for other threads."""


class LoopSteps(Record):
    """Steps of a custom loop on the CPU, with the wait for their batches."""

    quickest_seconds: float
    """Quickest tenth of the steps."""
    cpu_seconds: float | None
    """Mean CPU time of a step, of all threads."""


class StepsTaken(Record):
    """Launching of the training's steps: one by one, or captured in a CUDA graph."""

    kind: Literal["eager", "graph"]
    at_once: int
    """Number of steps in a graph."""
    why: str


class StepParts(Record):
    """Parts of training steps with the training's input path: a value for each step of an epoch.

    Accelerators time the parts by events. Without events, the host synchronizes after each part,
    and the duration of an empty synchronization is subtracted.
    """

    waiting_seconds: tuple[float, ...]
    """Wait for the batch, the mean on an accelerator."""
    copying_seconds: tuple[float, ...]
    """Host-to-device copy, the mean on an accelerator."""
    forward_seconds: tuple[float, ...]
    """Forward pass, with the loss."""
    backward_seconds: tuple[float, ...]
    optimizer_seconds: tuple[float, ...]
    rest_seconds: tuple[float, ...]

    @property
    def median_seconds(self) -> dict[str, float]:
        """Median of each part, in the order of a step."""
        return {name: statistics.median(getattr(self, name)) for name in type(self).model_fields}


class StepAttribution(Record):
    """Attribution of an epoch's time to its parts; see profiling/attribution.py."""

    parts: StepParts
    batch_alone_seconds: tuple[float, ...]
    """Time of each batch with no step between, the mean on an accelerator."""
    batch_alone_cpu_seconds: float | None = None
    """Mean CPU time of a batch that one thread loads; None on an accelerator and with workers."""
    other_batch_images: int
    same_batch: SteadyState
    other_batch: SteadyState
    """Steps on `other_batch_images` samples, in turns with those on the batch."""
    launch_seconds: tuple[float, ...] = ()
    """Host time of single steps, on an accelerator without captured steps."""
    bf16: SteadyState | None = None
    """Steps in bfloat16, if the device supports it and the training does not use it."""
    resident: SteadyState | None = None
    """Steps with batches gathered on the device, if a loader is used and the samples would fit."""


class Product(Record):
    """Matrix product or convolution, or a gradient of one; see profiling/operations.py."""

    count: int
    """Number of equal products in a step."""
    least_flops: int
    """Operations by the fastest known algorithm. A multiply-add counts two."""
    read_values: int
    written_values: int


class Operations(Record):
    """Operations, memory traffic and saved tensors of one training step."""

    images: int
    """Batch size."""
    flops: int
    """Operations of all products, forward and backward, counted as usual."""
    in_double: bool = False
    """True if products compute in double precision, which no setting shows."""
    kernels: int
    """Operators that compute something, forward, backward and in the optimizer."""
    products: tuple[Product, ...]
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    saved_activations: int
    """Numbers that layers with weights save for the backward pass, each counted once."""
    saved_tensor_bytes: int
    """Bytes of all tensors but parameters saved for the backward pass."""
    batch_bytes: int
    """Bytes copied to the device for each step."""
    resident_bytes: int
    """Bytes of the samples that stay on the device."""
    without_formula: tuple[str, ...] = ()
    """Operators and custom functions in which the CPU spends much of the step, but which aren't
    counted. No time on an accelerator is estimated then."""

    def precision(self, setting: str) -> str:
        """Return the precision of the products by the settings', or fp64 if they are in double."""
        return "fp64" if self.in_double else setting


class TriedWorkers(Record):
    """Loading of some batches by a number of workers, without steps."""

    workers: int
    batch_seconds: float
    """Time of a batch after the first ones."""
    start_seconds: float
    """Time from the iterator to the first batch."""
    cpu_seconds: tuple[float, ...]
    """CPU time of each worker."""
    busy_threads: tuple[int, ...]
    """Threads of each worker that take a tenth of its CPU time."""
    memory_bytes: tuple[int, ...]
    """Memory of each worker that it shares with no other process."""


class TriedInput(Record):
    """Steps with another input, which are taken as in the training."""

    by: Literal["workers", "decode once", "batch transform"]
    workers: int
    persistent_workers: bool
    steps: SteadyState


class LoaderTimes(Record):
    """Loading of a batch taken apart; see profiling/loader_parts.py."""

    samples: int
    """Number of samples that were taken apart."""
    batch_size: int = 1
    parts: dict[str, float] = Field(default_factory=dict)
    """Seconds of each part for a batch, the longest first."""
    whole_seconds: float = 0.0
    """Seconds for a batch in one process that times no parts."""
    not_measured: str | None = None
    """Reason why there are no parts."""
    tried_workers: tuple[TriedWorkers, ...] = ()
    """Loading by one worker, two, and so on up to one for each core."""
    with_one_thread: TriedWorkers | None = None
    """Loading by the training's workers with one thread each, if they compute with more."""
    tried_inputs: tuple[TriedInput, ...] = ()

    @property
    def explained(self) -> dict[str, float]:
        """Parts whose sum is that of the whole within 15 %, else none."""
        off_seconds = abs(sum(self.parts.values()) - self.whole_seconds)
        return self.parts if off_seconds <= MOST_UNEXPLAINED_LOADING * self.whole_seconds else {}

    @property
    def crowded_workers(self) -> TriedWorkers | None:
        """Workers of the training, if each loads clearly faster with one thread."""
        if self.with_one_thread is None:
            return None
        own = [each for each in self.tried_workers if each.workers == self.with_one_thread.workers]
        is_faster = own[0].batch_seconds > CLEARLY_FASTER * self.with_one_thread.batch_seconds
        return own[0] if is_faster else None

    def batch_seconds_by(self, workers: int) -> float:
        """Return the time of a batch by so many workers.

        It is that of the next smaller number that was tried, shared evenly by the workers.
        """
        tried = [each for each in self.tried_workers if each.workers <= workers][-1]
        return tried.batch_seconds * tried.workers / workers


class Overhead(Record):
    """Time of the training loop outside the timed passes, in the last process of the training."""

    passes_seconds: float
    seconds: float
    """Time for display, checkpoints, tracking and watching the load."""

    @property
    def share(self) -> float:
        """Share of the passes' time; 0 if there were none."""
        return self.seconds / self.passes_seconds if self.passes_seconds else 0.0
