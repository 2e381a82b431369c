"""Batches: which images each one holds, in which order, and how an image becomes a network's input.

All randomness is stateless: generators are seeded from (seed, epoch), and custom transforms from (seed, epoch, item).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from photofinish.custom_code import Reference, users_code
from photofinish.errors import UserError

if TYPE_CHECKING:
    from photofinish.config.experiment import Augmentation, CustomTransform
    from photofinish.data import PartName

_MOST_SEED = 2**32
"""NumPy takes seeds below it"""

Batch = tuple[torch.Tensor, torch.Tensor]


class Batches(Protocol):
    """The batches of one split, from any input path."""

    image_count: int
    batch_size: int

    def prepare(self, epoch: int) -> None:  # noqa: ARG002
        """Do the host's work before the epoch's first batch ahead of time, if the input path has any."""
        return

    def train_batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of one training epoch, on the device."""
        return map(self.placed, self.unplaced(epoch))

    def unplaced(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of one training epoch before `placed` copies them to the device."""

    def placed(self, batch: Batch) -> Batch:
        """Return the batch on the device. Resident batches are there already."""
        return batch

    def place(self, count: int) -> Batch:
        """Return static buffers for so many batches, filled with the first ones of an epoch.

        Loaders have buffers for one batch only: more would only delay the next batch.
        """
        assert count == 1
        return next(iter(self.train_batches(0)))

    def put(self, place: Batch, epoch: int, alone: int = 0) -> Iterator[Batch | None]:
        """Copy an epoch's batches into the static buffers. Yields None each time they are full.

        The first `alone` batches, and those that are left over, are yielded themselves.
        """
        for number, batch in enumerate(self.train_batches(epoch)):
            if number < alone or len(batch[1]) < len(place[1]):
                yield batch
                continue
            for there, part in zip(place, batch, strict=True):
                there.copy_(part)
            yield None

    def eval_batches(self) -> Iterator[Batch]:
        """Yield each image once, unchanged and in stored order, for evaluation."""


@dataclass(frozen=True)
class Part:
    """One part of a packed split, and how its images become a network's inputs."""

    name: PartName
    images: npt.NDArray[Any]
    """uint8; items of other types are no images, and stay as they are unless a mean is given"""
    labels: npt.NDArray[Any]
    normalise: Normaliser


class Normaliser:
    """Scales uint8 to 0..1, then subtracts the training part's mean and divides by its standard deviation.

    Floats aren't scaled. Without a mean, items stay as they are.
    """

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], dimensions: int = 3) -> None:
        ones = [1] * (dimensions - 1)
        self._mean, self._std = torch.tensor(mean).view(-1, *ones), torch.tensor(std).view(-1, *ones)
        self._stays = not mean

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if self._stays:
            return images
        scaled = images.float().div_(255) if images.dtype == torch.uint8 else images.clone()
        return scaled.sub_(self._mean).div_(self._std)


