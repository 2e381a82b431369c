"""Try inputs that may load faster, with real steps, in turns with the input as it is."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from photofinish.config.experiment import BatchTransformSettings, Input, LoaderInput, ResidentInput
from photofinish.custom.reference import is_reference
from photofinish.machine.host import allowed_cores, available_memory_bytes, cpu_facts
from photofinish.measure import loader_times
from photofinish.measure.in_turns import FEWEST_TURNS, Budget, Way, scratch_state, turns
from photofinish.measure.loader_times import (
    LEAST_WITH_WORKERS_SECONDS,
    attempt_loading,
    seconds_left,
    timeout_until,
)
from photofinish.models.custom import generators_kept
from photofinish.nested import leaves, map_nested
from photofinish.results.measurements import CLEARLY_FASTER, InTurns, LoaderTimes, Tried, TriedBy
from photofinish.training.batches import Batches, BatchTransform, Part
from photofinish.training.graphs import GraphedSteps, steps_per_graph
from photofinish.training.input_paths import LoaderBatches, make_batches
from photofinish.training.state import TrainState
from photofinish.training.torch_device import CPU, free_memory_bytes
from photofinish.training.trainer import Trainer
from photofinish.training.warm_up import WARM_UP_STEPS

RESIDENT = ResidentInput(name="resident")
_LEAST_SHARE = 0.05
"""Share of an epoch for loading, or for starting workers, above which other inputs are tried.

By hand, as are the numbers of samples below.
"""
_TURNS, _MOST_STEPS = 10, 100
_PREFETCHED = 2
"""Batches that each worker prefetches by default."""
_STORED_SAMPLES, _STORED_BATCHES, _STORED_BYTES = 16, 8, 256 << 20
_MOST_LOADERS = 2
"""Loaders whose workers run at once in a block. More would share the cores."""


class OneInput(NamedTuple):
    settings: Input
    batches: Batches
    by: TriedBy | None = None
    """Name of the trial. None for the training's own input."""
    changes: Mapping[str, Any] = MappingProxyType({})
    """Settings that change, of the experiment and of its data set."""
    batch_transform: BatchTransform | None = None

    @property
    def workers(self) -> int:
        return self.settings.workers if isinstance(self.settings, LoaderInput) else 0

    @property
    def prefetched(self) -> int:
        factor = isinstance(self.settings, LoaderInput) and self.settings.prefetch_factor
        return self.workers * (factor or _PREFETCHED)


def measure_loader(
    trainer: Trainer,
    epoch_seconds: float,
    budget: Budget,
) -> LoaderTimes | None:
    """Measure a training's loader: a batch's time, its workers, and other inputs.

    Return None without a loader, with several processes, or if loading fails.
    """
    batches = trainer.training
    if not isinstance(batches, LoaderBatches) or trainer.team.size > 1:
        return None
    ends_seconds = time.perf_counter() + budget.loader_seconds
    cores = allowed_cores(cpu_facts())
    loading = attempt_loading(partial(loader_times.measure, batches, budget, ends_seconds, cores))
    if loading is None:
        return None
    # Now, as workers are tried with free memory.
    resident = attempt_loading(partial(resident_batches, trainer, batches, batches.dataset.part))
    tried = try_inputs(trainer, loading, epoch_seconds, budget, ends_seconds, resident)
    return loading.model_copy(update={"tried_inputs": tried})


def try_inputs(
    trainer: Trainer,
    loading: LoaderTimes,
    epoch_seconds: float,
    budget: Budget,
    ends_seconds: float,
    resident: Batches | None = None,
) -> tuple[Tried, ...]:
    """Time some steps with each input that may be faster, and as it is, until a deadline."""
    batches = trainer.training
    assert isinstance(batches, LoaderBatches)
    settings = batches.settings
    timeout = timeout_until(ends_seconds)
    listing = partial(_candidates, trainer, batches, loading, epoch_seconds, budget, timeout)
    stays = settings.model_copy(update={"persistent_workers": settings.workers > 0})
    own = OneInput(stays, batches.with_settings(stays, timeout=timeout))
    if not settings.persistent_workers:
        epoch_seconds -= loading.start_seconds_by(settings.workers)
    least_seconds = loading.whole_seconds / max(1, settings.workers)
    step_seconds = max(epoch_seconds / trainer.steps_per_epoch, least_seconds)
    candidates = attempt_loading(lambda: list(listing(resident))) or []
    tried = list[Tried]()
    # On an accelerator, each captured input holds a pool of memory.
    blocks = _blocks(own, candidates, len(candidates) if trainer.device == CPU else 1)
    del candidates  # the workers of a block end with its loaders
    while blocks:
        seconds = seconds_left(ends_seconds) * len(blocks[0]) / sum(map(len, blocks))
        block = blocks.pop(0)
        timed = try_block(trainer, own, block, step_seconds, loading, seconds)
        if not timed and len(block) > 1:  # one input that fails loses no other
            blocks[:0] = [[candidate] for candidate in block]
        tried += timed
    return tuple(tried)


