"""Labelled images, as every source hands them to `split`."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from photofinish.data import Dtype, PartName, Task
from photofinish.errors import MistakeError, UserError

UInt8Array = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
Size = tuple[int, int]
"""height, width"""
Shape = tuple[int, int, int]
"""channels, height, width"""


@dataclass(frozen=True)
class LabelledImages:
    """Images are decoded when asked for, so that a data set may be larger than memory."""

    shape: tuple[int, ...]
    """of an image: channels, height, width"""
    labels: npt.NDArray[Any]
    """the number of each image's class; of another task, float32 (count, numbers)"""
    class_names: tuple[str, ...]
    read: Callable[[Int64Array], npt.NDArray[Any]]
    """the images of the given rows: (count, channels, height, width)"""
    own_parts: Mapping[PartName, Int64Array] = field(default_factory=dict)
    """the rows of each part that the source itself has; where it has none, `split` divides all rows"""
    origins: Sequence[str] = ()
    """what the user calls each image, where each has a name"""
    notes: Sequence[str] = ()
    """what was odd about the user's files, a line each"""
    task: Task = "classes"
    dtype: Dtype = "uint8"
    """of another one they are no images, but items of any shape"""


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write it as np.save does, which tells of a full disk in an error that doesn't say so."""
    content = io.BytesIO()
    np.save(content, array)
    path.write_bytes(content.getbuffer())


_GREY_MODES = ("1", "L", "LA", "La", "I", "F")
_OF_16_BITS_IN_I = ("PNG", "PPM")
"""formats that have at most 16 bits a pixel, which PIL holds in 32"""
_FEW_SHADES_OF_16_BITS = 1 << 14
_FORMATS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP")
"""whatever a file is called: for others PIL may start programs (Ghostscript for EPS), or needs a plug-in"""
_MOST_SIZES_SHOWN = 5
_MOST_THREADS = 8
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)


def prepared(image: Image.Image, size: Size | None, channels: int) -> UInt8Array:
    """The pixels as (channels, height, width). Transparency is dropped, as torchvision does."""
    if image.mode == "F":
        raise ValueError("its pixels are fractions, of which nothing says what is black and what is white")
    if image.mode == "I" or image.mode.startswith("I;16"):
        image = _of_8_bits(image)
    elif image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")  # PIL warns of such a palette otherwise
    image = image.convert("L" if channels == 1 else "RGB")
    if size is not None and (image.height, image.width) != size:
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)  # PIL's always smooths what it shrinks
    pixels = np.array(image, dtype=np.uint8)
    return pixels[np.newaxis] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def pixels_of(image: Image.Image) -> UInt8Array:
    """The same in its own size, and in colours unless it is grey."""
    return prepared(image, None, 1 if _is_grey(image) else 3)


def _is_grey(image: Image.Image) -> bool:
    return image.mode in _GREY_MODES or image.mode.startswith("I;16")


def _of_8_bits(image: Image.Image) -> Image.Image:
    """Of 16, where 65,535 is white; PIL itself would cut off what is brighter than 255."""
    if image.mode == "I" and image.format not in _OF_16_BITS_IN_I:
        raise ValueError("its pixels have 32 bits, of which nothing says what is white: save it with 8 or 16 bits")
    shades = np.asarray(image).astype(np.int64)
    if 0 < shades.max() < _FEW_SHADES_OF_16_BITS:  # often of 12 or 14 bits, or of 8
        raise ValueError(
            f"its pixels have 16 bits, of which 65535 is white, and the brightest is {shades.max()}: most would"
            " be lost; bring all images to the full range by one factor, or save them with 8 bits"
        )
    return Image.fromarray(((shades + 128) // 257).astype(np.uint8))


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with Image.open(path, formats=_FORMATS) as image:
            yield image
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing") from error
    except UNREADABLE as error:
        reason = f"it is none of {', '.join(_FORMATS)}" if isinstance(error, UnidentifiedImageError) else error
        raise UserError(f"{path} can't be read as an image: {reason}") from error


def decode(path: Path, size: Size | None, channels: int, *, upright: bool = False) -> UInt8Array:
    """The image in a file, as `prepared` gives it; turned as its EXIF data say if it is to be `upright`."""
    with _opened(path) as image:
        if upright:
            _turn(image)
        return prepared(image, size, channels)


def _turn(image: Image.Image) -> None:
    try:
        image.getexif()
    except UNREADABLE:
        return  # damaged EXIF data say nothing, and the pixels are none the worse for it
    ImageOps.exif_transpose(image, in_place=True)


def has_several_frames(path: Path) -> bool:
    """Whether a file has more than the frame that is read; what cameras add to a photo doesn't count."""
    with _opened(path) as image:
        return image.format != "MPO" and getattr(image, "is_animated", False)


def decoding_threads() -> ThreadPoolExecutor:
    """Threads to decode images in: PIL does so outside Python's lock, but copying the pixels is within it."""
    return ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1))


def decode_all(paths: Sequence[Path], size: Size, channels: int, *, upright: bool = False) -> UInt8Array:
    """The images as (count, channels, height, width), in the order of `paths`."""
    with decoding_threads() as pool:
        return np.stack(list(pool.map(lambda path: decode(path, size, channels, upright=upright), paths)))


def shape_in_file(path: Path) -> Shape:
    """The shape of the image as it is stored, from the file's first bytes; 3 channels unless it is grey."""
    with _opened(path) as image:
        return (1 if _is_grey(image) else 3), image.height, image.width


def common_shape(name: str, shapes: Iterable[Shape], size: Size | None, channels: int | None) -> Shape:
    """What the images of data set `name` become: as they are stored if all agree, else by its settings.

    Where grey images are among coloured ones, all are coloured.
    """
    seen = Counter(shapes)
    sizes = sorted({shape[1:] for shape in seen})
    if size is None and len(sizes) > 1:
        listed = ", ".join(f"{height}x{width}" for height, width in sizes[:_MOST_SIZES_SHOWN])
        more = f" and {len(sizes) - _MOST_SIZES_SHOWN} more" if len(sizes) > _MOST_SIZES_SHOWN else ""
        raise MistakeError(
            f"the images are of {len(sizes)} sizes (height x width: {listed}{more}): "
            f"set datasets.{name}.size in params.yaml to the one that all are to be resized to"
        )
    height, width = size or sizes[0]
    return channels or max(shape[0] for shape in seen), height, width
