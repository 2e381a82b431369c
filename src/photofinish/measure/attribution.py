"""Measure how long a training step takes and what limits it, on a copy of the network.

results/measurements.py defines each figure. Loading batches without steps shows whether an epoch
waits for its input. Steps with two batch sizes, in turns, show how much of a step's time is fixed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any, NamedTuple, TypeVar

import torch

from photofinish.config.cuda_graphs import why_not_captured
from photofinish.config.experiment import Input, ResidentInput, Schedule
from photofinish.errors import UserError
from photofinish.machine.host import available_memory_bytes
from photofinish.measure.operations import count_operations
from photofinish.measure.scratch import scratch_steps
from photofinish.measure.step_parts import (
    differences,
    measure_batches_alone,
    measure_launches,
    measure_loading_cpu,
    measure_parts,
)
from photofinish.measure.take_parts import take_steps
from photofinish.measure.threads import try_threads
from photofinish.results.measurements import Operations, SteadyState, StepAttribution, TriedThreads
from photofinish.training.batches import Batches, bytes_of_a_sample
from photofinish.training.custom_step import BatchTransform
from photofinish.training.graphs import GraphedSteps, steps_per_graph
from photofinish.training.torch_device import (
    CPU,
    configure_torch_for,
    effective_precision,
    free_memory_bytes,
    memory_format,
    torch_restored,
)
from photofinish.training.trainer import Trainer
from photofinish.training.warm_up import WARM_UP_STEPS

# By hand, where no reason stands beside it.
_SAMPLES, _LEAST_SAMPLES = 10, 5  # five are enough for an interval
_MOST_STEPS_PER_SAMPLE = 50
_SAMPLES_SHARE, _PASS_SHARE = 0.02, 0.01  # of the training's time
_LEAST_SECONDS, _SAMPLES_SECONDS, _MOST_SECONDS = 0.05, 0.5, 1.0
_MOST_STEPS, _ENOUGH_STEPS, _LEAST_STEPS = 100, 5, 2
_LEAST_STEPS_PER_WORKER = 4  # several rounds: the first batches of all workers come at once
_TIMES_LARGER = (8, 4, 2)
LEAST_STEPS_AN_EPOCH = 4  # with a larger batch, enough to learn by
_FEW_IMAGES = 2  # BatchNorm refuses one image, and convolutions compute one in another way
_BYTES_AN_IMAGE_BYTE = 1000  # upper bound of a step's saved tensors: ResNet-50 has a few hundred
RESIDENT = ResidentInput(name="resident")
_Result = TypeVar("_Result")


class Profile(NamedTuple):
    """Fields of `StepMeasurements`."""

    steady_state: SteadyState | None
    attribution: StepAttribution | None
    not_attributed: str | None
    operations: Operations | None
    not_counted: str | None
    tried_threads: tuple[TriedThreads, ...] = ()
    slow_batch_seconds: tuple[float, ...] = ()


def profile(
    trained: Trainer,
    resident_batches: Callable[[], Batches | None],
    step_seconds: float,
    training_seconds: float,
) -> Profile:
    """Measure the steps of a network, on copies of it. All ranks call this.

    A step of the training takes about `step_seconds`, and measuring takes a small share of
    `training_seconds`. `resident_batches` returns resident batches if the training uses another
    input, else None.
    """
    samples = trained.team.broadcast_object(plan_samples(step_seconds, training_seconds))
    steady_state = measure_steps(trained, samples)
    if trained.team.size > 1 or trained.experiment.model.compile:
        is_compiled = trained.team.size == 1
        why = "the network is compiled" if is_compiled else "several processes train together"
        return Profile(steady_state, None, why, None, why)
    tried: tuple[TriedThreads, ...] = ()
    if trained.device == CPU:
        most_seconds = min(_MOST_SECONDS, max(_LEAST_SECONDS, _SAMPLES_SHARE * training_seconds))
        tried = try_threads(trained, step_seconds, most_seconds)
    if trained.experiment.accumulate > 1 or len(trained.state.optimizers) > 1:
        why = "a step has several forward and backward passes"
        counted = attempt(lambda: count_operations(trained))
        return Profile(steady_state, None, why, *counted, tried)
    sample_bytes = bytes_of_a_sample(trained.training.first())
    free_bytes = available_memory_bytes()
    if trained.device != CPU:
        free_bytes = free_memory_bytes(trained.device) or 0
    room = free_bytes // (_BYTES_AN_IMAGE_BYTE * sample_bytes)
    plan = plan_attribution(trained, step_seconds, training_seconds, most_images=room)
    attributed = attempt(lambda: measure_attribution(trained, plan, resident_batches()))
    counted = attempt(lambda: count_operations(trained))
    return Profile(steady_state, *attributed, *counted, tried)


def attempt(measure: Callable[[], _Result]) -> tuple[_Result | None, str | None]:
    """Return the measurement and None, or None and the first line of the error."""
    try:
        return measure(), None
    # Memory may be too small, a custom network may fail under a dispatch mode, and a piece of a
    # collated batch may not be a valid batch.
    except (RuntimeError, UserError) as error:
        first_line = str(error).partition("\n")[0]
        return None, f"measuring it fails ({first_line})"


@dataclass(frozen=True)
class SamplePlan:
    """Number of samples to time, and of steps in each sample."""

    samples: int
    steps: int


def plan_samples(step_seconds: float, training_seconds: float) -> SamplePlan:
    """Plan samples that take 2 % of the training's time, and at most half a second.

    Slow steps may take a second, to get enough samples for an interval.
    """
    share_seconds = _SAMPLES_SHARE * training_seconds
    steps = int(min(_SAMPLES_SECONDS, max(_LEAST_SECONDS, share_seconds)) / step_seconds)
    if steps >= _SAMPLES:
        return SamplePlan(_SAMPLES, min(_MOST_STEPS_PER_SAMPLE, steps // _SAMPLES))
    slow_steps = int(max(_MOST_SECONDS, share_seconds) / step_seconds)
    return SamplePlan(max(1, steps, min(_LEAST_SAMPLES, slow_steps)), 1)


def measure_steps(
    trainer: Trainer, plan: SamplePlan, layout: torch.memory_format | None = None
) -> SteadyState:
    """Time steps on the first batch, in the memory format `layout`."""
    return measure_by_turns(trainer, plan, layout=layout)[0]


def measure_by_turns(
    trainer: Trainer,
    plan: SamplePlan,
    *other_images: int,
    layout: torch.memory_format | None = None,
) -> list[SteadyState]:
    """Time steps on the batch and on batches of other sizes, in turns.

    If the machine is slow for a while, it then affects all sizes.
    """
    clock = trainer.clock
    with scratch_steps(trainer, *other_images, layout=layout, at_once=plan.steps) as all_steps:
        seconds: list[list[float]] = [[] for _ in all_steps]
        started_seconds = clock.now_seconds()
        for steps in all_steps:
            for _ in range(math.ceil(WARM_UP_STEPS / plan.steps)):
                steps()
        while not trainer.is_awake(started_seconds):
            for steps in all_steps:
                steps()
        for _ in range(plan.samples):
            for steps, sample_seconds in zip(all_steps, seconds, strict=True):
                started_seconds = clock.now_seconds()
                steps()
                sample_seconds.append(clock.now_seconds() - started_seconds)
    return [SteadyState(steps_per_sample=plan.steps, sample_seconds=tuple(s)) for s in seconds]


@dataclass(frozen=True)
class AttributionPlan:
    steps: int
    """Number of an epoch's first steps to take apart."""
    other_batch_images: int
    samples: SamplePlan
    """Samples of steps on the batch and on the other batch, in turns."""
    tries_bf16: bool
    tries_tf32: bool = False
    tries_free: bool = False


