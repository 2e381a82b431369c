"""Budget of each measurement, and steps that are timed in turns with changed ones.

A machine that is slow for a while is slow for all of them. The base is a step on one batch, or with
its input, and it is timed nowhere else.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from photofinish.config.experiment import Schedule
from photofinish.nested import samples_in
from photofinish.results.measurements import SteadyState
from photofinish.training.batches import map_batch
from photofinish.training.state import TrainState
from photofinish.training.torch_device import CPU
from photofinish.training.trainer import Trainer
from photofinish.training.warm_up import WARM_UP_STEPS

LEAST_TURNS, FEWEST_TURNS = 5, 3
"""Enough turns for an interval, and turns that must fit to try a change, by hand."""
LATE_SECONDS = 1.0
"""Time, by hand, by which a block may be late for the sake of these turns."""
_LONG_JOB_SECONDS = 600.0
_LONG_SECONDS, _SHORT_SECONDS = 15.0, 5.0
"""Longest measurement of a job of over ten minutes, which can spare it, and of a shorter one.

By hand, as are the shares below. In five seconds, steps of 0.3 s are too few for a cause.
"""
_LEAST_SECONDS = 1.5
"""Shortest measurement: a job of one epoch says enough about the same job with more."""
_LONG_STEP_SECONDS = 0.1
"""Steps above this time, by hand, start threads within them, and need a single one to warm up."""
Context = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Budget:
    """Seconds of each measurement. All may take 3 s more, on an accelerator for each change."""

    whole_seconds: float
    parts_seconds: float
    """Parts of the training, with validation."""
    turns_seconds: float
    """A block of turns on one batch."""
    other_step_seconds: float
    """Longest step of another batch in that block."""
    apart_seconds: float
    """Steps that are taken apart."""
    loader_seconds: float
    """All measurements of a loader, of which the following are parts."""
    alone_seconds: float
    workers_seconds: float
    """Time after which no further number of workers is tried."""
    stored_seconds: float
    """Reading samples to store."""

    @classmethod
    def of(
        cls,
        job_seconds: float,
        most_seconds: float | None = None,
        *,
        in_one_block: bool = True,
    ) -> Budget:
        """Return the seconds for a job: a fifth of its time, from 1.5 s to `most_seconds`.

        `in_one_block` is True if all changes of a step take turns in one block, as on a CPU.
        """
        if most_seconds is None:
            is_long = job_seconds > _LONG_JOB_SECONDS
            most_seconds = _LONG_SECONDS if is_long else _SHORT_SECONDS
        whole = min(most_seconds, max(_LEAST_SECONDS, 0.2 * job_seconds))
        loader = min(10.0, max(0.5, 0.3 * whole))
        return cls(
            whole_seconds=whole,
            parts_seconds=0.35 * whole,
            turns_seconds=min(6.0, 0.25 * whole) if in_one_block else min(2.5, 0.1 * whole),
            other_step_seconds=min(1.0, 0.15 * whole),
            apart_seconds=min(1.5, 0.1 * whole),
            loader_seconds=loader,
            alone_seconds=0.25 * loader,
            workers_seconds=0.375 * loader,
            stored_seconds=0.1 * loader,
        )


class Way(NamedTuple):
    """Function that takes the steps of a sample."""

    take: Callable[[], object]
    steps: int
    context: Context = nullcontext
    settle: Callable[[], object] = lambda: None
    """Function that takes steps after another way's, which are not timed."""
    warm_up_steps: int = WARM_UP_STEPS


