"""Measurements of a training's steps, and of their parts, operations and loading."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from photofinish.config.base import Record
from photofinish.results import TimedPart

CLEARLY_FASTER = 1.1
"""Factor, by hand, by which loading with other workers must be faster for these to be tried."""


class SteadyState(Record):
    """Timed training steps on one batch that is on the device."""

    steps_per_sample: int
    sample_seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...] = ()
    """CPU time of the main thread in each sample on the CPU. Threads spin for each other."""

    @property
    def step_seconds(self) -> list[float]:
        return [seconds / self.steps_per_sample for seconds in self.sample_seconds]

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.step_seconds)


class InTurns(Record):
    """Steps as they are and with a change, a sample of each in turns."""

    base: SteadyState
    changed: SteadyState

    @property
    def ratios(self) -> list[float]:
        """How many times as fast a step was with the change, in each turn."""
        pairs = zip(self.base.step_seconds, self.changed.step_seconds, strict=True)
        return [base_seconds / changed_seconds for base_seconds, changed_seconds in pairs]


Learns = Literal["the same", "other last bits", "something else"]
LEARNS: dict[str, Learns] = {
    "resident": "the same",
    "workers": "the same",
    "decode once": "the same",
    "resident once": "the same",
    "threads": "other last bits",
    "free algorithms": "other last bits",
    "batch size": "something else",
    "captured": "something else",
    "bf16": "something else",
    "tf32": "something else",
    "batch transform": "something else",
}
"""Changes that are tried, and what a training with one learns, or may learn.

To add a change, add a row here, and its trial in measure/attribution.py or loader_tries.py.
"""
if TYPE_CHECKING:
    TriedBy = str
else:
    TriedBy = Literal[tuple(LEARNS)]


class Tried(Record):
    """Steps with other settings, in turns with the steps as they are."""

    by: TriedBy
    changes: dict[str, Any]
    """Settings that change, of the experiment and of its data set."""
    turns: InTurns
    """Of another input, with waits for batches. Workers were started before."""


class LoopSteps(Record):
    """Steps of a custom loop on the CPU, including waits for batches."""

    quickest_seconds: float
    """Least of up to ten parts, each the mean of the quickest step in each of its blocks."""
    cpu_seconds: float | None
    """Mean CPU time of a step in the part where it is least, summed over all threads."""


class StepParts(Record):
    """Parts of training steps on one batch. Each part has a value for each step, or a mean.

    Events of the device time an accelerator's parts, and the host's clock the CPU's.
    """

    waiting_seconds: tuple[float, ...] = ()
    """Mean time to load a batch without steps, on an accelerator. The CPU's parts have the wait."""
    copying_seconds: tuple[float, ...]
    """Mean time of the host-to-device copy."""
    forward_seconds: tuple[float, ...]
    """Forward pass, including the loss."""
    backward_seconds: tuple[float, ...]
    optimizer_seconds: tuple[float, ...]
    rest_seconds: tuple[float, ...]

    @property
    def median_seconds(self) -> dict[str, float]:
        """Median of each part that was timed, in the order of a step."""
        parts = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: statistics.median(values) for name, values in parts.items() if values}


class StepAttribution(Record):
    """Attribution of an epoch's time to its parts; see measure/attribution.py."""

    parts: StepParts
    other_batch_images: int
    other_batch: SteadyState
    """Steps on `other_batch_images` samples, in turns with the steps as they are."""
    launch_seconds: tuple[float, ...] = ()
    """Host time to launch a step, on an accelerator without captured steps."""
    tried: tuple[Tried, ...] = ()
    """Steps on an accelerator with settings that it has and the training does not use."""


class Operations(Record):
    images: int
    """Batch size."""
    flops: int
    """Operations of all products, forward and backward, by the usual formulas."""
    in_double: bool = False
    """True if products compute in double precision, which is not a setting."""
    kernels: int
    """Number of computing operators, in forward pass, backward pass and optimizer."""
    convolutions: int = 0
    """Number of convolutions: outputs and both gradients count one each."""
    time_steps: int = 0
    """Number of time steps of recurrent layers, forward and backward, one after another."""
    passes: int = 1
    """Number of forward and backward passes. Each saves tensors and frees them."""
    saved_tensor_bytes: int
    """Bytes of all tensors saved for a backward pass, except parameters."""
    optimizer_bytes: int = 0
    """Bytes that the optimizer reads and writes."""
    peak_allocated_bytes: int | None = None
    """Most memory on a GPU at once, or None in an older record."""
    peak_reserved_bytes: int | None = None
    """Most memory that PyTorch's allocator takes there for it."""
    fixed_bytes: int | None = None
    """Memory of weights, state and gradients, which is the same for another batch."""
    without_formula: tuple[str, ...] = ()
    """Operators and custom functions that take much of the CPU's step but can't be counted.

    If there are any, no time on an accelerator is estimated.
    """


class TriedWorkers(Record):
    """Times of loading some batches with a number of workers, without steps."""

    workers: int
    batch_seconds: float
    """Time of a batch, without the first batches."""
    start_seconds: float
    """Time from creating the iterator to the first batch, and for the workers to end."""


class LoaderTimes(Record):
    """Times of loading without steps. A script has its slow line alone."""

    whole_seconds: float = 0.0
    """Seconds for a batch in one process."""
    tried_workers: tuple[TriedWorkers, ...] = ()
    """Loading by 1, 2, 4, ... workers, by one for each core, and by the loader's own number."""
    tried_inputs: tuple[Tried, ...] = ()
    slow_line: tuple[float, str] | None = None
    """Largest share of loading at a line, and that line."""

    def start_seconds_by(self, workers: int) -> float:
        """Return the time that this many workers take to start and end, or 0 if it is unknown."""
        starts = {tried.workers: tried.start_seconds for tried in self.tried_workers}
        return starts.get(workers, 0.0)

    def batch_seconds_by(self, workers: int) -> float:
        """Return the time of a batch with this number of workers.

        It is scaled from the next smaller number of workers that was tried, or from one process.
        """
        fewer = [tried for tried in self.tried_workers if tried.workers <= workers]
        if not fewer:
            return self.whole_seconds / max(1, workers)
        return fewer[-1].batch_seconds * fewer[-1].workers / workers


class StepMeasurements(Record):
    parts: tuple[TimedPart, ...]
    """Parts of the training in the order of time."""
    epoch_steps: float | None = None
    """Number of steps of an epoch, a smaller last batch as a fraction."""
    steady_state: SteadyState | None = None
    """Steps as they are on one batch. None for slow steps, and for a script's."""
    tried_threads: dict[int, SteadyState] = Field(default_factory=dict)
    """Steps with half of the CPU's threads and with one, in turns with the steps as they are."""
    fp32_flops_a_second: float | None = None
    """Rate of an fp32 matrix product on the CPU. Measured if the steps are in half precision."""
    attribution: StepAttribution | None = None
    not_attributed: str | None = None
    """Reason for a missing attribution."""
    loader: LoaderTimes | None = None
    operations: Operations | None = None
    not_counted: str | None = None
    """Reason why there are no operations."""

    def own_fields(self) -> dict[str, Any]:
        """Return the values of these measurements, without those of a record that has more."""
        return {name: value for name, value in self if name in StepMeasurements.model_fields}
