"""Try inputs that may load faster, with real steps on a copy of the trained network."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from photofinish.config.experiment import BatchTransformSettings, Input, LoaderInput
from photofinish.custom.reference import is_reference
from photofinish.machine.host import available_memory_bytes
from photofinish.models.custom import generators_kept
from photofinish.nested import leaves, map_nested
from photofinish.profiling.attribution import RESIDENT, measure_input
from photofinish.profiling.loader_workers import timeout_for
from photofinish.results import median_training_seconds
from photofinish.results.measurements import CLEARLY_FASTER, LoaderTimes, TriedBy, TriedInput
from photofinish.training.batches import Batches, Part
from photofinish.training.custom_step import BatchTransform
from photofinish.training.input_paths import LoaderBatches, make_batches
from photofinish.training.torch_device import CPU, free_memory_bytes
from photofinish.training.trainer import Trainer

_LEAST_SHARE = 0.05
"""Share of an epoch for loading, or for starting workers, above which other inputs are tried."""
_LEAST_SAMPLES, _MOST_STEPS = 3, 100
_STORED_SAMPLES, _STORED_BATCHES, _STORED_BYTES = 16, 8, 256 << 20
_READ_TWICE = 3
_STORED_SIZE, _LEAST_SHRINKING = 256 / 224, 2
"""Side of a stored image, as multiple of what the network gets, and as least divisor of before.

ImageNet's images are usually stored with 256 pixels a side for crops of 224.
"""


class _OtherInput(NamedTuple):
    by: TriedBy
    settings: Input
    batches: Batches
    batch_transform: BatchTransform | None = None
    size: tuple[int, int] | None = None
    """Height and width of stored images, if they change."""


def try_inputs(trainer: Trainer, found: LoaderTimes, seconds: float) -> tuple[TriedInput, ...]:
    """Time some steps with each input that may be faster, within `seconds`."""
    batches = trainer.training
    assert isinstance(batches, LoaderBatches)
    step_seconds = median_training_seconds(trainer.progress.timings) / trainer.steps_per_epoch
    candidates = list(_candidates(trainer, batches, found))
    tried = []
    starts = {each.workers: each.start_seconds for each in found.tried_workers}
    ends_seconds = time.perf_counter() + seconds
    for number, (by, settings, others, batch_transform, size) in enumerate(candidates):
        loader = settings if isinstance(settings, LoaderInput) else LoaderInput(name="loader")
        in_a_round = max(1, loader.workers)
        left_seconds = (ends_seconds - time.perf_counter()) / (len(candidates) - number)
        left_seconds -= starts.get(loader.workers, 0.0)
        rounds = int(left_seconds / step_seconds / in_a_round)
        if rounds < _LEAST_SAMPLES:
            continue
        steps = in_a_round * min(rounds, max(_LEAST_SAMPLES, _MOST_STEPS // in_a_round))
        steady = measure_input(trainer, others, settings, steps, batch_transform, in_a_round)
        tried.append(
            TriedInput(
                by=by,
                workers=loader.workers,
                persistent_workers=loader.persistent_workers,
                size=size,
                steps=steady,
            )
        )
    return tuple(tried)


def _candidates(
    trainer: Trainer, batches: LoaderBatches, found: LoaderTimes
) -> Iterator[_OtherInput]:
    settings, transform = batches.settings, batches.settings.transform

    def loader(settings: LoaderInput, part: Part | None = None) -> LoaderBatches:
        # Steps may take several passes, and workers would start again after each.
        stays = settings.model_copy(update={"persistent_workers": settings.workers > 0})
        return batches.with_settings(stays, part, timeout_for(found.whole_seconds))

    epoch_seconds = median_training_seconds(trainer.progress.timings)
    if workers := _workers(settings, found, epoch_seconds):
        yield _OtherInput("workers", workers, loader(workers))
    if found.whole_seconds < _LEAST_SHARE * epoch_seconds / trainer.steps_per_epoch:
        return
    if part := _stored(batches):
        if small := _smaller(batches, part):
            size = small.images.shape[-2:]
            yield _OtherInput("stored size", settings, loader(settings, small), size=size)
        needs_loader = transform or settings.eval_transform or settings.collate
        if needs_loader or not fits_resident(part.images, batches.image_count, trainer.device):
            yield _OtherInput("decode once", settings, loader(settings, part))
        else:
            changed = {"input": RESIDENT, "sampler": None}
            experiment = trainer.experiment.model_copy(update=changed)
            resident = make_batches(experiment, part, trainer.device)
            yield _OtherInput("resident once", RESIDENT, resident)
    is_known = transform and not is_reference(transform.name) and not settings.eval_transform
    if transform and is_known and trainer.batch_transform is None:
        known = BatchTransformSettings.model_validate(transform.model_dump())
        on_batches = BatchTransform(known, trainer.experiment.seed, 0)
        without = settings.model_copy(update={"transform": None})
        yield _OtherInput("batch transform", without, loader(without), on_batches)
    if settings.collate is None and not settings.byte_batches:
        byte_settings = settings.model_copy(update={"byte_batches": True})
        as_bytes = loader(byte_settings)
        image = as_bytes.dataset[0, None, 0][0]
        if isinstance(image, torch.Tensor) and image.dtype == torch.uint8:
            yield _OtherInput("byte batches", byte_settings, as_bytes)


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
    rows = range(min(_STORED_SAMPLES, len(dataset)))
    with generators_kept():
        pairs = [dataset.read(row, 0) for row in rows]
        again = [dataset.read(row, 1)[0] for row in rows[:_READ_TWICE]]
    for (one, _), other in zip(pairs, again, strict=False):
        if not all(map(np.array_equal, leaves(one), leaves(other))):
            return None
    if (
        len({tuple(np.shape(leaf) for value in pair for leaf in leaves(value)) for pair in pairs})
        > 1
    ):
        return None
    most = _STORED_BYTES // max(1, sum(leaf.nbytes for leaf in leaves(pairs[0][0])))
    count = max(2 * batches.batch_size, min(_STORED_BATCHES * batches.batch_size, most))
    repeated = np.arange(count) % len(rows)
    images, labels = (
        map_nested(lambda *leaf: np.stack(leaf)[repeated], *values)
        for values in zip(*pairs, strict=True)
    )
    return replace(part, images=images, labels=labels, read=None)


def _smaller(batches: LoaderBatches, part: Part) -> Part | None:
    """Return images of a smaller stored size, if the transform shrinks every image file."""
    # Imported here, as only data sets of image files need it.
    from photofinish.data.local_source import ImageFiles

    read: Any = batches.dataset.part.read
    used = batches.dataset[0, None, 0][0]
    is_image = isinstance(used, torch.Tensor) and used.dim() == 3
    if not isinstance(read.dataset, ImageFiles) or not is_image:
        return None
    height, width = (math.ceil(_STORED_SIZE * side) for side in used.shape[-2:])
    if any(np.array(part.images.shape[-2:]) < _LEAST_SHRINKING * np.array([height, width])):
        return None
    return replace(part, images=np.ascontiguousarray(part.images[..., :height, :width]))


def fits_resident(columns: Any, count: int, device: torch.device) -> bool:
    """Return True if so many samples, as float32, fit into a device's memory.

    Twice as many must fit, for the borders of random crops and for batches.
    """
    sample_bytes = sum(4 * math.prod(column.shape[1:]) for column in leaves(columns))
    free_bytes = None if device == CPU else free_memory_bytes(device)
    free_bytes = available_memory_bytes() if free_bytes is None else free_bytes
    return bool(2 * count * sample_bytes <= free_bytes)