def plan_attribution(
    trainer: Trainer, step_seconds: float, training_seconds: float, *, most_images: int
) -> AttributionPlan:
    """Plan passes that each take 1 % of the training's time, and at most a second.

    `most_images` is a number of images that is certain to fit into memory.
    """
    settings, batch_images = trainer.experiment.input, trainer.training.batch_size
    devices = trainer.team.device_count
    workers = settings.workers if settings.name == "loader" else 0
    share_seconds = max(_LEAST_SECONDS, _PASS_SHARE * training_seconds)
    steps = min(_MOST_STEPS, int(min(_MOST_SECONDS, share_seconds) / step_seconds))
    slow_steps = min(_ENOUGH_STEPS, int(max(_MOST_SECONDS, share_seconds) / step_seconds))
    steps = max(_LEAST_STEPS + _LEAST_STEPS_PER_WORKER * workers, slow_steps, steps)
    most_images = min(most_images, trainer.training.image_count // LEAST_STEPS_AN_EPOCH)
    most_times = min(most_images / batch_images, _MOST_SECONDS / step_seconds)
    larger = [times * batch_images for times in _TIMES_LARGER if times <= most_times]
    images = larger[0] if larger else min(_FEW_IMAGES * devices, batch_images)
    samples = plan_samples(step_seconds * (1 + images / batch_images), training_seconds)
    if trainer.device == CPU:  # short samples are more often undisturbed
        samples = SamplePlan(samples.samples * samples.steps, 1)
    precision, device = trainer.experiment.precision, trainer.device
    is_cuda = device.type == "cuda"
    # DataParallel's threads don't inherit autocast.
    may_be_bf16 = is_cuda and devices == 1 and precision in ("fp32", "tf32")
    tries_bf16 = may_be_bf16 and torch.cuda.is_bf16_supported(including_emulation=False)
    tries_tf32 = precision == "fp32" and effective_precision(device, "tf32") == "tf32"
    tries_free = is_cuda and trainer.experiment.deterministic
    steps = min(trainer.steps_per_epoch, steps)
    return AttributionPlan(steps, images, samples, tries_bf16, tries_tf32, tries_free)


def measure_attribution(
    trainer: Trainer, plan: AttributionPlan, resident: Batches | None = None
) -> StepAttribution:
    """Measure where a step's time goes. `resident` are resident batches, if any."""
    same_batch, other_batch = measure_by_turns(trainer, plan.samples, plan.other_batch_images)
    launch_seconds = measure_launches(trainer, plan.steps)
    is_launching = min(launch_seconds, default=0.0) > min(same_batch.step_seconds) / 2
    return StepAttribution(
        parts=measure_parts(trainer, plan.steps),
        batch_alone_seconds=measure_batches_alone(trainer, plan.steps),
        batch_alone_cpu_seconds=measure_loading_cpu(trainer, plan.steps),
        other_batch_images=plan.other_batch_images,
        same_batch=same_batch,
        other_batch=other_batch,
        launch_seconds=launch_seconds,
        bf16=measure_bf16(trainer, plan.samples) if plan.tries_bf16 else None,
        tf32=measure_with(trainer, plan.samples, precision="tf32") if plan.tries_tf32 else None,
        free=measure_with(trainer, plan.samples, deterministic=False) if plan.tries_free else None,
        resident=measure_input(trainer, resident, RESIDENT, plan.steps) if resident else None,
        # Last, as the allocator is slow after a capture that failed, before PyTorch 2.14.
        captured=measure_captured(trainer, plan.samples) if is_launching else None,
    )


def measure_bf16(trainer: Trainer, plan: SamplePlan) -> SteadyState:
    """Time steps on the batch in bfloat16, in the memory format of a training in bfloat16."""
    layout = memory_format(trainer.network, trainer.device, "bf16")
    # A real step casts each weight again, but autocast's cache would last for this whole block.
    with torch.autocast(trainer.device.type, torch.bfloat16, cache_enabled=False):
        return measure_steps(trainer, plan, layout)


def measure_with(trainer: Trainer, plan: SamplePlan, **changes: Any) -> SteadyState | None:
    """Time steps with another `precision` or `deterministic`. Return None if they fail."""
    twin = copy.copy(trainer)
    if isinstance(trainer.steps, GraphedSteps):
        twin.steps = trainer.steps.resized(trainer.steps.at_once)
        changes["cuda_graphs"] = "on"  # `auto` captures deterministic steps only
    settings = trainer.experiment.model_copy(update=changes)
    why, layout = twin.steps.why, memory_format(twin.network, twin.device, settings.precision)
    try:
        with torch_restored():
            configure_torch_for(settings, twin.device, torch.get_num_threads())
            measured = measure_steps(twin, plan, layout)
    except (RuntimeError, UserError):  # the other measurements must not be lost
        return None
    return measured if twin.steps.why == why else None


def measure_captured(trainer: Trainer, plan: SamplePlan) -> SteadyState | None:
    """Time captured steps if only `cuda_graphs: "on"` captures them, else return None."""
    settings, twin = trainer.experiment, copy.copy(trainer)
    twin.experiment = settings.model_copy(update={"cuda_graphs": "on"})
    only_auto_refuses = why_not_captured(settings) and not why_not_captured(twin.experiment)
    if settings.cuda_graphs == "off" or not only_auto_refuses:
        return None
    try:
        twin.steps = twin.chosen_steps()
        why = twin.steps.why
        measured = measure_steps(twin, plan)
    except (RuntimeError, UserError):  # the other measurements must not be lost
        return None
    is_captured = isinstance(twin.steps, GraphedSteps) and twin.steps.why == why
    return measured if is_captured else None


def measure_input(
    trainer: Trainer,
    batches: Batches,
    settings: Input,
    steps: int,
    batch_transform: BatchTransform | None = None,
    steps_per_sample: int = 1,
) -> SteadyState:
    """Time about `steps` steps with the batches of another input."""
    twin = copy.copy(trainer)
    twin.training, twin.steps = batches, trainer.step
    twin.batch_transform = batch_transform or trainer.batch_transform
    # Other schedules end after the planned steps.
    changed = {"input": settings, "schedule": Schedule()}
    twin.experiment = trainer.experiment.model_copy(update=changed)
    with twin.scratch_copy() as state:
        if isinstance(trainer.steps, GraphedSteps):
            most = steps_per_graph(twin.experiment, batches, trainer.network)
            graphed = trainer.steps.resized(min(most, max(1, steps // _LEAST_SAMPLES)))
            try:
                graphed.capture(state, 0, next(batches.train_batches(0, graphed.at_once)))
                twin.steps = graphed
            except RuntimeError as error:
                trainer.steps.note_failure(error)
        at_once = twin.steps.at_once
        samples = steps if at_once == 1 else max(_LEAST_SAMPLES, steps // at_once)
        # Leave out samples at an epoch's end that do not fill a batch or a graph.
        whole = max(1, batches.image_count // batches.batch_size // at_once)
        passes = map(twin.train_batches, count())
        epochs = (islice(take_steps(twin.steps, state, epoch), whole) for epoch in passes)
        taken = chain.from_iterable(epochs)
        for _ in range(max(WARM_UP_STEPS, steps_per_sample)):
            next(taken)
        ends = [trainer.clock.now_seconds()]
        for _ in range(samples // steps_per_sample):
            for _ in range(steps_per_sample):
                next(taken)
            ends.append(trainer.clock.now_seconds())
    return SteadyState(
        steps_per_sample=at_once * steps_per_sample, sample_seconds=differences(ends)
    )
