"""Parts of a step: copying, forward, backward, optimizer, launches, and loading on an accelerator.

The step is the trainer's own. It calls a gradient scaler before the backward pass and before the
optimizer, so a scaler that reads the clock times each part.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from photofinish.measure.in_turns import scratch_steps
from photofinish.nested import samples_in
from photofinish.results.measurements import StepParts
from photofinish.training.torch_device import CPU, is_accelerator
from photofinish.training.trainer import Trainer
from photofinish.training.warm_up import WARM_UP_STEPS

_LEAST_BATCHES_PER_WORKER = 4  # several rounds: the first batches of all workers come at once


def measure_parts(trainer: Trainer, steps: int) -> StepParts:
    """Time the parts of steps on the first batch, and its copy. On an accelerator, time loading."""
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
        marks[:] = [mark()]
        for number in range(steps):
            trainer.step(state, number, first)
            marks.append(mark())
    trainer.clock.now_seconds()  # waits for the device
    if device == CPU:
        seconds = tuple(end - start for start, end in pairwise(marks))
    else:
        seconds = tuple(start.elapsed_time(end) / 1000 for start, end in pairwise(marks))
    names = "forward_seconds", "backward_seconds", "optimizer_seconds", "rest_seconds"
    parts = {name: seconds[part :: len(names)] for part, name in enumerate(names)}
    batch = next(iter(training.host_batches(0)))
    started_seconds = trainer.clock.now_seconds()
    for _ in range(steps):
        training.to_device(batch)
    parts["copying_seconds"] = ((trainer.clock.now_seconds() - started_seconds) / steps,)
    if is_accelerator(device):
        settings, batches = trainer.experiment.input, steps
        if settings.name == "loader":
            batches = max(steps, _LEAST_BATCHES_PER_WORKER * settings.workers)
        parts["waiting_seconds"] = (mean_batch_seconds(trainer, batches),)
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


def mean_batch_seconds(trainer: Trainer, steps: int) -> float:
    """Return the mean time of loading a batch without steps, so that the host waits only once."""
    loaded, started_seconds = 0, trainer.clock.now_seconds()
    for batch in trainer.training.host_batches(0, trainer.steps.at_once):
        loaded += -(-samples_in(batch[1]) // trainer.training.batch_size)
        del batch
        if loaded >= steps:
            break
    return (trainer.clock.now_seconds() - started_seconds) / loaded


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
