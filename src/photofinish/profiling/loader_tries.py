"""Try inputs that may load faster, with real steps on a copy of the trained network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from photofinish.config.experiment import BatchTransformSettings, LoaderInput
from photofinish.custom.reference import is_reference
from photofinish.nested import leaves
from photofinish.profiling.attribution import measure_input
from photofinish.profiling.loader_workers import timeout_for
from photofinish.results import median_training_seconds
from photofinish.results.measurements import CLEARLY_FASTER, LoaderTimes, TriedInput
from photofinish.training.batches import Part
from photofinish.training.custom_step import BatchTransform
from photofinish.training.input_paths import LoaderBatches
from photofinish.training.trainer import Trainer

_LEAST_SHARE = 0.05
"""Share of an epoch for loading, or for starting workers, above which other inputs are tried."""
_LEAST_SAMPLES, _MOST_STEPS = 3, 100
_STORED_SAMPLES, _STORED_BATCHES, _STORED_BYTES = 16, 8, 256 << 20
_READ_TWICE = 3


class _OtherInput(NamedTuple):
    by: Any
    settings: LoaderInput
    part: Part | None = None
    """Samples for this input, if they differ from the training's."""
    batch_transform: BatchTransform | None = None


def try_inputs(trainer: Trainer, found: LoaderTimes, seconds: float) -> tuple[TriedInput, ...]:
    """Time some steps with each input that may be faster, within `seconds`."""
    batches = trainer.training
    assert isinstance(batches, LoaderBatches)
    step_seconds = median_training_seconds(trainer.progress.timings) / trainer.steps_per_epoch
    candidates = list(_candidates(trainer, batches, found))
    tried = []
    starts = {each.workers: each.start_seconds for each in found.tried_workers}
    for by, settings, part, batch_transform in candidates:
        in_a_round = max(1, settings.workers)
        left_seconds = seconds / len(candidates) - starts.get(settings.workers, 0.0)
        rounds = int(left_seconds / step_seconds / in_a_round)
        if rounds < _LEAST_SAMPLES:
            continue
        steps = in_a_round * min(rounds, max(_LEAST_SAMPLES, _MOST_STEPS // in_a_round))
        # These steps may take several passes, and workers would start again after each.
        stays = {"persistent_workers": settings.workers > 0}
        stays_settings = settings.model_copy(update=stays)
        others = batches.with_settings(stays_settings, part, timeout_for(found.whole_seconds))
        steady = measure_input(trainer, others, settings, steps, batch_transform, in_a_round)
        tried.append(
            TriedInput(
                by=by,
                workers=settings.workers,
                persistent_workers=settings.persistent_workers,
                steps=steady,
            )
        )
    return tuple(tried)


def _candidates(
    trainer: Trainer, batches: LoaderBatches, found: LoaderTimes
) -> Iterator[_OtherInput]:
    settings, transform = batches.settings, batches.settings.transform
    epoch_seconds = median_training_seconds(trainer.progress.timings)
    if workers := _workers(settings, found, epoch_seconds):
        yield _OtherInput("workers", workers)
    if found.whole_seconds < _LEAST_SHARE * epoch_seconds / trainer.steps_per_epoch:
        return
    if part := _stored(batches):
        yield _OtherInput("decode once", settings, part)
    is_known = transform and not is_reference(transform.name) and not settings.eval_transform
    if transform and is_known and trainer.batch_transform is None:
        known = BatchTransformSettings.model_validate(transform.model_dump())
        on_batches = BatchTransform(known, trainer.experiment.seed, 0)
        without = settings.model_copy(update={"transform": None})
        yield _OtherInput("batch transform", without, None, on_batches)


def _workers(settings: LoaderInput, found: LoaderTimes, epoch_seconds: float) -> LoaderInput | None:
    """Return the fastest number of workers, or persistent workers, or None if neither helps."""
    own = [each for each in found.tried_workers if each.workers == settings.workers]
    own_seconds = own[0].batch_seconds if own else found.whole_seconds
    best = min(found.tried_workers, key=lambda each: each.batch_seconds, default=None)
    if best is None or (settings.workers and not own):
        return None
    if own_seconds < CLEARLY_FASTER * best.batch_seconds:
        if not own or settings.persistent_workers:
            return None
        best = own[0]
    starts_slowly = best.start_seconds > _LEAST_SHARE * epoch_seconds
    if best in own and not starts_slowly:
        return None
    persistent = settings.persistent_workers or starts_slowly
    changed = {"workers": best.workers, "persistent_workers": persistent}
    return settings.model_copy(update=changed)


def _stored(batches: LoaderBatches) -> Part | None:
    """Return samples as `split` would pack them, or None if it already did or can't."""
    dataset, part = batches.dataset, batches.dataset.part
    if part.read is None:
        return None
    for row in range(min(_READ_TWICE, len(dataset))):
        one, other = (leaves(dataset.read(row, epoch)[0]) for epoch in (0, 1))
        if any(not np.array_equal(*pair) for pair in zip(one, other, strict=True)):
            return None
    rows = range(min(_STORED_SAMPLES, len(dataset)))
    items, targets = zip(*(dataset.read(row, 0) for row in rows), strict=True)
    is_array = all(isinstance(item, np.ndarray) for item in (*items, np.asarray(targets[0])))
    if not is_array or len({item.shape for item in items}) > 1:
        return None
    most = _STORED_BYTES // max(1, items[0].nbytes)
    count = max(2 * batches.batch_size, min(_STORED_BATCHES * batches.batch_size, most))
    repeated = np.arange(count) % len(rows)
    images, labels = np.stack(items)[repeated], np.stack(targets)[repeated]
    return replace(part, images=images, labels=labels, read=None)