def _blocks(own: OneInput, candidates: list[OneInput], most: int) -> list[list[OneInput]]:
    """Divide inputs into blocks of turns. The base returns with each."""
    blocks: list[list[OneInput]] = []
    for candidate in sorted(candidates, key=lambda candidate: candidate.workers > 0):
        inputs = _to_open(own, [*(blocks[-1] if blocks else ()), candidate])
        loaders = sum(source.workers > 0 for source in inputs)
        if not blocks or loaders > _MOST_LOADERS or len(inputs) > 1 + most:
            blocks.append([])
        blocks[-1].append(candidate)
    return blocks


def _to_open(own: OneInput, others: list[OneInput]) -> list[OneInput]:
    """Return the inputs that bring batches. Workers that only stay bring them as before."""
    return [own, *(one for one in others if one.by != "workers" or one.settings != own.settings)]


def try_block(
    trainer: Trainer,
    own: OneInput,
    others: list[OneInput],
    step_seconds: float,
    loading: LoaderTimes,
    most_seconds: float,
) -> list[Tried]:
    """Time steps with inputs in turns with the own, in about `most_seconds`.

    Return those that load, and none if a turn fails or without time for enough turns.
    """
    ends_seconds = time.perf_counter() + most_seconds
    inputs = _to_open(own, others)
    staying = [other for other in others if other not in inputs]
    refills = [source.prefetched * loading.batch_seconds_by(source.workers) for source in inputs]
    # A sample is a round of the workers, which bring their batches unevenly.
    rounds = [max(1, source.workers) for source in inputs]
    left_seconds = most_seconds - sum(refills) - len(inputs) * WARM_UP_STEPS * step_seconds
    left_seconds -= sum(loading.start_seconds_by(source.workers) for source in inputs)
    # A full queue is drained at a step's own speed, which its workers hardly slow down.
    settles = [max(0.0, sum(refills) - refill) for refill in refills]
    # The last input of a turn is the first of the next, and doesn't settle again.
    settling_seconds = sum(settles) - (settles[0] + settles[-1]) / 2
    round_seconds = sum(rounds) * step_seconds
    most_turns = min(_TURNS, int(left_seconds / (round_seconds + settling_seconds)) - 1)
    if most_turns < FEWEST_TURNS:
        return []
    # Rounds of workers that share the cores are uneven, too, and an epoch has many.
    turn_seconds = left_seconds / (most_turns + 1) - settling_seconds
    most_times = len(inputs) * _MOST_STEPS / most_turns / sum(rounds)
    times = max(1, int(min(turn_seconds / round_seconds, most_times)))
    opened, ways = list[OneInput](), list[Way]()
    with scratch_state(trainer) as state:
        for source, steps, refill_seconds in zip(inputs, rounds, refills, strict=True):
            others_seconds = sum(refills) - refill_seconds
            if way := attempt_loading(
                partial(with_input, trainer, state, source, times * steps, others_seconds)
            ):
                opened.append(source)
                ways.append(way)
        if opened[:1] != [own]:
            return []
        seconds = seconds_left(ends_seconds)
        timed = attempt_loading(lambda: turns(trainer, ways[0], ways[1:], seconds, most_turns))
    if timed is None or len(timed[0].sample_seconds) < FEWEST_TURNS:
        return []
    base, states = timed
    changed = [*zip(opened[1:], states, strict=True), *((source, base) for source in staying)]
    return [
        Tried(by=source.by, changes=dict(source.changes), turns=InTurns(base=base, changed=state))
        for source, state in changed
        if source.by
    ]


