"""How long a training step takes, where that time goes, and what keeps it from being shorter: taken after the training,
on a copy of the network. What each figure is of is told where it is kept, in results/measurements.py.

A clock that waits for a device after each part makes the whole step slower where the device works ahead: then the parts
are for comparing with each other. Batches are timed many at once, as the steps are that they are held against. The step
is the trainer's own, which hands its loss to a scaler before the backward pass and its optimiser after it: a scaler
that looks at the clock sees each part end.

What the input path alone takes, with no step between, says whether it or the step is what an epoch waits for, whether
or not worker processes load ahead. A step with another number of images, by turns with one on the batch, tells what
takes its time: each image, or being a step at all.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple

import torch

from photofinish.machine.memory import available_memory_bytes
from photofinish.measuring.rehearsal import WARM_UP_STEPS, is_awake, scratch_copy, scratch_steps
from photofinish.params.experiment import ConstantSchedule, ResidentInput
from photofinish.results.measurements import Attribution, SteadyState, StepParts
from photofinish.training.batches import Batches
from photofinish.training.steps import Steps, steps_per_graph
from photofinish.training.torch_device import free_memory_bytes, has_fast_bf16, is_accelerator, memory_format
from photofinish.training.trainer import Trainer

_SAMPLES = 10
_LEAST_SAMPLES = 5
"""for an interval"""
_MOST_STEPS_A_SAMPLE = 50
_SAMPLES_SECONDS = 0.5
_SLOW_SAMPLES_SECONDS = 1.0
_SAMPLES_SHARE = 0.02
"""of the training's time"""
_MOST_SHARE = 0.01
"""of the training's time, for each of two passes"""
_LEAST_SECONDS = 0.05
_MOST_SECONDS = 1.0
_MOST_STEPS = 100
_ENOUGH_STEPS = 5
_LEAST_STEPS = 2
_LEAST_STEPS_A_WORKER = 4
"""the first batches of several workers come all at once; only several rounds of them tell how fast they are"""
_TIMES_LARGER = (8, 4, 2)
"""a batch to hold against the training's own: the largest of these that leaves an epoch enough steps to learn by"""
LEAST_STEPS_AN_EPOCH = 4
_READINGS = 10
"""of the clock, to know what one takes"""
_FEW_IMAGES = 2
"""Not one: that can't be normalised over its batch, and convolutions have a way of their own for it, which took half
the time of two where it was tried."""
_BYTES_AN_IMAGE_BYTE = 1000
"""that a step keeps for its backward pass, generously: a few hundred for ResNet-50"""


@dataclass(frozen=True)
class SamplePlan:
    """How often steps are timed, and how many at once."""

    samples: int
    steps: int


