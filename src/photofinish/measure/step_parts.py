"""Parts of an epoch's step: waiting for its batch, copying, forward, backward, optimizer, launches.

The step is the trainer's own. It calls a gradient scaler before the backward pass and before the
optimizer, so a scaler that reads the clock times each part.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice, pairwise
from typing import Any

import torch

from photofinish.measure.scratch import scratch_steps
from photofinish.measure.threads import cpu_time_of
from photofinish.nested import samples_in
from photofinish.results.measurements import StepParts
from photofinish.training.torch_device import CPU, is_accelerator
from photofinish.training.trainer import Trainer
from photofinish.training.warm_up import WARM_UP_STEPS

_CLOCK_READINGS = 10


def differences(ends: list[float]) -> tuple[float, ...]:
    return tuple(end - start for start, end in pairwise(ends))


def measure_parts(trainer: Trainer, steps: int) -> StepParts:
    """Time the parts of an epoch's first steps."""
    training, device, marks = trainer.training, trainer.device, []

    def mark() -> Any:
        """Return the time on the CPU, else an event of the device, without waiting for it."""
        if device == CPU:
            return trainer.clock.now_seconds()
        event = torch.Event(device, enable_timing=True)
        event.record()
        return event

    with trainer.scratch_copy() as state:
        state = state._replace(scaler=_MarkingScaler(trainer, lambda: marks.append(mark())))
        first = training.first()
        for _ in range(WARM_UP_STEPS):
            trainer.step(state, 0, first, moves_schedule=False)
        unplaced = training.host_batches(0)
        marks[:] = [mark()]
        for number in range(steps):
            batch = next(unplaced)
            marks.append(mark())
            placed = training.to_device(batch)
            marks.append(mark())
            trainer.step(state, number, placed)
            del batch, placed  # as in a training
            marks.append(mark())
    trainer.clock.now_seconds()  # waits for the device
    if device == CPU:
        seconds = differences(marks)
    else:
        seconds = tuple(start.elapsed_time(end) / 1000 for start, end in pairwise(marks))
    names = list(StepParts.model_fields)  # in a step's order
    parts = {name: seconds[part :: len(names)] for part, name in enumerate(names)}
    if is_accelerator(device):
        parts["waiting_seconds"] = measure_batches_alone(trainer, steps)
        batch = next(iter(training.host_batches(0)))
        started_seconds = trainer.clock.now_seconds()
        for _ in range(steps):
            training.to_device(batch)
        parts["copying_seconds"] = (_mean_seconds(trainer, started_seconds, steps),)
    return StepParts(**parts)


class _MarkingScaler(torch.amp.GradScaler):
    """Gradient scaler that marks the ends of forward pass, backward pass and optimizer."""

    def __init__(self, trainer: Trainer, part_ended: Callable[[], None]) -> None:
        super().__init__(trainer.device.type, enabled=trainer.state.scaler.is_enabled())
        self._part_ended = part_ended

    def scale(self, outputs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        self._part_ended()  # the forward pass
        return super().scale(outputs)

    def step(self, optimizer: torch.optim.Optimizer) -> float | None:
        self._part_ended()  # the backward pass
        return super().step(optimizer)

    def update(self) -> None:  # type: ignore[override]
        super().update()
        self._part_ended()  # the optimizer


def measure_batches_alone(trainer: Trainer, steps: int) -> tuple[float, ...]:
    """Time loading batches without steps.

    On an accelerator, return only the mean, so that the host waits for the device once. With
    resident batches, the epoch's order is computed before the first batch is timed.
    """
    clock, training = trainer.clock, trainer.training
    if not is_accelerator(trainer.device):
        batches = training.host_batches(0)
        ends = [clock.now_seconds()]
        for _batch in islice(batches, steps):
            ends.append(clock.now_seconds())
            del _batch  # as in a training
        return differences(ends)
    batches = training.host_batches(0, trainer.steps.at_once)
    loaded, started_seconds = 0, clock.now_seconds()
    for batch in batches:
        loaded += -(-samples_in(batch[1]) // training.batch_size)
        del batch
        if loaded >= steps:
            break
    return (_mean_seconds(trainer, started_seconds, loaded),)


def measure_loading_cpu(trainer: Trainer, steps: int) -> float | None:
    """Return the CPU time to load a batch in one thread, or None on a GPU or with workers."""
    settings = trainer.experiment.input
    if is_accelerator(trainer.device) or (settings.name == "loader" and settings.workers):
        return None
    seconds, cpu_seconds = cpu_time_of(lambda: measure_batches_alone(trainer, steps))
    return cpu_seconds / len(seconds)


def _mean_seconds(trainer: Trainer, started_seconds: float, steps: int) -> float:
    """Return the mean time of a step since the start, without the time to read the clock."""
    seconds = trainer.clock.now_seconds() - started_seconds
    readings = [trainer.clock.now_seconds() for _ in range(_CLOCK_READINGS)]
    return max(0.0, seconds - min(differences(readings))) / steps


def measure_launches(trainer: Trainer, steps: int) -> tuple[float, ...]:
    """Return the host's times to launch a step. Empty on the CPU and with captured steps.

    The device is idle before each step. After many steps without a wait, its queue would be full
    and the host would wait for it.
    """
    if not is_accelerator(trainer.device) or trainer.steps.kind == "graph":
        return ()
    seconds = []
    with scratch_steps(trainer) as (step,):
        for _ in range(WARM_UP_STEPS):
            step()
        for _ in range(steps):
            started_seconds = trainer.clock.now_seconds()
            step()
            seconds.append(time.perf_counter() - started_seconds)
    return tuple(seconds)