def with_input(
    trainer: Trainer,
    state: TrainState,
    one: OneInput,
    steps: int,
    settling_seconds: float = 0.0,
) -> Way:
    """Return steps with the batches of an input, `steps` or more in a sample, warmed up.

    Workers fill their queues during another input's turn. Those of the other input fill theirs in
    the first `settling_seconds` of this one's. Then both are as in a long training.
    """
    twin, batches = copy.copy(trainer), one.batches
    twin.training, twin.steps = batches, trainer.step.with_training(batches)
    twin.batch_transform = one.batch_transform or trainer.batch_transform
    twin.experiment = trainer.experiment.model_copy(update={"input": one.settings})
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
        ends_seconds = trainer.clock.now_seconds() + settling_seconds
        take(-(-one.prefetched // at_once))
        while trainer.clock.now_seconds() < ends_seconds:
            take(1)

    launches = -(-steps // at_once)
    # Workers begin with empty queues in each epoch, so samples of short epochs have whole ones.
    launches = round(launches / whole) * whole or launches
    take(max(launches, -(-WARM_UP_STEPS // at_once)))
    return Way(lambda: take(launches), launches * at_once, settle=settle, warm_up_steps=0)


def _candidates(
    trainer: Trainer,
    batches: LoaderBatches,
    loading: LoaderTimes,
    epoch_seconds: float,
    budget: Budget,
    timeout: float,
    resident: Batches | None,
) -> Iterator[OneInput]:
    settings, transform = batches.settings, batches.settings.transform

    def loader(
        by: TriedBy,
        changes: dict[str, Any],
        part: Part | None = None,
        batch_transform: BatchTransform | None = None,
        **changed: Any,
    ) -> OneInput:
        new = settings.model_copy(update=changed)
        if changed:
            # `dvc exp run -S` merges mappings, so a key that is left out would keep its value.
            changes = {"input": new.model_dump(exclude_defaults=True) | changed} | changes
        # Steps may take several passes, and workers would start again after tried.
        stays = new.model_copy(update={"persistent_workers": new.workers > 0})
        others = batches.with_settings(stays, part, timeout=timeout)
        return OneInput(new, others, by, changes, batch_transform)

    if resident:
        yield OneInput(RESIDENT, resident, "resident", {"input": "resident"})
    if budget.loader_seconds < LEAST_WITH_WORKERS_SECONDS:
        return
    if workers := _workers(settings, loading, epoch_seconds):
        yield loader("workers", {}, workers=workers, persistent_workers=True)
    if loading.whole_seconds < _LEAST_SHARE * epoch_seconds / trainer.steps_per_epoch:
        return
    read_twice_seconds = 2 * loading.whole_seconds / batches.batch_size
    if part := _stored(batches, int(budget.stored_seconds / read_twice_seconds)):
        once = {"decode": "once"}
        if of_once := resident_batches(trainer, batches, part, sampler=None):
            yield OneInput(RESIDENT, of_once, "resident once", once | {"input": "resident"})
        else:
            yield loader("decode once", once, part)
    is_known = transform and not is_reference(transform.name) and not settings.eval_transform
    is_possible = trainer.batch_transform is None and trainer.experiment.cuda_graphs != "on"
    if transform and is_known and is_possible:
        known = BatchTransformSettings.model_validate(transform.model_dump())
        on_batches = BatchTransform(known, trainer.experiment.seed, 0)
        given = {"batch_transform": transform.model_dump(exclude_defaults=True)}
        yield loader("batch transform", given, None, on_batches, transform=None)


def _workers(settings: LoaderInput, loading: LoaderTimes, epoch_seconds: float) -> int | None:
    """Return the number of workers to try with `persistent_workers`, or None if it can't help."""
    own = [tried for tried in loading.tried_workers if tried.workers == settings.workers]
    own_seconds = own[0].batch_seconds if own else loading.whole_seconds
    best = min(loading.tried_workers, key=lambda tried: tried.batch_seconds, default=None)
    if best and (own or not settings.workers):
        if own_seconds >= CLEARLY_FASTER * best.batch_seconds:
            return best.workers
        start_seconds = (
            0.0 if settings.persistent_workers else loading.start_seconds_by(settings.workers)
        )
        if start_seconds > _LEAST_SHARE * epoch_seconds:
            return settings.workers
    return None


def _stored(batches: LoaderBatches, most: int) -> Part | None:
    """Return samples as `split` would pack them, or None if it already did or can't."""
    dataset, part = batches.dataset, batches.dataset.part
    rows = range(min(_STORED_SAMPLES, len(dataset), most))
    if part.read is None or not rows:
        return None
    with generators_kept():
        pairs, again = ([dataset.read(row, epoch) for row in rows] for epoch in range(2))
    for (one, _), (other, _) in zip(pairs, again, strict=True):
        if not all(map(np.array_equal, leaves(one), leaves(other))):
            return None
    shapes = {tuple(np.shape(leaf) for value in pair for leaf in leaves(value)) for pair in pairs}
    if len(shapes) > 1:
        return None
    most = _STORED_BYTES // max(1, sum(leaf.nbytes for leaf in leaves(pairs[0][0])))
    count = max(2 * batches.batch_size, min(_STORED_BATCHES * batches.batch_size, most))
    repeated = np.arange(count) % len(rows)
    images, labels = (
        map_nested(lambda *leaf: np.stack(leaf)[repeated], *values)
        for values in zip(*pairs, strict=True)
    )
    return replace(part, images=images, labels=labels, read=None)


def resident_batches(
    trainer: Trainer, batches: LoaderBatches, part: Part, **changed: None
) -> Batches | None:
    """Return resident batches of a part in place of a loader's, or None if they can't be.

    As float32, twice the samples must fit, for the borders of random crops and for batches.
    """
    settings, device = batches.settings, trainer.device
    if part.read or settings.transform or settings.eval_transform or settings.collate:
        return None
    sample_bytes = sum(4 * math.prod(column.shape[1:]) for column in leaves(part.images))
    free_bytes = None if device == CPU else free_memory_bytes(device)
    free_bytes = available_memory_bytes() if free_bytes is None else free_bytes
    if 2 * batches.image_count * sample_bytes > free_bytes:
        return None
    experiment = trainer.experiment.model_copy(update={"input": RESIDENT} | changed)
    return make_batches(experiment, part, device)
