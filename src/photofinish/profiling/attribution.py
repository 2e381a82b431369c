"""How long a training step takes and what limits it, measured after the training on a scratch copy of the network.

results/measurements.py defines each figure. The step is the trainer's own: it calls a gradient scaler before the
backward pass and before the optimizer, so a scaler that reads the clock sees each part end. Loading batches without
steps shows whether an epoch waits for its input. Steps with two batch sizes, in turn, show how much of a step's time is
fixed.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple

import torch

from photofinish.config.experiment import ConstantSchedule, ResidentInput
from photofinish.machine.memory import available_memory_bytes
from photofinish.profiling.scratch import WARM_UP_STEPS, is_awake, scratch_copy, scratch_steps
from photofinish.results.measurements import SteadyState, StepBreakdown, StepParts
from photofinish.training.batches import Batches
from photofinish.training.steps import Steps, steps_per_graph
from photofinish.training.torch_device import free_memory_bytes, has_fast_bf16, is_accelerator, memory_format
from photofinish.training.trainer import Trainer

_SAMPLES = 10
_LEAST_SAMPLES = 5
"""enough for an interval"""
_MOST_STEPS_A_SAMPLE = 50
_SAMPLES_SECONDS = 0.5
_SLOW_SAMPLES_SECONDS = 1.0
_SAMPLES_SHARE = 0.02
"""of the training's time"""
_MOST_SHARE = 0.01
"""of the training's time, for each of two passes over batches"""
_LEAST_SECONDS = 0.05
_MOST_SECONDS = 1.0
_MOST_STEPS = 100
_ENOUGH_STEPS = 5
_LEAST_STEPS = 2
_LEAST_STEPS_A_WORKER = 4
"""several rounds, because the first batches of all workers come at once"""
_TIMES_LARGER = (8, 4, 2)
"""for the second batch size: the largest that leaves an epoch enough steps to learn by"""
LEAST_STEPS_AN_EPOCH = 4
_READINGS = 10
"""of the clock, to measure what one takes"""
_FEW_IMAGES = 2
"""Not one, which BatchNorm refuses, and which convolutions compute in another way, in half the time of two."""
_BYTES_AN_IMAGE_BYTE = 1000
"""a generous bound on what a step saves for its backward pass: a few hundred for ResNet-50"""


@dataclass(frozen=True)
class SamplePlan:
    """Number of samples, and of steps in each."""

    samples: int
    steps: int


