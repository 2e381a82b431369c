"""Try inputs that may load faster, with real steps, in turns with the input as it is."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from photofinish.config.experiment import BatchTransformSettings, Input, LoaderInput, ResidentInput
from photofinish.custom.reference import is_reference
from photofinish.machine.host import available_memory_bytes
from photofinish.measure.in_turns import Settling, time_in_turns, with_input
from photofinish.measure.loader_workers import (
    LEAST_WITH_WORKERS_SECONDS,
    Budget,
    attempt,
    timeout_of,
)
from photofinish.models.custom import generators_kept
from photofinish.nested import leaves, map_nested
from photofinish.results.measurements import CLEARLY_FASTER, InTurns, LoaderTimes, Tried, TriedBy
from photofinish.training.batches import Batches, Part
from photofinish.training.custom_step import BatchTransform
from photofinish.training.input_paths import LoaderBatches, make_batches
from photofinish.training.torch_device import CPU, free_memory_bytes
from photofinish.training.trainer import Trainer
from photofinish.training.warm_up import WARM_UP_STEPS

RESIDENT = ResidentInput(name="resident")
_LEAST_SHARE = 0.05
"""Share of an epoch for loading, or for starting workers, above which other inputs are tried.

By hand, as are the numbers of samples below.
"""
_LEAST_TURNS, _TURNS, _MOST_STEPS = 3, 10, 100
_PREFETCHED = 2
"""Batches that each worker prefetches by default."""
_STORED_SAMPLES, _STORED_BATCHES, _STORED_BYTES = 16, 8, 256 << 20
_STORED_SHARE = 0.25
"""Share of the time that is left, by hand, for reading samples to store, each twice."""


class OneInput(NamedTuple):
    """Input of a training, or another one to try."""

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
        """Number of batches that the workers prefetch."""
        factor = isinstance(self.settings, LoaderInput) and self.settings.prefetch_factor
        return self.workers * (factor or _PREFETCHED)


def try_inputs(
    trainer: Trainer,
    found: LoaderTimes,
    budget: Budget,
    epoch_seconds: float,
    resident: Batches | None = None,
) -> tuple[Tried, ...]:
    """Time some steps with each input that may be faster, and as it is.

    `resident` are resident batches, if the samples fit on the device.
    """
    batches = trainer.training
    assert isinstance(batches, LoaderBatches)
    settings = batches.settings
    candidates = (
        attempt(lambda: list(_candidates(trainer, batches, found, budget, epoch_seconds, resident)))
        or []
    )
    stays = settings.model_copy(update={"persistent_workers": settings.workers > 0})
    own = OneInput(stays, batches.with_settings(stays, timeout=timeout_of(budget)))
    if not settings.persistent_workers:
        epoch_seconds -= found.start_seconds_by(settings.workers)
    least_seconds = found.whole_seconds / max(1, settings.workers)
    step_seconds = max(epoch_seconds / trainer.steps_per_epoch, least_seconds)
    tried = []
    for number, other in enumerate(candidates):
        seconds = budget.left_seconds / (len(candidates) - number)
        seconds -= sum(found.start_seconds_by(each.workers) for each in _to_open(own, other))
        plan = step_seconds, found, seconds
        tried.append(attempt(partial(try_input, trainer, own, other, *plan)))
    return tuple(filter(None, tried))


def _to_open(own: OneInput, other: OneInput) -> list[OneInput]:
    """Return the inputs to time. Workers that only stay bring batches as before."""
    stays = other.by == "workers" and other.settings == own.settings and bool(other.changes)
    return [own] if stays else [own, other]


def try_input(
    trainer: Trainer,
    own: OneInput,
    other: OneInput,
    step_seconds: float,
    found: LoaderTimes,
    most_seconds: float,
) -> Tried | None:
    """Time steps with an input in turns with the own, in about `most_seconds`.

    Return None without time for enough turns.
    """
    ends_seconds = time.perf_counter() + most_seconds
    both = _to_open(own, other)
    refills = [each.prefetched * _batch_seconds(found, each.workers) for each in both]
    most_steps = (most_seconds - sum(refills)) / step_seconds - 2 * WARM_UP_STEPS
    settling = sum(refills) / 2 / step_seconds
    # A sample is a round of the workers, which bring their batches unevenly.
    rounds = [max(1, each.workers) for each in both]
    turns = min(_TURNS, int(most_steps / (sum(rounds) + settling)) - 1)  # one warms up
    if turns < _LEAST_TURNS:
        return None
    # Rounds of workers that share the cores are uneven, too, and an epoch has many.
    turn_steps = min(most_steps / (turns + 1) - settling, 2 * _MOST_STEPS / turns)
    times = max(1, int(turn_steps / sum(rounds)))
    with ExitStack() as stack:
        ways = []
        for each, steps, seconds in zip(both, rounds, reversed(refills), strict=True):
            how = times * steps, Settling(each.prefetched, seconds), each.batch_transform
            opened = with_input(trainer, each.batches, each.settings, *how)
            ways.append(stack.enter_context(opened))
        is_over = lambda: time.perf_counter() > ends_seconds  # noqa: E731
        base, *others = time_in_turns(trainer, turns, *ways, is_over=is_over)
    if other.by is None or len(base.sample_seconds) < _LEAST_TURNS:
        return None
    taken = InTurns(base=base, changed=others[0] if others else base)
    return Tried(by=other.by, changes=dict(other.changes), turns=taken)


def _batch_seconds(found: LoaderTimes, workers: int) -> float:
    """Return the time in which so many workers load a batch."""
    if found.tried_workers and workers:
        return found.batch_seconds_by(workers)
    return found.whole_seconds / max(1, workers)


def _candidates(
    trainer: Trainer,
    batches: LoaderBatches,
    found: LoaderTimes,
    budget: Budget,
    epoch_seconds: float,
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
        # Steps may take several passes, and workers would start again after each.
        stays = new.model_copy(update={"persistent_workers": new.workers > 0})
        others = batches.with_settings(stays, part, timeout=timeout_of(budget))
        return OneInput(new, others, by, changes, batch_transform)

    if resident:
        yield OneInput(RESIDENT, resident, "resident", {"input": "resident"})
    if budget.seconds < LEAST_WITH_WORKERS_SECONDS:
        return
    if workers := _workers(settings, found, epoch_seconds):
        yield loader("workers", {}, workers=workers, persistent_workers=True)
    if found.whole_seconds < _LEAST_SHARE * epoch_seconds / trainer.steps_per_epoch:
        return
    read_twice_seconds = 2 * found.whole_seconds / batches.batch_size
    if part := _stored(batches, int(_STORED_SHARE * budget.left_seconds / read_twice_seconds)):
        once = {"decode": "once"}
        needs_loader = transform or settings.eval_transform or settings.collate
        if needs_loader or not fits_resident(part.images, batches.image_count, trainer.device):
            yield loader("decode once", once, part)
        else:
            changed = {"input": RESIDENT, "sampler": None}
            experiment = trainer.experiment.model_copy(update=changed)
            of_once = make_batches(experiment, part, trainer.device)
            yield OneInput(RESIDENT, of_once, "resident once", once | {"input": "resident"})
    is_known = transform and not is_reference(transform.name) and not settings.eval_transform
    is_possible = trainer.batch_transform is None and trainer.experiment.cuda_graphs != "on"
    if transform and is_known and is_possible:
        known = BatchTransformSettings.model_validate(transform.model_dump())
        on_batches = BatchTransform(known, trainer.experiment.seed, 0)
        given = {"batch_transform": transform.model_dump(exclude_defaults=True)}
        yield loader("batch transform", given, None, on_batches, transform=None)


def _workers(settings: LoaderInput, found: LoaderTimes, epoch_seconds: float) -> int | None:
    """Return the number of workers to try with `persistent_workers`, or None if it can't help."""
    own = [each for each in found.tried_workers if each.workers == settings.workers]
    own_seconds = own[0].batch_seconds if own else found.whole_seconds
    best = min(found.tried_workers, key=lambda each: each.batch_seconds, default=None)
    if best and (own or not settings.workers):
        if own_seconds >= CLEARLY_FASTER * best.batch_seconds:
            return best.workers
        start_seconds = (
            0.0 if settings.persistent_workers else found.start_seconds_by(settings.workers)
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


def fits_resident(columns: Any, count: int, device: torch.device) -> bool:
    """Return True if so many samples, as float32, fit into a device's memory.

    Twice as many must fit, for the borders of random crops and for batches.
    """
    sample_bytes = sum(4 * math.prod(column.shape[1:]) for column in leaves(columns))
    free_bytes = None if device == CPU else free_memory_bytes(device)
    free_bytes = available_memory_bytes() if free_bytes is None else free_bytes
    return bool(2 * count * sample_bytes <= free_bytes)
