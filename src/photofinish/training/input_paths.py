"""Input paths: all samples resident on the device, or PyTorch's DataLoader."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Sampler

from photofinish.errors import UserError
from photofinish.nested import map_nested, samples_in
from photofinish.training.batches import (
    Batch,
    Batches,
    BatchPlan,
    Part,
    as_batch,
    make_sampler,
    map_batch,
    tensors_of,
    to_tensor,
    with_border,
)
from photofinish.training.loading import Key, LoadedSamples
from photofinish.training.torch_device import is_accelerator, to_device

if TYPE_CHECKING:
    from photofinish.config.experiment import Experiment, LoaderInput

_VALIDATION_BYTES, _ACCELERATORS_VALIDATION_BYTES = 4 << 20, 64 << 20
"""Sizes of a validation batch as float32, on the CPU and on accelerators.

Larger batches need fewer calls, and validation saves no tensors. The CPU's fits into its caches.
"""
_CHUNK_BYTES = 16 << 20
_DEATH_NOTICE_SECONDS = 2.0


def make_batches(
    experiment: Experiment, part: Part, device: torch.device, rank: int = 0, size: int = 1
) -> Batches:
    batch_size, augmentation = experiment.batch_size, None
    if part.name != "train":
        batch_size = validation_batch_size(experiment, part.images, device)
    elif experiment.augmentation.flip or experiment.augmentation.crop_padding:
        augmentation = experiment.augmentation
    sampler = None
    if experiment.sampler and part.name == "train":
        targets = map_nested(to_tensor, part.labels)
        sampler = make_sampler(experiment.sampler, targets, experiment.seed)
    count = samples_in(part.labels)
    plan = BatchPlan(count, batch_size, experiment.seed, rank, size, augmentation, sampler)
    if experiment.input.name == "loader":
        return LoaderBatches(plan, part, device, experiment.input)
    return (AugmentedResidentBatches if augmentation else ResidentBatches)(plan, part, device)


def validation_batch_size(experiment: Experiment, images: Any, device: torch.device) -> int:
    """Return the size of batches without training: larger than the training's for small samples.

    Whole numbers get no larger batches, as networks embed them.
    """
    fitting = 0
    if isinstance(images, np.ndarray) and images.dtype != np.int64:
        on_accelerator = is_accelerator(device)
        most_bytes = _ACCELERATORS_VALIDATION_BYTES if on_accelerator else _VALIDATION_BYTES
        fitting = most_bytes // (4 * math.prod(images.shape[1:]))
    return experiment.validation_batch_size or max(experiment.batch_size, fitting)


class ResidentBatches(Batches):
    """Keeps the whole part on the device, normalised once. A batch is one gather."""

    def __init__(self, plan: BatchPlan, part: Part, device: torch.device) -> None:
        self.image_count, self.batch_size = plan.image_count, plan.batch_size
        self._plan, self._device = plan, device
        self._labels = map_nested(lambda column: to_tensor(column).to(device), part.labels)
        self._load(part)

    def _load(self, part: Part) -> None:
        self._images = map_nested(partial(self._converted, part), part.images)

    def _converted(self, part: Part, images: npt.NDArray[Any], padding: int = 0) -> torch.Tensor:
        """Convert images on the CPU, for equal bits on all devices, and copy chunk by chunk."""

        def convert(some: npt.NDArray[Any]) -> torch.Tensor:
            copied = with_border(some, padding) if padding else np.array(some)
            return part.normalise(torch.from_numpy(copied))

        first = convert(images[:1])
        shape = len(images), *first.shape[1:]
        resident = torch.empty(shape, dtype=first.dtype, device=self._device)
        chunk = max(1, _CHUNK_BYTES // first.nbytes)
        for start in range(0, len(images), chunk):
            resident[start : start + chunk] = convert(images[start : start + chunk])
        return resident

    def _rows(self, epoch: int) -> torch.Tensor:
        """Return the row that `_gather` needs for each sample of the epoch, in order."""
        return self._plan.order(epoch)

    def _gather(self, rows: torch.Tensor) -> Batch:
        return map_batch(lambda column: column.index_select(0, rows), (self._images, self._labels))

    def host_batches(self, epoch: int, at_once: int = 1) -> Iterator[Batch]:
        """Return the batches, already on the device. This call computes the epoch's order."""
        rows = to_device(self._rows(epoch), self._device)
        return map(self._gather, self._plan.split(rows, at_once))

    def eval_batches(self) -> Iterator[Batch]:
        whole = self._images, self._labels
        columns = [self._plan.split(column) for column in tensors_of(whole)]
        for tensors in zip(*columns, strict=True):
            yield as_batch(tensors, whole)


