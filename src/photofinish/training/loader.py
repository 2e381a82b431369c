"""Batches from PyTorch's DataLoader, as the tutorials have it: images one by one, in worker processes if asked."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from photofinish.errors import UserError
from photofinish.training.batches import Batch, BatchPlan, Part
from photofinish.training.cuda_failures import shared_memory_in_brackets
from photofinish.training.randomness import Draw, Draws, augmented

if TYPE_CHECKING:
    from types import TracebackType

    from photofinish.params.experiment import LoaderInput


_WORKER_DIED = re.compile(r"DataLoader worker \(pid[^)]*\) .*")
_NO_SHARED_MEMORY = re.compile(r"unable to allocate shared memory.*")
_DEATH_NOTICE_SECONDS = 2.0
_Key = tuple[int, Draw | None]
"""an image's row and what happens to it, so that a worker needs to know neither seed nor epoch"""


class LoaderBatches:
    """One DataLoader for the whole run; each epoch has its order set, so that workers may live on."""

    def __init__(self, plan: BatchPlan, part: Part, device: torch.device, settings: LoaderInput) -> None:
        self.image_count, self.batch_size = plan.image_count, plan.batch_size
        self._plan, self._device, self._non_blocking = plan, device, settings.non_blocking
        self._sampler = _SetSampler(plan)
        dataset = _PackedImages(part, plan.augmentation.crop_padding if plan.augmentation else 0)
        self._loader = DataLoader(
            dataset,
            batch_sampler=self._sampler,
            num_workers=settings.workers,
            collate_fn=dataset.collate,
            # Pinned pages serve copies to a device only. On the CPU, PyTorch would pin for an accelerator that takes
            # no part, and start it up, or warn that there is none.
            pin_memory=settings.pin_memory and device.type != "cpu",
            prefetch_factor=settings.prefetch_factor,
            persistent_workers=settings.persistent_workers,
            worker_init_fn=_say_nothing_of_a_reader_that_left,
            generator=torch.Generator(),  # its own, so that loading draws nothing from the network's stream
        )

    def shuffled(self, epoch: int) -> Iterator[Batch]:
        return map(self.placed, self.unplaced(epoch))

    def in_order(self) -> Iterator[Batch]:
        return map(self.placed, self._load(torch.arange(self.image_count), None))

    def unplaced(self, epoch: int) -> Iterator[Batch]:
        return self._load(self._plan.order(epoch), self._plan.draws(epoch))

    def placed(self, batch: Batch) -> Batch:
        images, labels = batch
        return (
            images.to(self._device, non_blocking=self._non_blocking),
            labels.to(self._device, non_blocking=self._non_blocking),
        )

    def _load(self, order: torch.Tensor, draws: Draws | None) -> Iterator[Batch]:
        self._sampler.order, self._sampler.draws = order, draws
        try:
            yield from self._loader  # which forgets a pass that was left halfway
        except (ConnectionError, EOFError, FileNotFoundError) as error:
            # A worker that dies while it hands over a batch breaks the connection, a moment before the signal of its
            # death arrives, at which PyTorch raises what tells more; seldom, it misses that signal.
            time.sleep(_DEATH_NOTICE_SECONDS)
            raise RuntimeError(
                f"DataLoader worker (pid unknown) broke off while it handed over a batch: {error}"
            ) from error


class _SetSampler(Sampler[list[_Key]]):
    """Hands out the batches of the order and draws that were set last."""

    def __init__(self, plan: BatchPlan) -> None:
        self._plan = plan
        self.order = torch.empty(0, dtype=torch.int64)
        self.draws: Draws | None = None

    def __iter__(self) -> Iterator[list[_Key]]:
        order, draws = self.order, self.draws
        for rows in self._plan.own(order):
            yield [(row, draws.of(row) if draws else None) for row in rows.tolist()]


class _PackedImages(Dataset[Batch]):
    def __init__(self, part: Part, padding: int) -> None:
        self._images, self._normalise, self._padding = part.images, part.normalise, padding
        self._labels = torch.from_numpy(np.array(part.labels))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, key: _Key) -> Batch:
        row, draw = key
        image = self._images[row]
        image = augmented(image, draw, self._padding) if draw else np.array(image)
        return self._normalise(torch.from_numpy(image)), self._labels[row]

    def collate(self, images: list[Batch]) -> Batch:
        """PyTorch's own way, and for a process that gets nothing of a small last batch, a batch of nothing."""
        if images:
            together: Batch = tuple(default_collate(images))
            return together
        return torch.empty((0, *self._images.shape[1:])), self._labels[:0]


def _say_nothing_of_a_reader_that_left(_worker: int) -> None:
    """A training process that ends breaks off the batch that a worker is just handing over, in a thread of Python's own
    which would print a traceback below the one line that tells why the training ended."""

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, (ConnectionError, EOFError)):
            sys.__excepthook__(kind, error, trace)

    sys.excepthook = told


@contextmanager
def worker_faults_explained() -> Iterator[None]:
    """PyTorch tells of a worker's death wherever the main process is just then, so this goes around all of a run."""
    try:
        yield
    except RuntimeError as error:
        told = _WORKER_DIED.search(str(error)) or _NO_SHARED_MEMORY.search(str(error))
        if told is None:
            raise
        raise UserError(
            f"a process that loads images failed: {told.group().split('. ')[0]}. Most often memory has run out, or "
            f"the shared memory that batches pass through{shared_memory_in_brackets()}: enlarge it, or lower "
            f"input.workers or input.prefetch_factor in params.yaml; input.workers: 0 loads in the training process "
            f"and needs neither"
        ) from error
