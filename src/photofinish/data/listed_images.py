"""What is wrong with a user's own images: gathered, not stopped at, and told all at once."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from photofinish.data.images import LabelledImages, PartName, Shape, Size, common_shape, decode, decode_all
from photofinish.errors import MistakeError, UserError
from photofinish.files import write_text_atomically
from photofinish.params.datasets import DatasetPlan
from photofinish.wording import nearest_name

_MOST_SHOWN = 100


@dataclass(frozen=True, order=True)
class Problem:
    file: str
    line: int
    """as an editor counts; 0 where it is about the file as a whole"""
    text: str

    def __str__(self) -> str:
        """On one line, whatever characters a name has."""
        told = f"{place(self.file, self.line)}  {self.text}"
        return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in told)


def place(file: str, line: int) -> str:
    return f"{file}:{line}" if line else file


def refuse(dataset_name: str, problems: Collection[Problem]) -> None:
    """Raise one MistakeError that tells of them all; without problems nothing happens."""
    if not problems:
        return
    count = f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"
    lines = [f"  {problem}" for problem in sorted(problems)[:_MOST_SHOWN]]
    if len(problems) > _MOST_SHOWN:
        lines.append(f"  and {len(problems) - _MOST_SHOWN} more")
    raise MistakeError(f"data set '{dataset_name}' has {count}; nothing was written\n" + "\n".join(lines))


_DECODED_AT_A_TIME = 1024
_MOST_THREADS = 8
_MOST_NAMES_SHOWN = 12


@dataclass(frozen=True)
class ListedImage:
    file: str
    """what lists it, as the user calls it: the CSV, or in a folder the image itself"""
    line: int
    """of the CSV; 0 for an image in a folder"""
    folder: Path
    """in which the image must lie"""
    path: str
    """within that folder"""
    label: str
    part: PartName | None
    """None where the parts are drawn later"""

    @property
    def place(self) -> str:
        return place(self.file, self.line)

    def problem(self, text: str) -> Problem:
        return Problem(self.file, self.line, text)

    @cached_property
    def real_path(self) -> Path:
        """With all links followed, so that one file has one name."""
        return Path(os.path.realpath(self.folder / self.path))


def check_images(
    dataset_name: str, listed: Sequence[ListedImage], size: Size | None, channels: int
) -> tuple[Shape | None, list[Problem]]:
    """Look at every file, and decode it; return the shape that the images come in if nothing is wrong with them."""
    faults = [(image, _fault_of_file(image)) for image in listed]
    problems = [image.problem(fault) for image, fault in faults if fault]
    repeated = _repeated([image for image in listed if _is_within(image)])
    problems += repeated.values()
    shapes: list[Shape] = []
    to_decode = [image for image, fault in faults if not fault and image.place not in repeated]
    for image, found in zip(to_decode, _decoded_shapes(to_decode, channels), strict=True):
        if isinstance(found, str):
            problems.append(image.problem(found))
        else:
            shapes.append(found)
    try:
        return (common_shape(dataset_name, shapes, size, channels) if shapes else None), problems
    except MistakeError as error:
        return None, [*problems, Problem(listed[0].file if listed[0].line else str(listed[0].folder), 0, str(error))]


def check_labels(listed: Sequence[ListedImage], class_names: Sequence[str], what_they_are: str) -> list[Problem]:
    """`what_they_are` says where the class names come from."""
    known, problems = set(class_names), []
    shown = ", ".join(class_names[:_MOST_NAMES_SHOWN]) + (", ..." if len(class_names) > _MOST_NAMES_SHOWN else "")
    for image in listed:
        if image.label and image.label not in known:
            nearest = nearest_name(image.label, class_names)
            hint = f"did you mean '{nearest}'? " if nearest else ""
            problems.append(image.problem(f"'{image.label}' is not among {what_they_are}; {hint}there are: {shown}"))
    return problems


def _fault_of_file(image: ListedImage) -> str | None:
    if not image.path:
        return "the image's path is empty"
    if "\0" in image.path:
        return f"{image.path!r} can't be the path of a file"
    if not _is_text(image.path):
        return f"{image.path!a}: the name is not UTF-8; give the file another one"
    if not _is_within(image):
        return f"{image.path} leads out of {image.folder}: images must lie in it, and links in it too"
    try:
        status = image.real_path.stat()
    except FileNotFoundError:
        return f"{image.path}: there is no such file"
    except OSError as error:
        return f"{image.path}: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):
        return f"{image.path} is no file"
    return None if status.st_size else f"{image.path}: the file is empty (0 bytes)"


def _is_text(name: str) -> bool:
    """Python keeps bytes of a file's name that aren't UTF-8 as halves of characters, which can't be written again."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_within(image: ListedImage) -> bool:
    if not image.path or "\0" in image.path or Path(image.path).is_absolute():
        return False
    inside = Path(os.path.realpath(image.folder))
    as_written = os.path.normpath(inside / image.path)
    return Path(as_written).is_relative_to(inside) and image.real_path.is_relative_to(inside)


