"""Measure how long a training step takes and what limits it, on a copy of the network.

results/measurements.py defines each figure. Steps with two batch sizes, in turns, show how much of
a step's time is fixed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

import torch

from photofinish.config.cuda_graphs import why_not_captured
from photofinish.config.experiment import Experiment
from photofinish.custom.running import has_user_frame
from photofinish.errors import UserError
from photofinish.machine.host import available_memory_bytes
from photofinish.measure.in_turns import Context, Way, time_in_turns
from photofinish.measure.operations import count_operations
from photofinish.measure.scratch import scratch_steps
from photofinish.measure.step_parts import measure_launches, measure_parts
from photofinish.measure.threads import ways_of_threads
from photofinish.results.measurements import (
    InTurns,
    Operations,
    SteadyState,
    StepAttribution,
    Tried,
    TriedBy,
)
from photofinish.training.batches import bytes_of_a_sample
from photofinish.training.graphs import GraphedSteps
from photofinish.training.torch_device import (
    CPU,
    configure_torch_for,
    effective_precision,
    free_memory_bytes,
    memory_format,
    torch_restored,
)
from photofinish.training.trainer import Trainer

# By hand, where no reason stands beside it.
_SAMPLES, _LEAST_SAMPLES = 10, 5  # five are enough for an interval
_MOST_STEPS_PER_SAMPLE = 50
_SAMPLES_SHARE, _PASS_SHARE = 0.02, 0.01  # of the training's time
_LEAST_SECONDS, _SAMPLES_SECONDS, _MOST_SECONDS = 0.05, 0.5, 1.0
_MOST_STEPS, _ENOUGH_STEPS = 100, 5
_LEAST_STEPS_PER_WORKER = 4  # several rounds: the first batches of all workers come at once
_TURNS_SHARE, _MOST_TURNS_SECONDS, _LEAST_TURNS = 0.06, 2.0, 5  # on the CPU
_TIMES_LARGER = (8, 4, 2)
LEAST_STEPS_AN_EPOCH = 4  # with a larger batch, enough to learn by
_FEW_IMAGES = 2  # BatchNorm refuses one image, and convolutions compute one in another way
_BYTES_AN_IMAGE_BYTE = 1000  # upper bound of a step's saved tensors: ResNet-50 has a few hundred
_Result = TypeVar("_Result")


class Profile(NamedTuple):
    """Fields of `StepMeasurements`."""

    steady_state: SteadyState | None
    attribution: StepAttribution | None
    not_attributed: str | None
    operations: Operations | None
    not_counted: str | None
    tried_threads: dict[int, SteadyState]


def profile(trained: Trainer, step_seconds: float, training_seconds: float) -> Profile:
    """Measure the steps of a network, on copies of it. All ranks call this.

    A step of the training takes about `step_seconds`, and measuring takes a small share of
    `training_seconds`.
    """
    experiment, is_alone = trained.experiment, trained.team.size == 1
    if not is_alone or experiment.model.compile:
        why = "the network is compiled" if is_alone else "several processes train together"
        samples = trained.team.broadcast_object(plan_samples(step_seconds, training_seconds))
        return Profile(measure_steps(trained, samples)[0], None, why, None, why, {})
    plan = plan_attribution(trained, step_seconds, training_seconds, most_images=_room(trained))
    tries: tuple[int, ...] = (plan.other_batch_images,)
    attributed: tuple[StepAttribution | None, str | None]
    if experiment.accumulate > 1 or len(trained.state.optimizers) > 1:
        tries, attributed = (), (None, "a step has several forward and backward passes")
    seconds = min(_MOST_TURNS_SECONDS, _TURNS_SHARE * training_seconds)
    turns = partial(take_turns, trained, plan.samples, step_seconds, seconds)
    taken, why_not = attempt(partial(turns, *tries))
    # Without the other batch, which a network may refuse.
    own, others, threads = taken or turns()
    if taken is None:
        attributed = None, why_not
    elif tries:
        attributed = attempt(lambda: measure_attribution(trained, plan, own, *others))
    counted = attempt(lambda: count_operations(trained))
    return Profile(own, *attributed, *counted, threads)


def _room(trained: Trainer) -> int:
    """Return a number of images that is certain to fit into memory."""
    free_bytes = available_memory_bytes()
    if trained.device != CPU:
        free_bytes = free_memory_bytes(trained.device) or 0
    return free_bytes // (_BYTES_AN_IMAGE_BYTE * bytes_of_a_sample(trained.training.first()))


def take_turns(
    trainer: Trainer,
    plan: SamplePlan,
    step_seconds: float,
    seconds: float,
    *other_images: int,
) -> tuple[SteadyState, list[SteadyState], dict[int, SteadyState]]:
    """Time the step as it is, in turns with other batches, and on the CPU with fewer threads.

    On the CPU, it takes about `seconds` or five turns, and on an accelerator as long as planned.
    """
    with scratch_steps(trainer, *other_images, at_once=plan.steps) as (own, *others):
        of_threads: dict[int, Way] = {}
        first = Way(own, plan.steps)
        if trainer.device == CPU:
            of_threads = ways_of_threads(own, step_seconds)
            first = of_threads.pop(torch.get_num_threads())
        ways = [first, *(first._replace(take=steps) for steps in others)]
        turn, began_at = count(1), 0.0

        def is_over() -> bool:  # after each turn
            nonlocal began_at
            now = trainer.clock.now_seconds()
            began_at = began_at or now
            return next(turn) >= _LEAST_TURNS and now - began_at > seconds and trainer.device == CPU

        states = time_in_turns(trainer, plan.samples, *ways, *of_threads.values(), is_over=is_over)
    threads = dict(zip(of_threads, states[len(ways) :], strict=True))
    return states[0], states[1 : len(ways)], threads


def attempt(measure: Callable[[], _Result]) -> tuple[_Result | None, str | None]:
    """Return the measurement and None, or None and the first line of the error."""
    try:
        return measure(), None
    # Memory may be too small, and a network may fail under a dispatch mode or with another batch
    # size, such as batch normalization with one sample.
    except Exception as error:
        expected = isinstance(error, RuntimeError | ValueError | UserError)
        if not expected and not has_user_frame(error):
            raise
        first_line = str(error).partition("\n")[0]
        return None, f"measuring it fails ({first_line})"


@dataclass(frozen=True)
class SamplePlan:
    """Number of samples to time, and of steps in each sample."""

    samples: int
    steps: int


def plan_samples(step_seconds: float, training_seconds: float) -> SamplePlan:
    """Plan samples that take 2 % of the training's time, and at most half a second if possible."""
    seconds = min(_SAMPLES_SECONDS, max(_LEAST_SECONDS, _SAMPLES_SHARE * training_seconds))
    steps = int(seconds / step_seconds)
    samples = min(_SAMPLES, max(_LEAST_SAMPLES, steps))
    return SamplePlan(samples, min(_MOST_STEPS_PER_SAMPLE, max(1, steps // samples)))


def measure_steps(trainer: Trainer, plan: SamplePlan, *other_images: int) -> list[SteadyState]:
    """Time steps on the first batch and on batches of other sizes, in turns."""
    with scratch_steps(trainer, *other_images, at_once=plan.steps) as all_steps:
        ways = [Way(steps, plan.steps) for steps in all_steps]
        return time_in_turns(trainer, plan.samples, *ways)


@dataclass(frozen=True)
class AttributionPlan:
    steps: int
    """Number of an epoch's first steps to take apart."""
    other_batch_images: int
    samples: SamplePlan
    """Samples of steps on the batch and on the other batch, in turns."""
    tries: dict[TriedBy, dict[str, Any]]
    """Other settings to try, by their names."""


def plan_attribution(
    trainer: Trainer, step_seconds: float, training_seconds: float, *, most_images: int
) -> AttributionPlan:
    """Plan passes that each take 1 % of the training's time, and at most a second.

    `most_images` is a number of images that is certain to fit into memory.
    """
    settings, batch_images = trainer.experiment.input, trainer.training.batch_size
    devices = trainer.team.device_count
    workers = settings.workers if settings.name == "loader" else 0
    seconds = min(_MOST_SECONDS, max(_LEAST_SECONDS, _PASS_SHARE * training_seconds))
    least_steps = _ENOUGH_STEPS + _LEAST_STEPS_PER_WORKER * workers
    steps = max(least_steps, min(_MOST_STEPS, int(seconds / step_seconds)))
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
    tries: dict[TriedBy, dict[str, Any]] = {}
    if may_be_bf16 and torch.cuda.is_bf16_supported(including_emulation=False):
        tries["bf16"] = {"precision": "bf16"}
    if precision == "fp32" and effective_precision(device, "tf32") == "tf32":
        tries["tf32"] = {"precision": "tf32"}
    if is_cuda and trainer.experiment.deterministic:
        # `auto` captures deterministic steps only.
        is_captured = isinstance(trainer.steps, GraphedSteps)
        is_auto = is_captured and trainer.experiment.cuda_graphs == "auto"
        on = {"cuda_graphs": "on"} if is_auto else {}
        tries["free algorithms"] = {"deterministic": False} | on
    return AttributionPlan(min(trainer.steps_per_epoch, steps), images, samples, tries)


def measure_attribution(
    trainer: Trainer, plan: AttributionPlan, own: SteadyState, other: SteadyState
) -> StepAttribution:
    """Measure where a step's time goes, beside steps on its own and on the other batch."""
    launch_seconds = measure_launches(trainer, plan.steps)
    is_launching = min(launch_seconds, default=0.0) > min(own.step_seconds) / 2
    measured = StepAttribution(
        parts=measure_parts(trainer, plan.steps),
        other_batch_images=plan.other_batch_images,
        other_batch=other,
        launch_seconds=launch_seconds,
    )
    tried = []
    for by, changes in plan.tries.items():
        tried.append(try_settings(trainer, plan.samples, by, changes))
    if is_launching:
        # Last, as the allocator is slow after a capture that failed, before PyTorch 2.14.
        tried.append(try_captured(trainer, plan.samples))
    return measured.model_copy(update={"tried": tuple(filter(None, tried))})


def try_settings(
    trainer: Trainer, plan: SamplePlan, by: TriedBy, changes: dict[str, Any]
) -> Tried | None:
    """Try other settings, in the memory format of a training with them. Return None if it fails."""
    twin, device = _twin(trainer), trainer.device
    settings = trainer.experiment.model_copy(update=changes)
    layout = memory_format(twin.network, device, settings.precision)
    # Steps of a training in bf16 or fp16 cast by themselves.
    context = partial(_configured, settings, device, is_cast=by == "bf16")
    return _try_change(trainer, plan, twin, by, changes, layout, context)


def try_captured(trainer: Trainer, plan: SamplePlan) -> Tried | None:
    """Try captured steps if only `cuda_graphs: "on"` captures them. Return None if they fail."""
    settings, twin, changes = trainer.experiment, copy.copy(trainer), {"cuda_graphs": "on"}
    twin.experiment = settings.model_copy(update=changes)
    only_auto_refuses = why_not_captured(settings) and not why_not_captured(twin.experiment)
    if settings.cuda_graphs == "off" or not only_auto_refuses:
        return None
    try:
        twin.steps = twin.chosen_steps()
    except (RuntimeError, UserError):  # the other measurements must not be lost
        return None
    is_captured = isinstance(twin.steps, GraphedSteps)
    return _try_change(trainer, plan, twin, "captured", changes) if is_captured else None


def _twin(trainer: Trainer) -> Trainer:
    """Return a trainer whose steps note their own failures."""
    twin = copy.copy(trainer)
    if isinstance(trainer.steps, GraphedSteps):
        twin.steps = trainer.steps.resized(trainer.steps.at_once)
    return twin


def _try_change(
    trainer: Trainer,
    plan: SamplePlan,
    changed: Trainer,
    by: TriedBy,
    changes: dict[str, Any],
    layout: torch.memory_format | None = None,
    context: Context = nullcontext,
) -> Tried | None:
    """Time steps as they are and those of a changed trainer, or return None if they fail.

    Both take turns, so there are two scratch copies and pools of graphs at once.
    """
    twin = _twin(trainer)
    why = twin.steps.why, changed.steps.why
    try:
        with ExitStack() as copies:
            (own,) = copies.enter_context(scratch_steps(twin, at_once=plan.steps))
            with context():  # steps may be captured here
                others = scratch_steps(changed, layout=layout, at_once=plan.steps)
                (steps,) = copies.enter_context(others)
            ways = Way(own, plan.steps), Way(steps, plan.steps, context)
            base, tried = time_in_turns(trainer, plan.samples, *ways)
    except (RuntimeError, UserError):  # the other measurements must not be lost
        return None
    if why != (twin.steps.why, changed.steps.why):
        return None  # a capture failed, and its steps were launched one by one
    return Tried(by=by, changes=changes, turns=InTurns(base=base, changed=tried))


@contextmanager
def _configured(settings: Experiment, device: torch.device, *, is_cast: bool) -> Iterator[None]:
    """Set up torch as for these settings, and restore it."""
    # Casts of weights are cached until the outermost autocast ends, which would be a whole sample.
    cast = partial(torch.autocast, device.type, torch.bfloat16, cache_enabled=False)
    with torch_restored(), cast() if is_cast else nullcontext():
        configure_torch_for(settings, device, torch.get_num_threads())
        yield
