"""Items as `split` gets them, and images as arrays: decoded, in one size and number of channels."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from photofinish.data import Dtype, PartName, Task
from photofinish.errors import UserError

UInt8Array = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
Size = tuple[int, int]
"""height, width"""
_FEW_SHADES_OF_16_BITS = 1 << 14
"""images of 12 bits, say, saved with 16: 8 bits would keep 16 of their 4,096 shades"""
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
"""errors that PIL raises on damaged files"""


@dataclass(frozen=True)
class LabelledImages:
    """All items of a data set, which may be larger than memory."""

    shape: tuple[int, ...]
    """of an image: channels, height, width"""
    labels: npt.NDArray[Any]
    """number of each item's class; for other tasks, float32 (count, numbers)"""
    class_names: tuple[str, ...]
    read: Callable[[Int64Array], npt.NDArray[Any]]
    """returns the items of the given rows: (count, *shape)"""
    own_parts: Mapping[PartName, Int64Array] = field(default_factory=dict)
    """rows of each part that the source itself has; if it has none, `split` divides all rows"""
    origins: Sequence[str] = ()
    """file name of each image, if it has one"""
    notes: Sequence[str] = ()
    """warnings about the items, a line each"""
    task: Task = "classes"
    dtype: Dtype = "uint8"
    """uint8 for images, another type for items of any shape"""


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array as np.save does; on a full disk np.save itself raises an error without errno."""
    content = io.BytesIO()
    np.save(content, array)
    path.write_bytes(content.getbuffer())


def prepared(image: Image.Image, size: Size | None, channels: int) -> UInt8Array:
    """Return the pixels as (channels, height, width). Transparency is dropped, as torchvision does."""
    if _has_16_bits(image):
        # PIL would clip to 255.
        shades = np.asarray(image).astype(np.int64)
        if 0 < shades.max() < _FEW_SHADES_OF_16_BITS:
            raise ValueError(
                f"its pixels have 16 bits, of which 65535 is white, and the brightest is {shades.max()}: scale all "
                f"images to the full range by one factor, or save them with 8 bits"
            )
        image = Image.fromarray(((shades + 128) // 257).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits, and no value is known to be white: save it with 8 or 16 bits")
    elif image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")  # PIL warns otherwise
    image = image.convert("L" if channels == 1 else "RGB")
    if size is not None and (image.height, image.width) != size:
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.array(image, dtype=np.uint8)
    return pixels[np.newaxis] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _has_16_bits(image: Image.Image) -> bool:
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))


def pixels_of(image: Image.Image) -> UInt8Array:
    """Return the pixels in the image's own size, with one channel if it is grey, else three."""
    is_grey = image.mode in ("1", "L", "LA", "La", "I", "F") or image.mode.startswith("I;16")
    return prepared(image, None, 1 if is_grey else 3)


def decode(path: Path, size: Size | None, channels: int, *, upright: bool = False) -> UInt8Array:
    """Return the pixels of an image file; turned as its EXIF data say if it is to be `upright`."""
    try:
        with Image.open(path) as image:
            if upright:
                with suppress(*UNREADABLE):  # damaged EXIF data; damaged pixels raise again below
                    ImageOps.exif_transpose(image, in_place=True)
            return prepared(image, size, channels)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing") from error
    except UNREADABLE as error:
        raise UserError(f"{path} can't be read as an image: {error}") from error


@dataclass(frozen=True)
class ImageFiles:
    """Map-style data set of image files, decoded one at a time."""

    paths: Sequence[Path]
    labels: Sequence[int]
    classes: tuple[str, ...]
    size: Size | None
    channels: int
    upright: bool = False

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[UInt8Array, int]:
        return decode(self.paths[row], self.size, self.channels, upright=self.upright), self.labels[row]