class AugmentedResidentBatches(ResidentBatches):
    """Keeps the images on the device with black borders.

    A batch takes two gathers: the crops' lines, then their columns. This takes half the time of
    gathering pixels, as whole lines are copied fast.
    """

    def _load(self, part: Part) -> None:
        padding = self._plan.padding
        self._lines = self._converted(part, part.images, padding).flatten(0, 2)
        self._shape = channels, height, width = part.images.shape[1:]
        self._lines_per_channel = height + 2 * padding
        lines = torch.arange(channels)[:, None] * self._lines_per_channel + torch.arange(height)
        self._crop_lines = lines.flatten().to(self._device)
        columns = torch.arange(width)
        self._crop_columns = torch.stack([columns, columns.flip(0)]).to(self._device)
        """Columns of a crop, plain and mirrored."""

    def _rows(self, epoch: int) -> torch.Tensor:
        order = self._plan.order(epoch)
        return self._crops(order, self._plan.draws(epoch, order))

    def _crops(self, order: torch.Tensor, draws: torch.Tensor | None) -> torch.Tensor:
        """Return each image's row, first line and first column, and 1 if it is mirrored."""
        if draws is None:
            padding = self._plan.padding
            draws = torch.tensor([[padding, padding, 0]]).expand(len(order), -1)
        top, left, mirrored = draws.unbind(1)
        first_line = order * self._shape[0] * self._lines_per_channel + top
        return torch.stack([order, first_line, left, mirrored], dim=1)

    def _gather(self, rows: torch.Tensor) -> Batch:
        row, first_line, first_column, mirrored = rows.unbind(1)
        count, lines_per_image = len(rows), len(self._crop_lines)
        lines = self._lines.index_select(0, (first_line[:, None] + self._crop_lines).flatten())
        columns = first_column[:, None] + self._crop_columns.index_select(0, mirrored)
        cropped = torch.gather(
            lines.view(count, lines_per_image, self._lines.shape[1]),
            2,
            columns[:, None].expand(count, lines_per_image, self._shape[-1]),
        )
        labels = map_nested(lambda column: column.index_select(0, row), self._labels)
        return cropped.view(count, *self._shape), labels

    def eval_batches(self) -> Iterator[Batch]:
        """Yield the images without borders or augmentation."""
        crops = to_device(self._crops(torch.arange(self.image_count), None), self._device)
        return map(self._gather, self._plan.split(crops))


