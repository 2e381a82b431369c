"""Batches: their samplers, order, transforms, and the conversion to a network's input.

All randomness is stateless: generators are seeded from (seed, epoch), and custom code that loads a
sample from (seed, epoch, row).
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from photofinish.config.pytorch_names import TRANSFORMS
from photofinish.custom.reference import CodeReference
from photofinish.custom.running import (
    accepted_arguments,
    as_function,
    run_custom_code,
    seed_generators,
)
from photofinish.errors import ConfigError, UserError
from photofinish.models.custom import generators_seeded
from photofinish.nested import as_nested, leaves, map_nested, samples_in

if TYPE_CHECKING:
    from photofinish.config.experiment import Augmentation, BatchTransformSettings, Sampler
    from photofinish.data import PartName
    from photofinish.data.packed import PackedSplit

SEEDS = 2**32
"""Upper limit of NumPy's seeds."""
Batch = tuple[Any, Any]
"""Inputs and targets: tensors, or tuples or dicts of tensors."""


def map_batch(function: Callable[[torch.Tensor], torch.Tensor], batch: Batch) -> Batch:
    inputs, targets = batch
    return map_nested(function, inputs), map_nested(function, targets)


def to_tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """Copy an array, which may be memory-mapped, to a tensor."""
    return torch.from_numpy(np.array(array))


def first_samples(batch: Batch, count: int) -> Batch:
    return map_batch(lambda tensor: tensor[:count], batch)


def split_batch(batch: Batch, size: int | list[int]) -> list[Batch]:
    """Split a batch into parts of `size` samples, or sizes. The last part may be smaller."""
    parts = [torch.split(tensor, size) for tensor in tensors_of(batch)]
    return [as_batch(tensors, batch) for tensors in zip(*parts, strict=True)]


def as_batch(tensors: Sequence[torch.Tensor], like: Batch) -> Batch:
    """Return tensors, the inputs first, in the structure of another batch."""
    inputs, targets = like
    count = len(leaves(inputs))
    return as_nested([*tensors[:count]], inputs), as_nested([*tensors[count:]], targets)


def tensors_of(batch: Batch) -> list[torch.Tensor]:
    """Return all tensors of a batch, the inputs first."""
    inputs, targets = batch
    return [*leaves(inputs), *leaves(targets)]


def bytes_of_a_sample(batch: Batch) -> int:
    return sum(tensor[0].nbytes for tensor in leaves(batch[0]))


