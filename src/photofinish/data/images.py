"""Images as arrays, decoded and converted to one size and number of channels."""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from photofinish.errors import UserError

UInt8Array = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
Size = tuple[int, int]
"""Height and width."""
_MOST_PROCESSES = 8
_IMAGES_PER_PROCESS = 100
UNREADABLE = (
    OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip
"""Errors that PIL raises on damaged files."""


def to_pixels(image: Image.Image, size: Size | None, channels: int) -> UInt8Array:
    """Return the pixels as (channels, height, width), without transparency, as torchvision does."""
    is_int = image.mode == "I" and image.format in ("PNG", "PPM")
    if is_int or image.mode.startswith("I;16"):  # PIL would clip at 255
        shades = np.asarray(image).astype(np.int64)
        image = Image.fromarray(((shades + 128) // 257).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits: save it with 8 or 16 bits")
    image = image.convert("L" if channels == 1 else "RGB")
    if size is not None and (image.height, image.width) != size:
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.array(image, dtype=np.uint8)
    if channels == 1:
        return pixels[np.newaxis]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def pixels_of(image: Image.Image) -> UInt8Array:
    """Return the pixels in the image's own size, in one channel if grey, else in three."""
    is_grey = image.mode in ("1", "L", "LA", "La", "I", "F") or image.mode.startswith("I;16")
    return to_pixels(image, None, 1 if is_grey else 3)


def decode(path: Path, size: Size | None, channels: int) -> UInt8Array:
    """Return the pixels of an image file, rotated as its EXIF data require."""
    try:
        with Image.open(path) as image:
            with suppress(*UNREADABLE):  # damaged EXIF data, or pixels that raise again below
                ImageOps.exif_transpose(image, in_place=True)
            return to_pixels(image, size, channels)
    except UNREADABLE as error:
        raise UserError(f"{path} can't be read as an image: {error}") from error


def decoding_processes(image_count: int) -> int:
    """Return how many processes should decode image files. 0 means this process."""
    return min(_MOST_PROCESSES, os.cpu_count() or 1, image_count // _IMAGES_PER_PROCESS)
