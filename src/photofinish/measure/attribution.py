"""Measure how long a step takes and what limits it, on a copy of the network.

results/measurements.py defines each figure. Steps with two batch sizes, in turns, show how much of
a step's time is fixed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from photofinish.config.cuda_graphs import why_not_captured
from photofinish.config.experiment import Experiment
from photofinish.custom.running import has_user_frame
from photofinish.errors import UserError
from photofinish.machine.host import available_memory_bytes
from photofinish.measure.in_turns import (
    FEWEST_TURNS,
    LATE_SECONDS,
    Budget,
    Context,
    Way,
    scratch_steps,
    turns,
    ways_of_threads,
)
from photofinish.measure.operations import count_operations
from photofinish.measure.step_parts import measure_launches, measure_parts
from photofinish.results.measurements import (
    InTurns,
    SteadyState,
    StepAttribution,
    Tried,
    TriedBy,
)
from photofinish.training.batches import bytes_of_a_sample
from photofinish.training.graphs import GraphedSteps, choose_steps
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
_MOST_TURNS, _MOST_STEPS_PER_SAMPLE = 10, 50
_MOST_STEPS, _ENOUGH_STEPS = 100, 5
_TIMES_LARGER = (8, 4, 2)
LEAST_STEPS_AN_EPOCH = 4  # with a larger batch, enough to learn by
_FEW_IMAGES = 2  # BatchNorm refuses one image, and convolutions compute one in another way
_BYTES_AN_IMAGE_BYTE = 1000  # upper bound of a step's saved tensors: ResNet-50 has a few hundred
_Result = TypeVar("_Result")


def profile(trainer: Trainer, step_seconds: float, budget: Budget) -> dict[str, Any]:
    """Measure the steps of a network, on copies of it. Return fields of `StepMeasurements`.

    All ranks call this. A step takes about `step_seconds` after the wait for its batch.
    """
    timing = partial(time_steps, trainer, step_seconds, budget.turns_seconds)
    is_alone, settings = trainer.team.size == 1, trainer.experiment
    if not is_alone or settings.model.compile:
        why = "the network is compiled" if is_alone else "several processes train together"
        return {"steady_state": timing().base, "not_attributed": why, "not_counted": why}
    timed, attribution, why_not = None, None, None
    if settings.accumulate > 1 or len(trainer.state.optimizers) > 1:
        why_not = "a step has several forward and backward passes"
    else:
        images = other_images(trainer, step_seconds, budget)
        timed, why_not = attempt(partial(timing, images))
        if timed:
            take_apart = partial(measure_attribution, trainer, timed, images, step_seconds, budget)
            attribution, why_not = attempt(take_apart)
    timed = timed or timing()  # without the other batch, which a network may refuse
    return {
        "steady_state": timed.base,
        "tried_threads": timed.threads,
        "attribution": attribution,
        "not_attributed": why_not,
        **operation_fields(trainer),
    }


def operation_fields(trainer: Trainer) -> dict[str, Any]:
    """Return the operations of a step as fields of `StepMeasurements`, or why there are none."""
    operations, why_not = attempt(partial(count_operations, trainer))
    return {"operations": operations, "not_counted": why_not}


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


def other_images(trainer: Trainer, step_seconds: float, budget: Budget) -> int:
    """Return the size of another batch: a larger one if its step is certain to fit, else a few."""
    batch_images = trainer.training.batch_size
    free_bytes = available_memory_bytes()
    if trainer.device != CPU:
        free_bytes = free_memory_bytes(trainer.device) or 0
    image_bytes = _BYTES_AN_IMAGE_BYTE * bytes_of_a_sample(trainer.training.first())
    turn_seconds = (budget.turns_seconds + LATE_SECONDS) / FEWEST_TURNS
    other_seconds = min(budget.other_step_seconds, turn_seconds - step_seconds)
    most_images = min(
        free_bytes // image_bytes,
        trainer.training.image_count // LEAST_STEPS_AN_EPOCH,
        int(other_seconds / step_seconds * batch_images),
    )
    for times in _TIMES_LARGER:
        if times * batch_images <= most_images:
            return times * batch_images
    return min(_FEW_IMAGES * trainer.team.device_count, batch_images)


class TimedSteps(NamedTuple):
    """Steps on one batch, in one block of turns."""

    base: SteadyState
    other: SteadyState | None
    threads: dict[int, SteadyState]
    """Steps with fewer threads, by their number."""


def time_steps(
    trainer: Trainer, step_seconds: float, seconds: float, images: int | None = None
) -> TimedSteps:
    """Time the step as it is, on a batch of `images` samples, and on the CPU with fewer threads."""
    batches = 1 + (images or 0) / trainer.training.batch_size
    is_alone = trainer.device == CPU and trainer.team.size == 1
    steps, most = 1, _MOST_TURNS * _MOST_STEPS_PER_SAMPLE
    if not is_alone:  # on one CPU, short samples are more often undisturbed
        steps = int(seconds / (batches * step_seconds) / _MOST_TURNS)
        steps = trainer.team.broadcast_object(max(1, min(_MOST_STEPS_PER_SAMPLE, steps)))
        most = _MOST_TURNS
    sizes = () if images is None else (images,)
    with scratch_steps(trainer, *sizes, at_once=steps) as (own, *other):
        base, threads = Way(own, steps), dict[int, Way]()
        if is_alone and not trainer.experiment.model.compile:
            turn_seconds = (seconds + LATE_SECONDS) / FEWEST_TURNS - batches * step_seconds
            threads = ways_of_threads(trainer, own, step_seconds, turn_seconds)
            base = threads.pop(torch.get_num_threads())
        ways = [base._replace(take=take) for take in other]
        own_state, states = turns(trainer, base, [*ways, *threads.values()], seconds, most)
    by_threads = dict(zip(threads, states[len(ways) :], strict=True))
    return TimedSteps(own_state, states[0] if ways else None, by_threads)


def measure_attribution(
    trainer: Trainer, timed: TimedSteps, images: int, step_seconds: float, budget: Budget
) -> StepAttribution:
    assert timed.other
    steps = max(_ENOUGH_STEPS, min(_MOST_STEPS, int(budget.apart_seconds / step_seconds)))
    steps = min(trainer.steps_per_epoch, steps)
    launch_seconds = measure_launches(trainer, steps)
    parts = measure_parts(trainer, steps)
    changes = changes_to_try(trainer)
    if min(launch_seconds, default=0.0) > min(timed.base.step_seconds) / 2:
        # Last, as the allocator is slow after a capture that failed, before PyTorch 2.14.
        changes["captured"] = {"cuda_graphs": "on"}
    steps_per_sample, seconds = timed.base.steps_per_sample, budget.turns_seconds
    if FEWEST_TURNS * 2 * steps_per_sample * step_seconds > seconds + LATE_SECONDS:
        changes.clear()
    beside = partial(try_change, trainer, steps_per_sample, seconds)
    tried = [beside(by, change) for by, change in changes.items()]
    return StepAttribution(
        parts=parts,
        other_batch_images=images,
        other_batch=timed.other,
        launch_seconds=launch_seconds,
        tried=tuple(filter(None, tried)),
    )


def changes_to_try(trainer: Trainer) -> dict[TriedBy, dict[str, Any]]:
    """Return settings that the accelerator has and the training does not use."""
    experiment, device = trainer.experiment, trainer.device
    is_cuda = device.type == "cuda"
    # DataParallel's threads don't inherit autocast.
    may_be_bf16 = is_cuda and trainer.team.device_count == 1
    may_be_bf16 = may_be_bf16 and experiment.precision in ("fp32", "tf32")
    changes: dict[TriedBy, dict[str, Any]] = {}
    if may_be_bf16 and torch.cuda.is_bf16_supported(including_emulation=False):
        changes["bf16"] = {"precision": "bf16"}
    if experiment.precision == "fp32" and effective_precision(device, "tf32") == "tf32":
        changes["tf32"] = {"precision": "tf32"}
    if is_cuda and experiment.deterministic:
        # `auto` captures deterministic steps only.
        is_captured = isinstance(trainer.steps, GraphedSteps)
        is_auto = is_captured and experiment.cuda_graphs == "auto"
        on = {"cuda_graphs": "on"} if is_auto else {}
        changes["free algorithms"] = {"deterministic": False} | on
    return changes


def try_change(
    trainer: Trainer, steps: int, seconds: float, by: TriedBy, changes: dict[str, Any]
) -> Tried | None:
    """Time samples of `steps` steps beside those of a training with other settings.

    Return None if they fail. With the other settings come their memory format and their captured
    steps. On an accelerator, at most two scratch copies and pools of graphs fit at once, so the
    base takes turns with each change.
    """
    settings = trainer.experiment.model_copy(update=changes)
    device = trainer.device
    own, changed = _twin(trainer), _twin(trainer)
    # Steps of a training in bf16 or fp16 cast by themselves.
    context: Context = partial(_configured, settings, device, is_cast=by == "bf16")
    layout: torch.memory_format | None
    layout = memory_format(changed.network, device, settings.precision)
    try:
        if by == "captured":
            context, layout = nullcontext, None
            is_off = trainer.experiment.cuda_graphs == "off"
            is_refused = why_not_captured(settings)
            if is_off or is_refused or not why_not_captured(trainer.experiment):
                return None  # not only `auto` refuses to capture the steps
            changed.experiment = settings
            changed.steps = choose_steps(changed)
            if not isinstance(changed.steps, GraphedSteps):
                return None
        why = own.steps.why, changed.steps.why
        with ExitStack() as copies:
            (take,) = copies.enter_context(scratch_steps(own, at_once=steps))
            with context():  # steps may be captured here
                scratch = scratch_steps(changed, layout=layout, at_once=steps)
                (take_changed,) = copies.enter_context(scratch)
            others = [Way(take_changed, steps, context)]
            base, (tried,) = turns(trainer, Way(take, steps), others, seconds, _MOST_TURNS)
    except (RuntimeError, UserError):  # the other measurements must not be lost
        return None
    if why != (own.steps.why, changed.steps.why):
        return None  # a capture failed, and its steps were launched one by one
    return Tried(by=by, changes=changes, turns=InTurns(base=base, changed=tried))


def _twin(trainer: Trainer) -> Trainer:
    """Return a trainer whose steps note their own failures."""
    twin = copy.copy(trainer)
    if isinstance(trainer.steps, GraphedSteps):
        twin.steps = trainer.steps.resized(trainer.steps.at_once)
    return twin


@contextmanager
def _configured(
    settings: Experiment,
    device: torch.device,
    *,
    is_cast: bool,
) -> Iterator[None]:
    """Set up torch as for these settings, and restore it."""
    # Casts of weights are cached until the outermost autocast ends, which would be a whole sample.
    cast = partial(torch.autocast, device.type, torch.bfloat16, cache_enabled=False)
    with torch_restored(), cast() if is_cast else nullcontext():
        configure_torch_for(settings, device, torch.get_num_threads())
        yield