class LoaderBatches(Batches):
    """Batches of a DataLoader. Its sampler is set each epoch, so that workers may persist."""

    def __init__(
        self,
        plan: BatchPlan,
        part: Part,
        device: torch.device,
        settings: LoaderInput,
        **of_workers: Any,
    ) -> None:
        """`of_workers` are arguments of DataLoader, if it has workers."""
        self.image_count, self.batch_size = plan.image_count, plan.batch_size
        self._plan = plan
        self._device = device
        self._non_blocking = settings.non_blocking
        self.settings, self._sampler = settings, _EpochSampler()
        self.dataset = dataset = LoadedSamples(part, settings, plan.seed, plan.padding)
        self._loader = DataLoader(
            dataset,
            batch_sampler=self._sampler,
            num_workers=settings.workers,
            collate_fn=dataset.collate,
            # For the CPU, PyTorch would start an unused accelerator, or warn that there is none.
            pin_memory=settings.pin_memory and device.type != "cpu",
            prefetch_factor=settings.prefetch_factor,
            persistent_workers=settings.persistent_workers,
            generator=torch.Generator(),  # else it would draw from the network's generator
            **(of_workers if settings.workers else {}),
        )

    def with_workers(self, workers: int, batch_size: int, **of_workers: Any) -> LoaderBatches:
        """Return a loader of the same samples, whose workers end with an epoch."""
        prefetch_factor = self.settings.prefetch_factor if workers else None
        changed = {"persistent_workers": False, "prefetch_factor": prefetch_factor}
        settings = self.settings.model_copy(update={"workers": workers} | changed)
        plan = replace(self._plan, batch_size=batch_size)
        return LoaderBatches(plan, self.dataset.part, self._device, settings, **of_workers)

    def with_settings(
        self, settings: LoaderInput, part: Part | None = None, **of_workers: Any
    ) -> LoaderBatches:
        plan = self._plan
        if part:
            plan = replace(plan, image_count=samples_in(part.labels), sampler=None)
        part = part or self.dataset.part
        return LoaderBatches(plan, part, self._device, settings, **of_workers)

    def first_batches(self, count: int) -> Generator[Batch]:
        """Yield the first batches of an epoch in main memory. Load no further batches."""
        return self._load(self._plan.order(0), 0, count)

    def host_batches(self, epoch: int, at_once: int = 1) -> Iterator[Batch]:  # noqa: ARG002
        """Yield the batches in main memory, one at a time: joining them would only delay steps."""
        return self._load(self._plan.order(epoch), epoch)

    def eval_batches(self) -> Iterator[Batch]:
        """Load the samples again each time, and copy them to the device."""
        return map(self.to_device, self._load(torch.arange(self.image_count), None))

    def to_device(self, batch: Batch) -> Batch:
        """Copy a batch to the device. With `non_blocking`, the host doesn't wait."""
        return map_batch(lambda part: part.to(self._device, non_blocking=self._non_blocking), batch)

    def _load(
        self, order: torch.Tensor, epoch: int | None, most_batches: int | None = None
    ) -> Generator[Batch]:
        self._sampler.batches = islice(_keys(self._plan, order, epoch), most_batches)
        try:
            yield from self._loader
        except UserError as error:  # from a worker, its text begins with PyTorch's traceback
            marker = f"{UserError.__module__}.{UserError.__name__}: "
            raise UserError(str(error).rpartition(marker)[2]) from error
        except (ConnectionError, EOFError, FileNotFoundError) as error:
            # A worker that dies while it sends a batch breaks the connection. PyTorch's clearer
            # error usually follows with the signal of the worker's death, but is rarely missed.
            time.sleep(_DEATH_NOTICE_SECONDS)
            raise RuntimeError(f"DataLoader worker (pid unknown) broke off: {error}") from error


class _EpochSampler(Sampler[list[Key]]):
    """Sampler of the batches that were set last."""

    batches: Iterator[list[Key]]

    def __iter__(self) -> Iterator[list[Key]]:
        return self.batches


def _keys(plan: BatchPlan, order: torch.Tensor, epoch: int | None) -> Iterator[list[Key]]:
    """Yield the keys of each batch. Without an epoch, samples are not augmented."""
    draws = None if epoch is None else plan.draws(epoch, order)
    repeats = torch.zeros_like(order) if epoch is None else plan.repeats(order)
    columns = [order, repeats] if draws is None else [order, repeats, draws]
    for rows, again, *drawn in zip(*map(plan.split, columns), strict=True):
        own_draws = drawn[0].tolist() if drawn else [None] * len(rows)
        yield [
            (row, draw, epoch, repeat)
            for row, draw, repeat in zip(rows.tolist(), own_draws, again.tolist(), strict=True)
        ]