def _repeated(listed: Sequence[ListedImage]) -> dict[str, Problem]:
    """Files that are listed more than once, by the place where they are listed again."""
    first_of: dict[Path, ListedImage] = {}
    repeated: dict[str, Problem] = {}
    for image in listed:
        first = first_of.setdefault(image.real_path, image)
        if first is image:
            continue
        text = f"{image.path} is listed before, {first.place}"
        if first.label != image.label:
            text += f", with another label: '{first.label}' there, '{image.label}' here"
        if first.part != image.part:
            text += f", in another part: {first.part} there, {image.part} here; one must not be tested on the other"
        repeated[image.place] = image.problem(text)
    return repeated


def _decoded_shapes(listed: Sequence[ListedImage], channels: int) -> list[Shape | str]:
    """Of each image its shape, or why it can't be decoded."""

    def shape_or_fault(image: ListedImage) -> Shape | str:
        try:
            count, height, width = decode(image.real_path, None, channels).shape
        except UserError as error:
            return str(error)
        return count, height, width

    found: list[Shape | str] = []
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        for start in range(0, len(listed), _DECODED_AT_A_TIME):  # so that Ctrl-C needn't wait for them all
            found += pool.map(shape_or_fault, listed[start : start + _DECODED_AT_A_TIME])
    return found


_TABLE = "images.json"
_FILES_A_FOLDER = 1000


class Table(BaseModel):
    """An item for every image, in the user's order."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    class_names: tuple[str, ...]
    shape: Shape
    """channels, height, width, once decoded"""
    files: tuple[str, ...]
    origins: tuple[str, ...]
    """the path that the user's data has for it"""
    labels: tuple[int, ...]
    parts: tuple[PartName, ...] | None
    """None where they are drawn later"""


def keep_copies(listed: Sequence[ListedImage], class_names: Sequence[str], shape: Shape, folder: Path) -> None:
    """Copy the images, never link them: what was fetched stays as it was, whatever happens to the user's files."""
    number_of = {name: number for number, name in enumerate(class_names)}
    files = []
    for row, image in enumerate(listed):
        suffix = Path(image.path).suffix.lower()
        file = f"images/{row // _FILES_A_FOLDER:04d}/{row % _FILES_A_FOLDER:03d}{suffix}"
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image.real_path, folder / file)
        files.append(file)
    parts = tuple(image.part for image in listed if image.part)
    table = Table(
        class_names=tuple(class_names),
        shape=shape,
        files=tuple(files),
        origins=tuple(image.path for image in listed),
        labels=tuple(number_of[image.label] for image in listed),
        parts=parts or None,
    )
    write_text_atomically(folder / _TABLE, table.model_dump_json(indent=1) + "\n")


def read_copies(_plan: DatasetPlan, folder: Path) -> LabelledImages:
    table = Table.model_validate_json((folder / _TABLE).read_bytes())
    paths = [folder / file for file in table.files]
    channels, height, width = table.shape
    rows_of: dict[PartName, list[int]] = {}
    for row, part in enumerate(table.parts or ()):
        rows_of.setdefault(part, []).append(row)
    return LabelledImages(
        shape=table.shape,
        labels=np.array(table.labels, dtype=np.int64),
        class_names=table.class_names,
        read=lambda rows: decode_all([paths[row] for row in rows], (height, width), channels),
        own_parts={part: np.array(rows, dtype=np.int64) for part, rows in rows_of.items()},
    )
