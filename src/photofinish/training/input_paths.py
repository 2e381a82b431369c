"""The input paths: all images resident on the device, or PyTorch's DataLoader, which loads them one by one."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from photofinish.errors import UserError
from photofinish.training.batches import (
    Batch,
    Batches,
    BatchPlan,
    Draw,
    Part,
    Transform,
    augmented,
    with_border,
)
from photofinish.training.torch_device import to_device

if TYPE_CHECKING:
    from types import TracebackType

    from photofinish.config.experiment import Experiment, LoaderInput

_VALIDATION_BYTES = 4 << 20
"""of a validation batch as float32: without gradients there is room for larger batches, and fewer calls cost less"""
_PLACED_AT_A_TIME_BYTES = 16 << 20
_DEATH_NOTICE_SECONDS = 2.0
_Key = tuple[int, Draw | None, int | None]
"""an image's row, its augmentation or None, and the epoch for a custom transform or None"""


def make_batches(experiment: Experiment, part: Part, device: torch.device, rank: int = 0, size: int = 1) -> Batches:
    """Return this rank's batches of one part, by the experiment's input path. Only training images are augmented.

    Validation batches are larger where items are small, except for whole numbers, which networks embed as vectors.
    """
    batch_size, augmentation = experiment.batch_size, None
    if part.name != "train":
        is_whole = part.images.dtype == np.int64
        fitting = 0 if is_whole else _VALIDATION_BYTES // (4 * math.prod(part.images.shape[1:]))
        batch_size = experiment.validation_batch_size or max(batch_size, fitting)
    elif experiment.augmentation.flip or experiment.augmentation.crop_padding:
        augmentation = experiment.augmentation
    plan = BatchPlan(len(part.labels), batch_size, experiment.seed, rank, size, augmentation)
    if experiment.input.name == "loader":
        return LoaderBatches(plan, part, device, experiment.input)
    return (AugmentedResidentBatches if augmentation else ResidentBatches)(plan, part, device)


