"""Random streams without state, each decided by seed and epoch: the order of images, and their augmentation."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from photofinish.params.experiment import Augmentation


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def derived_seed(*parts: object) -> int:
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # torch takes 63 bits


def batch_order(count: int, seed: int, epoch: int) -> torch.Tensor:
    """The order of the training images in one epoch: made on the CPU, the same for every device."""
    generator = torch.Generator().manual_seed(derived_seed("order", seed, epoch))
    return torch.randperm(count, generator=generator)


def seed_epoch(seed: int, epoch: int, rank: int = 0) -> None:
    """What the network itself draws (dropout) starts anew with each epoch, on every device of this process.

    Processes that train together draw each from a stream of its own; the first one's is that of a single process.
    """
    torch.manual_seed(derived_seed("network", seed, epoch, *([rank] if rank else [])))


def hashed_rows(count: int, *parts: object) -> npt.NDArray[np.uint64]:
    """64 random bits for each row, decided by `parts` and the row's number alone: splitmix64, counted by the rows."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the point
        bits = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN + np.uint64(derived_seed(*parts))
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def fractions(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Evenly from 0 up to, but never, 1; exact, as a double holds 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def choices(bits: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.int64]:
    """Evenly from 0 to `count` - 1; for counts of thousands the unevenness is below a millionth."""
    return ((bits >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64)


class Draw(NamedTuple):
    """What happens to one image: cut out of the bordered image from (top, left) on, then mirrored or not."""

    top: int
    left: int
    mirrored: bool


@dataclass(frozen=True)
class Draws:
    """What happens to each image of a part in one epoch, by its row."""

    top: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]
    mirrored: npt.NDArray[np.bool_]

    def of(self, row: int) -> Draw:
        return Draw(int(self.top[row]), int(self.left[row]), bool(self.mirrored[row]))


def draw_epoch(settings: Augmentation, image_count: int, seed: int, epoch: int) -> Draws:
    """As torchvision's RandomCrop with padding and RandomHorizontalFlip draw, from a stream for each of the three."""
    top, left, flip = (hashed_rows(image_count, what, seed, epoch) for what in ("crop top", "crop left", "flip"))
    places = 2 * settings.crop_padding + 1
    return Draws(choices(top, places), choices(left, places), fractions(flip) < settings.flip)


def no_change(image_count: int, padding: int) -> Draws:
    """The draws that leave every image as it is."""
    middle = np.full(image_count, padding)
    return Draws(middle, middle, np.zeros(image_count, dtype=np.bool_))


def augmented(image: npt.NDArray[np.uint8], draw: Draw, padding: int) -> npt.NDArray[np.uint8]:
    """One image (channels, height, width), before it is normalised."""
    _, height, width = image.shape
    crop = with_border(image, padding)[:, draw.top : draw.top + height, draw.left : draw.left + width]
    return np.ascontiguousarray(crop[:, :, ::-1] if draw.mirrored else crop)


def with_border(images: npt.NDArray[np.uint8], padding: int) -> npt.NDArray[np.uint8]:
    """A copy of one image or many with so many black pixels added on each side."""
    *leading, height, width = images.shape
    bordered = np.zeros((*leading, height + 2 * padding, width + 2 * padding), dtype=np.uint8)
    bordered[..., padding : padding + height, padding : padding + width] = images
    return bordered