def plan_samples(step_seconds: float, training_seconds: float) -> SamplePlan:
    """So many samples of so many steps as fit into the time there is: 2 % of the training, and half a second at most.

    Slow steps may take longer than that half second, if there are just enough samples for an interval; of those that
    are too slow for that, as many are taken as a second holds.
    """
    allowed_seconds = _SAMPLES_SHARE * training_seconds
    seconds = min(_SAMPLES_SECONDS, max(_LEAST_SECONDS, allowed_seconds))
    steps = int(seconds / step_seconds)
    if steps >= _SAMPLES:
        return SamplePlan(_SAMPLES, min(_MOST_STEPS_A_SAMPLE, steps // _SAMPLES))
    slow_seconds = max(_SLOW_SAMPLES_SECONDS, allowed_seconds)
    return SamplePlan(max(1, steps, min(_LEAST_SAMPLES, int(slow_seconds / step_seconds))), 1)


def measure_steps(trainer: Trainer, plan: SamplePlan, layout: torch.memory_format | None = None) -> SteadyState:
    """Steps on the first batch, in the training's own order of memory or another."""
    return measure_by_turns(trainer, plan, layout=layout)[0]


def measure_by_turns(
    trainer: Trainer, plan: SamplePlan, *other_images: int, layout: torch.memory_format | None = None
) -> list[SteadyState]:
    """Of the batch, and of batches of so many other images: a sample of each in turn, so that a slow spell of the
    machine is no more in the one than in the other."""
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
    """What is measured, and how much of it."""

    steps: int
    """of one epoch, from its first on"""
    other_batch_images: int
    samples: SamplePlan
    """of steps on the batch and on so many images, in turn"""
    tries_bf16: bool


def plan_attribution(
    trainer: Trainer, step_seconds: float, training_seconds: float, *, most_images: int
) -> AttributionPlan:
    """As many steps as fit into 1 % of the training, and a second at most; of slow ones enough, if a second holds them.

    `most_images` is how many there is surely memory for in a step.
    """
    settings, batch_images, devices = trainer.experiment.input, trainer.training.batch_size, trainer.team.device_count
    workers = settings.workers if settings.name == "loader" else 0
    share_seconds = max(_LEAST_SECONDS, _MOST_SHARE * training_seconds)
    steps = int(min(_MOST_SECONDS, share_seconds) / step_seconds)
    slow_steps = min(_ENOUGH_STEPS, int(max(_MOST_SECONDS, share_seconds) / step_seconds))
    steps = max(_LEAST_STEPS + _LEAST_STEPS_A_WORKER * workers, slow_steps, min(_MOST_STEPS, steps))
    # The same number, which tells nothing, where a batch of one can't be any larger.
    most_images = min(most_images, trainer.training.image_count // LEAST_STEPS_AN_EPOCH)
    most_times = min(most_images / batch_images, _MOST_SECONDS / step_seconds)
    larger = [times * batch_images for times in _TIMES_LARGER if times <= most_times]
    images = larger[0] if larger else min(_FEW_IMAGES * devices, batch_images)
    samples = plan_samples(step_seconds * (1 + images / batch_images), training_seconds)
    if trainer.device.type == "cpu":  # which does nothing ahead: the shorter a sample, the likelier it is undisturbed
        samples = SamplePlan(samples.samples * samples.steps, 1)
    # Not where one process works on several devices: its threads would not hear of autocast.
    tries_bf16 = devices == 1 and trainer.experiment.precision in ("fp32", "tf32") and has_fast_bf16(trainer.device)
    return AttributionPlan(min(trainer.steps_per_epoch, steps), images, samples, tries_bf16)


def images_with_room(device: torch.device, image_bytes: int) -> int:
    """How many images a step may take without a doubt that it runs out of memory, which would cost a result."""
    free_bytes = available_memory_bytes() if device.type == "cpu" else free_memory_bytes(device) or 0
    return free_bytes // (_BYTES_AN_IMAGE_BYTE * image_bytes)


def attribute(trainer: Trainer, plan: AttributionPlan, resident: Batches | None = None) -> Attribution:
    """Where the trainer's steps go; `resident` are its batches from images on the device, if they come another way."""
    same_batch, other_batch = measure_by_turns(trainer, plan.samples, plan.other_batch_images)
    return Attribution(
        parts=_measure_parts(trainer, plan.steps),
        batch_alone_seconds=measure_batches_alone(trainer, plan.steps),
        other_batch_images=plan.other_batch_images,
        same_batch=same_batch,
        other_batch=other_batch,
        issuing_seconds=_measure_issuing(trainer, plan.steps),
        bf16=measure_bf16(trainer, plan.samples) if plan.tries_bf16 else None,
        resident=_measure_resident(trainer, resident, plan.steps) if resident else None,
    )


def measure_bf16(trainer: Trainer, plan: SamplePlan) -> SteadyState:
    """Steps as they are, on the whole batch, in bfloat16 and in memory as a training in it has them."""
    layout = memory_format(trainer.network, trainer.device, "bf16")
    # Without its cache, which lives as long as this block: a real step makes each weight's short copy anew.
    with torch.autocast(trainer.device.type, torch.bfloat16, cache_enabled=False):
        return measure_steps(trainer, plan, layout)


def _measure_resident(trainer: Trainer, resident: Batches, count: int) -> SteadyState:
    """Time about so many steps with their batches, as a training takes them whose images lie on the device."""
    twin = copy.copy(trainer)
    twin.training = resident
    other = {"input": ResidentInput(name="resident"), "schedule": ConstantSchedule()}  # which goes on for ever
    twin.experiment = trainer.experiment.model_copy(update=other)
    at_once, whole = 1, resident.image_count // resident.batch_size
    if trainer.steps.kind == "graph":
        at_once = min(steps_per_graph(twin), max(1, count // _LEAST_SAMPLES))
    with scratch_copy(twin) as state:
        steps = trainer.steps.resized(at_once)
        try:
            steps.capture(twin, state)
        except RuntimeError as error:
            trainer.steps.note_failure(error)
            steps, at_once = Steps(), 1
        # Of each epoch, no step on a smaller batch and none that is left over.
        full = max(1, whole // at_once)
        epochs = (islice(steps.epoch(twin, state, epoch), full) for epoch in itertools.count())
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
        unplaced = training.unplaced(0)
        ends[:] = [timer.now()]
        for number in range(steps):
            batch = next(unplaced)
            ends.append(timer.now())
            placed = training.placed(batch)
            ends.append(timer.now())
            trainer.step(state, number, placed)
            state.schedule.batch_ended()
            ends.append(timer.now())
    trainer.clock.now_seconds()  # all of it is done
    seconds = [timer.seconds(start, end) for start, end in pairwise(ends)]
    names = list(StepParts.model_fields)  # in the order of a step
    parts = {name: tuple(seconds[number :: len(names)]) for number, name in enumerate(names)}
    if is_accelerator(trainer.device):
        parts["waiting_seconds"] = measure_batches_alone(trainer, steps)
        parts["copying_seconds"] = (_measure_copying(trainer, steps),)
    return StepParts(**parts)


class _Timer(NamedTuple):
    """What tells when a part of a step ended, and how long it is from one such end to another."""

    now: Callable[[], Any]
    seconds: Callable[[Any, Any], float]


def _timer(trainer: Trainer) -> _Timer:
    """By marks in the device's own queue, at which it notes the time: the host goes on as in a training. Where none
    does, by the clock, less what reading an accelerator's takes by itself."""

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
    """What it takes to read the clock, with nothing to wait for."""
    ends = [trainer.clock.now_seconds() for _ in range(_READINGS)]
    return min(end - start for start, end in pairwise(ends))


class _WatchingScaler(torch.amp.GradScaler):
    """The training's scaler, which also tells when the forward pass, the backward pass and the optimiser are done."""

    def __init__(self, trainer: Trainer, part_ended: Callable[[], None]) -> None:
        super().__init__(trainer.device.type, enabled=trainer.state.scaler.is_enabled())
        self._part_ended = part_ended

    def scale(self, outputs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # one tensor, no nest of them
        """After the forward pass."""
        self._part_ended()
        return super().scale(outputs)

    def step(self, optimizer: torch.optim.Optimizer) -> float | None:
        """After the backward pass."""
        self._part_ended()
        return super().step(optimizer)

    def update(self) -> None:  # type: ignore[override]
        """The last of the optimiser's part."""
        super().update()
        self._part_ended()


def measure_batches_alone(trainer: Trainer, steps: int) -> tuple[float, ...]:
    """Each of them, or of an accelerator their mean: the clock then waits for all at once. What the host prepares for
    an epoch is done before: it is, while the device still works on the one before."""
    clock = trainer.clock
    if not is_accelerator(trainer.device):
        ends = [clock.now_seconds()]
        for _batches in islice(trainer.steps.batches_only(trainer.training, 0), steps):
            ends.append(clock.now_seconds())
        return tuple(end - start for start, end in pairwise(ends))
    coming = trainer.steps.batches_only(trainer.training, 0)
    trainer.training.prepare(0)
    fetched, started_seconds = 0, clock.now_seconds()
    for batches in coming:
        fetched += batches
        if fetched >= steps:
            break
    return (_for_each(trainer, started_seconds, fetched),)


def _measure_copying(trainer: Trainer, steps: int) -> float:
    """The mean of copies of one batch to the device, as the training makes them."""
    batch = next(iter(trainer.training.unplaced(0)))
    started_seconds = trainer.clock.now_seconds()
    for _ in range(steps):
        trainer.training.placed(batch)
    return _for_each(trainer, started_seconds, steps)


def _for_each(trainer: Trainer, started_seconds: float, count: int) -> float:
    seconds = trainer.clock.now_seconds() - started_seconds - _reading_seconds(trainer)
    return max(0.0, seconds) / count


def _measure_issuing(trainer: Trainer, steps: int) -> tuple[float, ...]:
    """One step at a time: after many, the host would wait for room in the device's queue. Nothing where it hands out no
    operation while the device works: of recorded steps, two sizes of a batch tell what each takes whatever its size."""
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