def plan_samples(step_seconds: float, training_seconds: float) -> SamplePlan:
    """Plan samples that take 2 % of the training's time, and half a second at most.

    Slow steps may take a second, for enough samples for an interval. Of still slower ones, a second's worth is taken.
    """
    allowed_seconds = _SAMPLES_SHARE * training_seconds
    seconds = min(_SAMPLES_SECONDS, max(_LEAST_SECONDS, allowed_seconds))
    steps = int(seconds / step_seconds)
    if steps >= _SAMPLES:
        return SamplePlan(_SAMPLES, min(_MOST_STEPS_A_SAMPLE, steps // _SAMPLES))
    slow_seconds = max(_SLOW_SAMPLES_SECONDS, allowed_seconds)
    return SamplePlan(max(1, steps, min(_LEAST_SAMPLES, int(slow_seconds / step_seconds))), 1)


def measure_steps(trainer: Trainer, plan: SamplePlan, layout: torch.memory_format | None = None) -> SteadyState:
    """Time steps on the first batch, in any memory format."""
    return measure_by_turns(trainer, plan, layout=layout)[0]


def measure_by_turns(
    trainer: Trainer, plan: SamplePlan, *other_images: int, layout: torch.memory_format | None = None
) -> list[SteadyState]:
    """Time steps on the batch and on batches of other sizes in turn, so that a slow spell of the machine hits all."""
    with scratch_steps(trainer, *other_images, layout=layout, at_once=plan.steps) as all_steps:
        seconds: list[list[float]] = [[] for _ in all_steps]
        started_seconds = trainer.clock.now_seconds()
        for steps in all_steps:
            for _ in range(-(-WARM_UP_STEPS // plan.steps)):
                steps()
        while not is_awake(trainer, started_seconds):
            for steps in all_steps:
                steps()
        for _ in range(plan.samples):
            for steps, taken in zip(all_steps, seconds, strict=True):
                started_seconds = trainer.clock.now_seconds()
                steps()
                taken.append(trainer.clock.now_seconds() - started_seconds)
    return [SteadyState(steps_per_sample=plan.steps, sample_seconds=tuple(taken)) for taken in seconds]


@dataclass(frozen=True)
class AttributionPlan:
    """Amount of what `attribute` measures."""

    steps: int
    """of one epoch, from its first step on"""
    other_batch_images: int
    samples: SamplePlan
    """of steps on the batch and on the other batch, in turn"""
    tries_bf16: bool


def plan_attribution(
    trainer: Trainer, step_seconds: float, training_seconds: float, *, most_images: int
) -> AttributionPlan:
    """Plan for 1 % of the training's time, and a second at most. `most_images` surely fit into memory in a step."""
    settings, batch_images, devices = trainer.experiment.input, trainer.training.batch_size, trainer.team.device_count
    workers = settings.workers if settings.name == "loader" else 0
    share_seconds = max(_LEAST_SECONDS, _MOST_SHARE * training_seconds)
    steps = int(min(_MOST_SECONDS, share_seconds) / step_seconds)
    slow_steps = min(_ENOUGH_STEPS, int(max(_MOST_SECONDS, share_seconds) / step_seconds))
    steps = max(_LEAST_STEPS + _LEAST_STEPS_A_WORKER * workers, slow_steps, min(_MOST_STEPS, steps))
    most_images = min(most_images, trainer.training.image_count // LEAST_STEPS_AN_EPOCH)
    most_times = min(most_images / batch_images, _MOST_SECONDS / step_seconds)
    larger = [times * batch_images for times in _TIMES_LARGER if times <= most_times]
    images = larger[0] if larger else min(_FEW_IMAGES * devices, batch_images)
    samples = plan_samples(step_seconds * (1 + images / batch_images), training_seconds)
    if trainer.device.type == "cpu":  # short samples are likelier to be undisturbed
        samples = SamplePlan(samples.samples * samples.steps, 1)
    # DataParallel's threads don't inherit autocast.
    tries_bf16 = devices == 1 and trainer.experiment.precision in ("fp32", "tf32") and has_fast_bf16(trainer.device)
    return AttributionPlan(min(trainer.steps_per_epoch, steps), images, samples, tries_bf16)


def images_with_room(device: torch.device, image_bytes: int) -> int:
    """Return how many images surely fit into memory in a step."""
    free_bytes = available_memory_bytes() if device.type == "cpu" else free_memory_bytes(device) or 0
    return free_bytes // (_BYTES_AN_IMAGE_BYTE * image_bytes)


def profile_step(trainer: Trainer, plan: AttributionPlan, resident: Batches | None = None) -> StepBreakdown:
    """Measure where a step's time goes. `resident` are the batches with `input: resident`, if that is another input."""
    same_batch, other_batch = measure_by_turns(trainer, plan.samples, plan.other_batch_images)
    return StepBreakdown(
        parts=_measure_parts(trainer, plan.steps),
        batch_alone_seconds=measure_batches_alone(trainer, plan.steps),
        other_batch_images=plan.other_batch_images,
        same_batch=same_batch,
        other_batch=other_batch,
        launch_seconds=_measure_issuing(trainer, plan.steps),
        bf16=measure_bf16(trainer, plan.samples) if plan.tries_bf16 else None,
        resident=_measure_resident(trainer, resident, plan.steps) if resident else None,
    )


def measure_bf16(trainer: Trainer, plan: SamplePlan) -> SteadyState:
    """Time steps on the batch in bfloat16, in the memory format that such a training has."""
    layout = memory_format(trainer.network, trainer.device, "bf16")
    # A real step casts each weight again, but autocast's cache would live as long as this block.
    with torch.autocast(trainer.device.type, torch.bfloat16, cache_enabled=False):
        return measure_steps(trainer, plan, layout)


def _measure_resident(trainer: Trainer, resident: Batches, count: int) -> SteadyState:
    """Time about so many steps with their batches, as a training takes them whose images lie on the device."""
    twin = copy.copy(trainer)
    twin.training = resident
    other = {"input": ResidentInput(name="resident"), "schedule": ConstantSchedule()}  # others end
    twin.experiment = trainer.experiment.model_copy(update=other)
    at_once, whole = 1, resident.image_count // resident.batch_size
    if trainer.steps.kind == "graph":
        at_once = min(steps_per_graph(twin), max(1, count // _LEAST_SAMPLES))
    with scratch_copy(twin) as state:
        steps = copy.copy(trainer.steps)
        steps.release()
        steps.at_once = at_once
        try:
            steps.capture(twin, state)
        except RuntimeError as error:
            trainer.steps.note_failure(error)
            steps, at_once = Steps(), 1
        # Of each epoch, no step on a smaller batch and none that is left over.
        full = max(1, whole // at_once)
        epochs = (islice(twin.take_steps(steps, state, epoch), full) for epoch in itertools.count())
        taken, ends = chain.from_iterable(epochs), []
        for _losses in islice(taken, WARM_UP_STEPS):
            pass
        ends.append(trainer.clock.now_seconds())
        for _losses in islice(taken, max(_LEAST_SAMPLES, count // at_once) if at_once > 1 else count):
            ends.append(trainer.clock.now_seconds())
    return SteadyState(steps_per_sample=at_once, sample_seconds=tuple(end - start for start, end in pairwise(ends)))


def _measure_parts(trainer: Trainer, steps: int) -> StepParts:
    training, timer = trainer.training, _timer(trainer)
    ends: list[Any] = []
    with scratch_copy(trainer) as own_state:
        scaler = _WatchingScaler(trainer, lambda: ends.append(timer.now()))
        state = own_state._replace(scaler=scaler)
        first = next(iter(training.train_batches(0)))
        for _ in range(WARM_UP_STEPS):
            trainer.step(state, 0, first)
        unplaced = training.host_batches(0)
        ends[:] = [timer.now()]
        for number in range(steps):
            batch = next(unplaced)
            ends.append(timer.now())
            placed = training.to_device(batch)
            ends.append(timer.now())
            trainer.step(state, number, placed)
            state.schedule.batch_ended()
            ends.append(timer.now())
    trainer.clock.now_seconds()  # waits for the device
    seconds = [timer.seconds(start, end) for start, end in pairwise(ends)]
    names = list(StepParts.model_fields)  # in a step's order
    parts = {name: tuple(seconds[number :: len(names)]) for number, name in enumerate(names)}
    if is_accelerator(trainer.device):
        parts["waiting_seconds"] = measure_batches_alone(trainer, steps)
        parts["copying_seconds"] = (_measure_copying(trainer, steps),)
    return StepParts(**parts)


class _Timer(NamedTuple):
    """Marks when a part of a step ends, and measures between two marks."""

    now: Callable[[], Any]
    seconds: Callable[[Any, Any], float]


def _timer(trainer: Trainer) -> _Timer:
    """Return a timer by the device's events, for which the host doesn't wait, or else by the clock."""

    def mark() -> torch.Event:
        made = torch.Event(trainer.device, enable_timing=True)
        made.record()
        return made

    try:
        start, end = mark(), mark()
        trainer.clock.now_seconds()
        start.elapsed_time(end)
    except RuntimeError:
        reading_seconds = _reading_seconds(trainer) if is_accelerator(trainer.device) else 0.0
        return _Timer(trainer.clock.now_seconds, lambda start, end: max(0.0, end - start - reading_seconds))
    return _Timer(mark, lambda start, end: start.elapsed_time(end) / 1000)


def _reading_seconds(trainer: Trainer) -> float:
    """Return how long reading the clock takes, with nothing to wait for."""
    ends = [trainer.clock.now_seconds() for _ in range(_READINGS)]
    return min(end - start for start, end in pairwise(ends))


class _WatchingScaler(torch.amp.GradScaler):
    """A gradient scaler that reports the ends of the forward pass, the backward pass and the optimizer."""

    def __init__(self, trainer: Trainer, part_ended: Callable[[], None]) -> None:
        super().__init__(trainer.device.type, enabled=trainer.state.scaler.is_enabled())
        self._part_ended = part_ended

    def scale(self, outputs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # one tensor, no nest of them
        """Called after the forward pass."""
        self._part_ended()
        return super().scale(outputs)

    def step(self, optimizer: torch.optim.Optimizer) -> float | None:
        """Called after the backward pass."""
        self._part_ended()
        return super().step(optimizer)

    def update(self) -> None:  # type: ignore[override]
        """Called last in a step."""
        super().update()
        self._part_ended()


def measure_batches_alone(trainer: Trainer, steps: int) -> tuple[float, ...]:
    """Time loading batches without steps: each one, or on an accelerator their mean, as the clock waits only once.

    Resident batches make an epoch's order in the call, before the first is timed.
    """
    clock = trainer.clock
    if not is_accelerator(trainer.device):
        ends = [clock.now_seconds()]
        for _batch in islice(trainer.training.host_batches(0), steps):
            ends.append(clock.now_seconds())
        return tuple(end - start for start, end in pairwise(ends))
    batches = trainer.training.host_batches(0, trainer.steps.at_once)
    fetched, started_seconds = 0, clock.now_seconds()
    for _images, labels in batches:
        fetched += -(-len(labels) // trainer.training.batch_size)
        if fetched >= steps:
            break
    return (_for_each(trainer, started_seconds, fetched),)


def _measure_copying(trainer: Trainer, steps: int) -> float:
    """Return the mean time of copying one batch to the device, as the training does."""
    batch = next(iter(trainer.training.host_batches(0)))
    started_seconds = trainer.clock.now_seconds()
    for _ in range(steps):
        trainer.training.to_device(batch)
    return _for_each(trainer, started_seconds, steps)


def _for_each(trainer: Trainer, started_seconds: float, count: int) -> float:
    seconds = trainer.clock.now_seconds() - started_seconds - _reading_seconds(trainer)
    return max(0.0, seconds) / count


def _measure_issuing(trainer: Trainer, steps: int) -> tuple[float, ...]:
    """Return how long the host takes to launch a step, or nothing on the CPU or with captured steps.

    The device is idle before each step: after many, the host would wait for room in the device's queue.
    """
    seconds: list[float] = []
    if not is_accelerator(trainer.device) or trainer.steps.kind == "graph":
        return ()
    with scratch_steps(trainer) as (step,):
        for _ in range(WARM_UP_STEPS):
            step()
        for _ in range(steps):
            started_seconds = trainer.clock.now_seconds()
            step()
            seconds.append(trainer.clock.host_seconds() - started_seconds)
    return tuple(seconds)