class Batches(Protocol):
    image_count: int
    batch_size: int
    _plan: BatchPlan

    @property
    def steps(self) -> int:
        return -(-self.image_count // self.batch_size)

    def batch_samples(self, number: int) -> int:
        """Return the number of samples in the epoch's batch `number`, over all ranks."""
        return min(self.batch_size, self.image_count - number * self.batch_size)

    def resize(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self._plan = replace(self._plan, batch_size=batch_size)

    def train_batches(self, epoch: int, at_once: int = 1) -> Iterator[Batch]:
        """Yield the batches of one training epoch, on the device.

        Resident input joins `at_once` batches into one, and fewer at the end of an epoch.
        """
        return map(self.to_device, self.host_batches(epoch, at_once))

    def first(self) -> Batch:
        return next(iter(self.train_batches(0)))

    def eval_batches(self) -> Iterator[Batch]:
        """Yield each sample once, unchanged and in stored order, for evaluation."""

    def host_batches(self, epoch: int, at_once: int = 1) -> Iterator[Batch]:
        """Yield the batches of one training epoch before `to_device` copies them."""

    def to_device(self, batch: Batch) -> Batch:
        """Return the batch on the device. Resident batches are on it already."""
        return batch


@dataclass(frozen=True)
class Part:
    """Part of a packed split, with the conversion of samples to a network's inputs."""

    name: PartName
    images: Any
    """Nested columns (data.packed) of images as uint8, or of samples with other dtypes."""
    labels: Any
    normalise: Normaliser
    read: Callable[[int], tuple[Any, Any]] | None = None
    """Function that reads an input and a target by row, if they are read in each epoch."""


class Normaliser:
    """Normalisation with the training part's mean and standard deviation.

    uint8 is scaled to 0..1 first, floats are not. Without a mean, samples are not changed.
    """

    def __init__(
        self, mean: tuple[float, ...], std: tuple[float, ...], dimensions: int = 3
    ) -> None:
        ones = [1] * (dimensions - 1)
        self._mean = torch.tensor(mean).view(-1, *ones)
        self._std = torch.tensor(std).view(-1, *ones)
        self._white = torch.tensor(255.0)
        self._is_identity = not mean

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if self._is_identity:
            return images
        # CUDA would multiply by the inverse of a Python number, for other bits.
        scaled = images.float().div_(self._white) if images.dtype == torch.uint8 else images.clone()
        return scaled.sub_(self._mean).div_(self._std)


def has_live_inputs(split: PackedSplit) -> bool:
    """Return True if inputs are not packed, but read from the data set in each epoch."""
    return split.manifest.decode == "each_epoch"


def part_of(split: PackedSplit, name: PartName) -> Part:
    manifest = split.manifest
    normalise = Normaliser(manifest.mean, manifest.std, len(manifest.shape))
    if not has_live_inputs(split):
        return Part(name, split.images(name), split.labels(name), normalise)
    # Imported here, so that other trainings do not import the code that reads data sets.
    from photofinish.data.sources import LiveSamples

    return Part(name, None, split.labels(name), normalise, LiveSamples(split, name))


@dataclass(frozen=True)
class BatchPlan:
    """Samples of each batch and their augmentation, equal on every device and input."""

    image_count: int
    batch_size: int
    seed: int
    rank: int = 0
    size: int = 1
    """World size. Each rank takes every `size`-th sample of a batch, starting at `rank`."""
    augmentation: Augmentation | None = None
    sampler: Callable[[int], torch.Tensor] | None = None
    """Function that returns the rows of an epoch. Default: each row once, in random order."""

    def order(self, epoch: int) -> torch.Tensor:
        if self.sampler:
            return self.sampler(epoch)
        return batch_order(self.image_count, self.seed, epoch)

    @property
    def padding(self) -> int:
        """Number of black pixels added on each side of an image before cropping."""
        return self.augmentation.crop_padding if self.augmentation else 0

    def repeats(self, order: torch.Tensor) -> torch.Tensor:
        """Return how often each sample came before in the epoch, as samplers may draw it again."""
        counts = Counter[int]()
        before = torch.zeros_like(order)
        for place, row in enumerate(order.tolist() if self.sampler else ()):
            before[place] = counts[row]
            counts[row] += 1
        return before

    def draws(self, epoch: int, order: torch.Tensor) -> torch.Tensor | None:
        """Return the Draw of each sample in the epoch's order, or None without augmentation.

        Draws are distributed as in torchvision's RandomCrop with padding and RandomHorizontalFlip.
        Each number of a Draw has its own stream, so that it doesn't depend on the number of images.
        """
        if self.augmentation is None:
            return None
        count = (len(order) if self.sampler else self.image_count,)
        positions = 2 * self.padding + 1
        top, left, flip = (
            stream(name, self.seed, epoch) for name in ("crop top", "crop left", "flip")
        )
        tops = torch.randint(positions, count, generator=top)
        lefts = torch.randint(positions, count, generator=left)
        mirrored = torch.rand(count, generator=flip, dtype=torch.float64) < self.augmentation.flip
        drawn = torch.stack([tops, lefts, mirrored], dim=1)
        return drawn if self.sampler else drawn[order]

    def split(self, ordered: torch.Tensor, at_once: int = 1) -> Iterator[torch.Tensor]:
        """Split a tensor with a row for each sample into this rank's shares of the batches."""
        for batch in torch.split(ordered, self.batch_size * at_once):
            yield batch[self.rank :: self.size]


def derived_seed(*parts: object) -> int:
    """Return a seed for a purpose, so that every purpose has its own stream."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # torch accepts 63 bits


def stream(*parts: object) -> torch.Generator:
    """Return a generator on the CPU, so that every device gets equal draws."""
    return torch.Generator().manual_seed(derived_seed(*parts))


def batch_order(count: int, seed: int, epoch: int) -> torch.Tensor:
    return torch.randperm(count, generator=stream("order", seed, epoch))


def seed_epoch(seed: int, epoch: int, rank: int = 0) -> None:
    """Seed the draws of the network (dropout) and of custom steps, on all devices of this process.

    Each rank has its own stream. Rank 0's stream is a single process's.
    """
    network_seed = derived_seed("network", seed, epoch, *([rank] if rank else []))
    seed_generators(network_seed % SEEDS)
    torch.manual_seed(network_seed)


def make_sampler(settings: Sampler, targets: Any, seed: int) -> Callable[[int], torch.Tensor]:
    """Return a function that draws the rows of an epoch, one row per target."""
    if settings.name == "balanced":
        weights = balanced_weights(targets)

        def balanced(epoch: int) -> torch.Tensor:
            generator = stream("sampler", seed, epoch)
            count = len(weights)
            return torch.multinomial(weights, count, replacement=True, generator=generator)

        return balanced
    choose = as_function(CodeReference.of(settings.name).load(), settings.arguments)

    def custom(epoch: int) -> torch.Tensor:
        drawn = derived_seed("sampler", seed, epoch) % SEEDS
        # Ranks must draw alike, also in a function that ignores its seed.
        with generators_seeded(drawn), run_custom_code(f"sampler {settings.name} fails"):
            rows = choose(map_nested(torch.clone, targets), drawn)
            rows = torch.as_tensor(rows, dtype=torch.int64)
        count = samples_in(targets)
        if rows.shape != (count,) or rows.min() < 0 or rows.max() >= count:
            raise UserError(
                f"sampler {settings.name} must return {count} rows, as many as there are "
                f"training samples, each from 0 to {count - 1}"
            )
        return rows

    return custom


def balanced_weights(targets: Any) -> torch.Tensor:
    """Return each sample's weight, 1 divided by the number of samples in its class.

    With several labels, it is the mean over the sample's labels. To have none counts as a label.
    """
    refused = ConfigError("sampler: balanced needs targets that are classes or labels")
    if isinstance(targets, tuple | dict):
        raise refused
    if targets.dtype == torch.int64 and targets.dim() == 1:
        return (1 / torch.bincount(targets).double())[targets]
    if targets.dim() != 2 or not torch.isin(targets, torch.tensor([0.0, 1.0])).all():
        raise refused
    labels = torch.cat([targets, targets.sum(dim=1, keepdim=True) == 0], dim=1).double()
    return (labels / labels.sum(dim=0).clamp(min=1)).sum(dim=1) / labels.sum(dim=1)


class BatchTransform:
    """Transform of training batches on the device, seeded by (seed, epoch, batch)."""

    def __init__(
        self,
        settings: BatchTransformSettings,
        seed: int,
        classes: int,
    ) -> None:
        self._name, self._seed = settings.name, seed
        custom = TRANSFORMS.reference(settings.name).load()
        with run_custom_code(f"batch_transform {settings.name} can't be made"):
            offered = {"num_classes": classes}
            arguments = accepted_arguments(custom, offered, settings.arguments)
            self._call = as_function(custom, arguments)

    def __call__(self, batch: Batch, epoch: int, number: int) -> Batch:
        seed = derived_seed("batch", self._seed, epoch, number) % SEEDS
        failing = f"batch_transform {self._name} fails on batch {number} of epoch {epoch + 1}"
        with generators_seeded(seed), run_custom_code(failing):
            inputs, targets = self._call(*batch)
        return inputs, targets


Wait = tuple[float, float]
"""Time to wait for a batch, and CPU time of this thread in it."""


def noting_waits(batches: Iterator[Batch], waits: list[Wait]) -> Iterator[Batch]:
    began = time.perf_counter(), time.thread_time()
    for batch in batches:
        ended = time.perf_counter(), time.thread_time()
        waits.append((ended[0] - began[0], ended[1] - began[1]))
        yield batch
        del batch  # as in a training
        began = time.perf_counter(), time.thread_time()


Draw = tuple[int, int, int]
"""Augmentation of an image: top and left of the crop, and 1 if the crop is mirrored."""


def augmented(image: npt.NDArray[np.uint8], draw: Draw, padding: int) -> npt.NDArray[np.uint8]:
    """Augment an image (channels, height, width) before normalisation."""
    top, left, mirrored = draw
    _, height, width = image.shape
    crop = with_border(image, padding)[:, top : top + height, left : left + width]
    return np.ascontiguousarray(crop[:, :, ::-1] if mirrored else crop)


def with_border(images: npt.NDArray[np.uint8], padding: int) -> npt.NDArray[np.uint8]:
    """Return a copy of one or many images, with black pixels added on each side."""
    # np.pad takes five times as long for one small image.
    *leading, height, width = images.shape
    bordered = np.zeros((*leading, height + 2 * padding, width + 2 * padding), dtype=np.uint8)
    bordered[..., padding : padding + height, padding : padding + width] = images
    return bordered