def turns(
    trainer: Trainer, base: Way, others: Sequence[Way], seconds: float, most: int
) -> tuple[SteadyState, list[SteadyState]]:
    """Time a sample of each way in each of up to `most` turns, for about so many seconds.

    The next turn has the reverse order. There is one turn at least. Warming up comes on top.
    """
    clock, ways = trainer.clock, [base, *others]
    times = {way: list[tuple[float, float]]() for way in ways}
    last = None

    def take(way: Way) -> tuple[float, float]:
        """Return the time of a sample, and this thread's CPU time."""
        nonlocal last
        with way.context():
            if way is not last:
                way.settle()
            last = way
            began_seconds = clock.now_seconds()
            began_cpu_seconds = time.thread_time()
            way.take()
            return clock.now_seconds() - began_seconds, time.thread_time() - began_cpu_seconds

    started_seconds = clock.now_seconds()
    for way in ways:
        for _ in range(-(-way.warm_up_steps // way.steps)):
            take(way)
    while not trainer.is_awake(started_seconds):
        for way in ways:
            take(way)
    started_seconds = clock.now_seconds()
    for turn in range(1, most + 1):
        began_seconds = clock.now_seconds()
        for way in reversed(ways) if turn % 2 else ways:
            times[way].append(take(way))
        now_seconds = clock.now_seconds()
        next_ends_seconds = now_seconds + (now_seconds - began_seconds)
        late_seconds = LATE_SECONDS if turn < LEAST_TURNS else 0.0
        is_over = next_ends_seconds >= started_seconds + seconds + late_seconds
        if trainer.team.broadcast_object(is_over):
            break
    states = []
    for way in ways:
        sample_seconds, cpu_seconds = zip(*times[way], strict=True)
        state = SteadyState(steps_per_sample=way.steps, sample_seconds=sample_seconds)
        if trainer.device == CPU and trainer.team.size == 1:
            state = state.model_copy(update={"cpu_seconds": cpu_seconds})
        states.append(state)
    return states[0], states[1:]


@contextmanager
def scratch_steps(
    trainer: Trainer,
    *other_images: int,
    layout: torch.memory_format | None = None,
    at_once: int = 1,
) -> Iterator[list[Callable[[], object]]]:
    """Yield functions that each take `at_once` steps, captured if the training's steps are.

    The first function steps on the first batch, the others on batches of other sizes, made of its
    images. All functions train one scratch copy.
    """
    first = trainer.training.first()
    batches = [first]
    for images in other_images:
        rows = torch.arange(images) % samples_in(first[1])
        batches.append(map_batch(lambda part: part[rows.to(part.device)], first))  # noqa: B023
    with trainer.scratch_copy(layout) as state:
        yield [trainer.steps.repeat(state, batch, at_once) for batch in batches]


@contextmanager
def scratch_state(trainer: Trainer) -> Iterator[TrainState]:
    """Yield a fresh state for any number of steps. Other schedules end after the planned steps."""
    twin = copy.copy(trainer)
    twin.experiment = trainer.experiment.model_copy(update={"schedule": Schedule()})
    with twin.scratch_copy() as state:
        yield state


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Set torch's number of threads, and restore it."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(threads)


def ways_of_threads(
    trainer: Trainer, own: Callable[[], object], step_seconds: float, most_seconds: float
) -> dict[int, Way]:
    """Return the step with the training's threads, and with half of them and one if they fit.

    Steps with fewer threads may take `most_seconds` in a turn, as a trial shows. OpenMP's threads
    spin while they wait for each other, so other programs may make a step many times slower. A
    single thread does not spin, so its CPU time is the work of a step.
    """
    threads = awake = torch.get_num_threads()

    def settle() -> None:
        nonlocal awake
        if awake != torch.get_num_threads() and step_seconds < _LONG_STEP_SECONDS:
            own()
        awake = torch.get_num_threads()

    warm_up_steps = WARM_UP_STEPS if step_seconds < _LONG_STEP_SECONDS else 1
    ways = {threads: Way(own, 1, settle=settle, warm_up_steps=warm_up_steps)}
    timed_threads, timed_seconds = threads, step_seconds
    for fewer in dict.fromkeys((threads // 2, 1)):
        if not 0 < fewer < threads or timed_seconds * timed_threads / fewer > LATE_SECONDS:
            continue
        context = partial(with_threads, fewer)
        began_seconds = trainer.clock.now_seconds()
        with context():
            settle()
            own()
        timed_threads = fewer
        timed_seconds = trainer.clock.now_seconds() - began_seconds
        if timed_seconds <= most_seconds:
            most_seconds -= timed_seconds
            ways[fewer] = Way(own, 1, context, settle, warm_up_steps=0)
    return ways