@dataclass(frozen=True)
class BatchPlan:
    """Which images each batch holds and how they are augmented, on every device and input path alike."""

    image_count: int
    batch_size: int
    seed: int
    rank: int = 0
    size: int = 1
    """World size: each rank takes every `size`-th image of a batch, from `rank` on"""
    augmentation: Augmentation | None = None

    def order(self, epoch: int) -> torch.Tensor:
        """Return the images' rows in the order of the epoch."""
        return batch_order(self.image_count, self.seed, epoch)

    @property
    def padding(self) -> int:
        """Number of black pixels added on each side before an image is cropped."""
        return self.augmentation.crop_padding if self.augmentation else 0

    def draws(self, epoch: int) -> torch.Tensor | None:
        """Return a row for each image, its Draw, or None without augmentation.

        They are drawn as torchvision's RandomCrop with padding and RandomHorizontalFlip do, each from its own stream,
        so that an image's draw doesn't depend on how many images there are.
        """
        if self.augmentation is None:
            return None
        top, left, flip = (_stream(what, self.seed, epoch) for what in ("crop top", "crop left", "flip"))
        places, count = 2 * self.padding + 1, (self.image_count,)
        tops, lefts = (torch.randint(places, count, generator=each) for each in (top, left))
        mirrored = torch.rand(count, generator=flip, dtype=torch.float64) < self.augmentation.flip
        return torch.stack([tops, lefts, mirrored], dim=1)

    def own(self, ordered: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield this rank's share of each batch, of anything that has a row per image."""
        for batch in torch.split(ordered, self.batch_size):
            yield batch[self.rank :: self.size]


def derived_seed(*parts: object) -> int:
    """Return a seed for a purpose, so that no two streams are the same."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # torch takes 63 bits


def _stream(*parts: object) -> torch.Generator:
    """Return a generator on the CPU, which draws the same for every device."""
    return torch.Generator().manual_seed(derived_seed(*parts))


def batch_order(count: int, seed: int, epoch: int) -> torch.Tensor:
    """Return the order of the training images in one epoch."""
    return torch.randperm(count, generator=_stream("order", seed, epoch))


def seed_epoch(seed: int, epoch: int, rank: int = 0) -> None:
    """Seed what the network itself draws (dropout), on every device of this process.

    Each rank has its own stream. Rank 0 draws as a single process does.
    """
    torch.manual_seed(derived_seed("network", seed, epoch, *([rank] if rank else [])))


Draw = tuple[int, int, int]
"""How one image is augmented: cut out of the bordered image at (top, left), then mirrored (1) or not (0)"""


def augmented(image: npt.NDArray[np.uint8], draw: Draw, padding: int) -> npt.NDArray[np.uint8]:
    """Augment one image (channels, height, width), before it is normalised."""
    top, left, mirrored = draw
    _, height, width = image.shape
    crop = with_border(image, padding)[:, top : top + height, left : left + width]
    return np.ascontiguousarray(crop[:, :, ::-1] if mirrored else crop)


def with_border(images: npt.NDArray[np.uint8], padding: int) -> npt.NDArray[np.uint8]:
    """Return a copy of one image or many with so many black pixels added on each side."""
    *leading, height, width = images.shape  # written out: np.pad takes five times as long for one small image
    bordered = np.zeros((*leading, height + 2 * padding, width + 2 * padding), dtype=np.uint8)
    bordered[..., padding : padding + height, padding : padding + width] = images
    return bordered


class Transform:
    """A custom function of an item, or an instance of a custom class."""

    def __init__(self, settings: CustomTransform, seed: int) -> None:
        self._name, self._seed, self._generator = settings.name, seed, np.random.MT19937()
        found = Reference.of(settings.name).load()
        self._own: Callable[..., Any] = partial(found, **settings.arguments)
        if isinstance(found, type):
            with users_code(f"transform {settings.name} can't be made"):
                self._own = self._own()

    def __call__(self, item: torch.Tensor, epoch: int, row: int) -> torch.Tensor:
        """Transform a packed item. Raises UserError if its shape or type changes."""
        seed = derived_seed("transform", self._seed, epoch, row) % _MOST_SEED
        with self._seeded(seed), users_code(f"transform {self._name} fails on training item {row}"):
            changed = self._own(item.clone())
        if not isinstance(changed, torch.Tensor) or (changed.shape, changed.dtype) != (item.shape, item.dtype):
            raise UserError(
                f"transform {self._name} makes {_described(changed)} of {_described(item)}: the items that it doesn't "
                f"see, for validation, stay as they are, so shape and type must"
            )
        return changed

    @contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """Seed Python's, NumPy's and torch's CPU generators, and restore them at the end.

        torch.manual_seed would take ten times as long as all of this, and seed the GPU that the network draws from.
        NumPy takes long to copy its generator's state, so its generator is exchanged.
        """
        python, torchs, numpys = random.getstate(), torch.default_generator.get_state(), get_bit_generator()
        set_bit_generator(self._generator)
        random.seed(seed)
        np.random.seed(seed)
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            set_bit_generator(numpys)
            torch.default_generator.set_state(torchs)


def _described(item: Any) -> str:
    if not isinstance(item, torch.Tensor):
        return f"a {type(item).__name__}"
    return f"{str(item.dtype).removeprefix('torch.')} of shape {tuple(item.shape)}"
