"""Time ways to take steps in turns: a machine that is slow for a while is slow for all of them."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, count, islice
from typing import NamedTuple

from photofinish.config.experiment import Input, Schedule
from photofinish.results.measurements import SteadyState
from photofinish.training.batches import Batches
from photofinish.training.custom_step import BatchTransform
from photofinish.training.graphs import GraphedSteps, steps_per_graph
from photofinish.training.torch_device import CPU
from photofinish.training.trainer import Trainer
from photofinish.training.warm_up import WARM_UP_STEPS

Context = Callable[[], AbstractContextManager[object]]


class Settling(NamedTuple):
    """Steps, and time, until loaders are as they are in a long training.

    A loader's workers fill their queues during another's turn, and go on in this one's.
    """

    steps: int
    seconds: float


class Way(NamedTuple):
    """Function that takes the steps of a sample."""

    take: Callable[[], object]
    steps: int
    """Number of steps in a sample."""
    context: Context = nullcontext
    settle: Callable[[], object] = lambda: None
    """Function that takes steps after another way's, which are not timed."""


def time_in_turns(
    trainer: Trainer, samples: int, *ways: Way, is_over: Callable[[], bool] = lambda: False
) -> list[SteadyState]:
    """Time so many samples of each way, or fewer if the time is over.

    Each turn has the reverse order of the one before.
    """
    clock, times = trainer.clock, {way: list[tuple[float, float]]() for way in ways}
    last = None

    def take(way: Way) -> tuple[float, float]:
        """Return the time of a sample, and this thread's CPU time."""
        nonlocal last
        with way.context():
            if way is not last:
                way.settle()
            last = way
            began_seconds, began_cpu_seconds = clock.now_seconds(), time.thread_time()
            way.take()
            return clock.now_seconds() - began_seconds, time.thread_time() - began_cpu_seconds

    started_seconds = clock.now_seconds()
    for way in ways:
        for _ in range(-(-WARM_UP_STEPS // way.steps)):
            take(way)
    while not trainer.is_awake(started_seconds):
        for way in ways:
            take(way)
    for turn in range(samples):
        for way in ways if turn % 2 else reversed(ways):
            times[way].append(take(way))
        if is_over():
            break
    states = []
    for way in ways:
        seconds, cpu_seconds = zip(*times[way], strict=True)
        state = SteadyState(steps_per_sample=way.steps, sample_seconds=seconds)
        if trainer.device == CPU and trainer.team.size == 1:
            state = state.model_copy(update={"cpu_seconds": cpu_seconds})
        states.append(state)
    return states


@contextmanager
def with_input(
    trainer: Trainer,
    batches: Batches,
    settings: Input,
    steps: int,
    settling: Settling,
    batch_transform: BatchTransform | None = None,
) -> Iterator[Way]:
    """Yield steps with the batches of an input, `steps` or more in a sample."""
    twin = copy.copy(trainer)
    twin.training, twin.steps = batches, trainer.step.with_training(batches)
    twin.batch_transform = batch_transform or trainer.batch_transform
    # Other schedules end after the planned steps.
    changed = {"input": settings, "schedule": Schedule()}
    twin.experiment = trainer.experiment.model_copy(update=changed)
    with twin.scratch_copy() as state:
        if isinstance(trainer.steps, GraphedSteps) and twin.batch_transform is None:
            most = steps_per_graph(twin.experiment, batches, trainer.network)
            twin.steps = graphed = trainer.steps.resized(min(most, steps))
            graphed.capture(state, 0, next(batches.train_batches(0, graphed.at_once)))
        at_once = twin.steps.at_once
        # Leave out samples at an epoch's end that do not fill a batch or a graph.
        whole = max(1, batches.image_count // batches.batch_size // at_once)
        passes = map(twin.train_batches, count())
        epochs = (islice(twin.take_steps(state, epoch), whole) for epoch in passes)
        taken = chain.from_iterable(epochs)

        def take(launches: int) -> None:
            for _ in range(launches):
                next(taken)

        def settle() -> None:
            ends_seconds = trainer.clock.now_seconds() + settling.seconds
            take(-(-settling.steps // at_once))
            while trainer.clock.now_seconds() < ends_seconds:
                take(1)

        launches = -(-steps // at_once)
        yield Way(lambda: take(launches), launches * at_once, settle=settle)