class ResidentBatches(Batches):
    """The whole part lies on the device, normalised once. A batch is one gather."""

    def __init__(self, plan: BatchPlan, part: Part, device: torch.device) -> None:
        self.image_count, self.batch_size = plan.image_count, plan.batch_size
        self._plan, self._device = plan, device
        self._prepared: dict[int, torch.Tensor] = {}
        """the rows of at most one epoch"""
        self._labels = torch.from_numpy(np.array(part.labels)).to(device)
        self._place(part)

    def _place(self, part: Part) -> None:
        self._images = _on_device(
            part.images, lambda some: part.normalise(torch.from_numpy(np.array(some))), self._device
        )

    def _order(self, epoch: int) -> torch.Tensor:
        return self._plan.order(epoch)

    def prepare(self, epoch: int) -> None:
        """Make the epoch's order, and start its copy to the device."""
        self._prepared = {epoch: to_device(self._order(epoch), self._device)}

    def rows(self, epoch: int) -> torch.Tensor:
        """Return what `gather` takes for each image of the epoch, in order, on the device."""
        prepared = self._prepared.pop(epoch, None)
        return to_device(self._order(epoch), self._device) if prepared is None else prepared

    def gather(self, rows: torch.Tensor, out: Batch | None = None) -> Batch:
        """Return these images and their labels, in `out` if it is given."""
        images, labels = out or (None, None)
        return (
            torch.index_select(self._images, 0, rows, out=images),
            torch.index_select(self._labels, 0, rows, out=labels),
        )

    def unplaced(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches, on the device already."""
        for rows in self._plan.own(self.rows(epoch)):
            yield self.gather(rows)

    def place(self, count: int) -> Batch:
        return self.gather(self.rows(0)[: count * self.batch_size])

    def put(self, place: Batch, epoch: int, alone: int = 0) -> Iterator[Batch | None]:
        """Fill the buffers with one gather each time."""
        rows, images, first = self.rows(epoch), len(place[1]), alone * self.batch_size
        end = first + (len(rows) - first) // images * images
        yield from map(self.gather, _split(rows[:first], self.batch_size))
        for those_of_a_place in _split(rows[first:end], images):
            self.gather(those_of_a_place, out=place)
            yield None
        yield from map(self.gather, _split(rows[end:], self.batch_size))

    def eval_batches(self) -> Iterator[Batch]:
        """Yield views of what lies on the device."""
        yield from zip(self._plan.own(self._images), self._plan.own(self._labels), strict=True)


def _on_device(
    images: npt.NDArray[Any], made: Callable[[npt.NDArray[Any]], torch.Tensor], device: torch.device
) -> torch.Tensor:
    """Convert images on the CPU, so that every device has the same bits, and copy them a few megabytes at a time."""
    first = made(images[:1])
    placed = torch.empty((len(images), *first.shape[1:]), dtype=first.dtype, device=device)
    at_a_time = max(1, _PLACED_AT_A_TIME_BYTES // first.nbytes)
    for start in range(0, len(images), at_a_time):
        placed[start : start + at_a_time] = made(images[start : start + at_a_time])
    return placed


def _split(rows: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
    """Split the rows, into nothing if there are none. torch.split would return one empty part."""
    return torch.split(rows, size) if len(rows) else ()


class AugmentedResidentBatches(ResidentBatches):
    """The images lie on the device with black borders. A batch is two gathers: the crops' lines, then their columns.

    Whole lines are copied fast, so this takes half the time of gathering pixels.
    """

    def _place(self, part: Part) -> None:
        device, padding = self._device, self._plan.padding

        def bordered(some: npt.NDArray[Any]) -> torch.Tensor:
            return part.normalise(torch.from_numpy(with_border(some, padding)))

        self._lines = _on_device(part.images, bordered, device).flatten(0, 2)
        self._shape = channels, height, width = part.images.shape[1:]
        self._lines_a_channel = height + 2 * padding
        lines = torch.arange(channels)[:, None] * self._lines_a_channel + torch.arange(height)
        self._crop_lines = lines.flatten().to(device)
        columns = torch.arange(width)
        self._crop_columns = torch.stack([columns, columns.flip(0)]).to(device)
        """unchanged, and mirrored"""

    def _order(self, epoch: int) -> torch.Tensor:
        return self._crops(self._plan.order(epoch), self._plan.draws(epoch))

    def _crops(self, order: torch.Tensor, draws: torch.Tensor | None) -> torch.Tensor:
        """Return for each image its row, first line, first column, and 1 if it is mirrored."""
        if draws is None:
            draws = torch.tensor([[self._plan.padding, self._plan.padding, 0]]).expand(len(order), -1)
        top, left, mirrored = draws[order].unbind(1)
        return torch.stack([order, order * self._shape[0] * self._lines_a_channel + top, left, mirrored], dim=1)

    def gather(self, rows: torch.Tensor, out: Batch | None = None) -> Batch:
        """Return crops and labels, as the rows say."""
        images, labels = out or (None, None)
        row, first_line, first_column, mirror = rows.unbind(1)
        lines = self._lines.index_select(0, (first_line[:, None] + self._crop_lines).flatten())
        columns = first_column[:, None] + self._crop_columns.index_select(0, mirror)
        count, lines_an_image = len(rows), len(self._crop_lines)
        by_lines = (count, lines_an_image, self._shape[-1])
        cropped = torch.gather(
            lines.view(count, lines_an_image, self._lines.shape[1]),
            2,
            columns[:, None].expand(by_lines),
            out=None if images is None else images.view(by_lines),
        )
        return cropped.view(count, *self._shape), torch.index_select(self._labels, 0, row, out=labels)

    def eval_batches(self) -> Iterator[Batch]:
        """Yield the images without borders or augmentation."""
        crops = to_device(self._crops(torch.arange(self.image_count), None), self._device)
        return map(self.gather, self._plan.own(crops))


class LoaderBatches(Batches):
    """One DataLoader for the whole run. Its sampler is set for each epoch, so that workers may persist."""

    def __init__(self, plan: BatchPlan, part: Part, device: torch.device, settings: LoaderInput) -> None:
        self.image_count, self.batch_size = plan.image_count, plan.batch_size
        self._plan, self._device, self._non_blocking = plan, device, settings.non_blocking
        self._sampler = _SetSampler()
        transform = Transform(settings.transform, plan.seed) if settings.transform and part.name == "train" else None
        dataset = _PackedImages(part, plan.padding, transform)
        self._loader = DataLoader(
            dataset,
            batch_sampler=self._sampler,
            num_workers=settings.workers,
            collate_fn=dataset.collate,
            # For the CPU, PyTorch would start up an accelerator that isn't used, or warn that there is none.
            pin_memory=settings.pin_memory and device.type != "cpu",
            prefetch_factor=settings.prefetch_factor,
            persistent_workers=settings.persistent_workers,
            worker_init_fn=_silence_broken_connections,
            generator=torch.Generator(),  # else loading would draw from the network's generator
        )

    def unplaced(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches in main memory, as the DataLoader returns them."""
        return self._load(self._plan.order(epoch), self._plan.draws(epoch), epoch)

    def eval_batches(self) -> Iterator[Batch]:
        """Load the images again each time, and copy them to the device."""
        return map(self.placed, self._load(torch.arange(self.image_count), None, None))

    def placed(self, batch: Batch) -> Batch:
        """Copy a batch to the device. With `non_blocking`, the host doesn't wait."""
        images, labels = (part.to(self._device, non_blocking=self._non_blocking) for part in batch)
        return images, labels

    def _load(self, order: torch.Tensor, draws: torch.Tensor | None, epoch: int | None) -> Iterator[Batch]:
        self._sampler.batches = _keys(self._plan, order, draws, epoch)
        try:
            yield from self._loader
        except UserError as error:  # from a worker, its text begins with PyTorch's traceback
            raise UserError(str(error).rpartition(f"{UserError.__module__}.{UserError.__name__}: ")[2]) from error
        except (ConnectionError, EOFError, FileNotFoundError) as error:
            # A worker that dies while it sends a batch breaks the connection just before the signal of its death
            # arrives, at which PyTorch raises a clearer error. Seldom, it misses that signal.
            time.sleep(_DEATH_NOTICE_SECONDS)
            raise RuntimeError(
                f"DataLoader worker (pid unknown) broke off while it handed over a batch: {error}"
            ) from error


class _SetSampler(Sampler[list[_Key]]):
    """Yields the batches that were set last."""

    batches: Iterator[list[_Key]]

    def __iter__(self) -> Iterator[list[_Key]]:
        return self.batches


def _keys(plan: BatchPlan, order: torch.Tensor, draws: torch.Tensor | None, epoch: int | None) -> Iterator[list[_Key]]:
    for rows in plan.own(order):
        happens = [None] * len(rows) if draws is None else draws[rows].tolist()
        yield [(row, draw, epoch) for row, draw in zip(rows.tolist(), happens, strict=True)]


class _PackedImages(Dataset[Batch]):
    def __init__(self, part: Part, padding: int, transform: Transform | None) -> None:
        self._images, self._normalise, self._padding = part.images, part.normalise, padding
        self._transform = transform
        self._labels = torch.from_numpy(np.array(part.labels))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, key: _Key) -> Batch:
        row, draw, epoch = key
        image = self._images[row]
        item = torch.from_numpy(augmented(image, draw, self._padding) if draw else np.array(image))
        if self._transform and epoch is not None:
            item = self._transform(item, epoch, row)
        return self._normalise(item), self._labels[row]

    def collate(self, images: list[Batch]) -> Batch:
        """Collate as PyTorch does. A rank without a share of a small last batch gets an empty batch."""
        if images:
            return tuple(default_collate(images))
        return self._normalise(torch.from_numpy(np.array(self._images[:0]))), self._labels[:0]


def _silence_broken_connections(_worker: int) -> None:
    """Silence a worker whose batch can't be sent because the training ended. It would print a traceback below the
    training's own error."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, (ConnectionError, EOFError)):
            sys.__excepthook__(kind, error, trace)

    sys.excepthook = hook
