"""Flips and crops of training images. Seed, epoch and image decide them: no device, input path or process does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from photofinish.batches.randomness import choices, fractions, hashed_rows

if TYPE_CHECKING:
    from photofinish.params.training import Augmentation


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
