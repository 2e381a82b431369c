"""A user's own images, listed in a CSV or in a folder a class: every problem is told at once, then they are copied."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from photofinish.data import PartName
from photofinish.data.images import (
    LabelledImages,
    Shape,
    common_shape,
    decode,
    decode_all,
    decoding_threads,
    has_several_frames,
)
from photofinish.data.local_files import IMAGE_SUFFIXES, class_folders, parse_csv
from photofinish.errors import MistakeError, UserError
from photofinish.files import write_text_atomically
from photofinish.params.base import Record
from photofinish.params.datasets import (
    LONGEST_CLASS_NAME,
    CsvDataset,
    DatasetPlan,
    FolderDataset,
    LocalDataset,
    Place,
    places,
)
from photofinish.wording import did_you_mean, printable, shortened

_COLOURS = 3
_PARTS: dict[str, PartName] = {
    "train": "train", "validation": "validation", "val": "validation", "valid": "validation", "test": "test",
}  # fmt: skip
_MOST_SHOWN = 100
_MOST_NAMES_SHOWN = 12
_DECODED_AT_A_TIME = 1024
_TABLE = "images.json"
_FILES_A_FOLDER = 1000


class _At(NamedTuple):
    """Where an image is listed, or what is wrong stands."""

    file: str
    """as the user calls it: a CSV, or in a folder the image itself"""
    line: int = 0
    """of a CSV, as an editor counts; 0 of a file as a whole"""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


_Problem = tuple[_At, str]


@dataclass(frozen=True)
class _ListedImage:
    """An image as the user's data has it, not looked at yet."""

    at: _At
    folder: Path
    """in which the image must lie"""
    path: str
    """within that folder"""
    label: str
    part: PartName | None
    """None where the parts are drawn later"""

    @cached_property
    def real_path(self) -> Path:
        """With all links followed, so that one file has one name."""
        return Path(os.path.realpath(self.folder / self.path))

    @cached_property
    def is_within(self) -> bool:
        """Whether it lies in its folder, as it is written and where links lead."""
        if not self.path or Path(self.path).is_absolute():
            return False
        inside = Path(os.path.realpath(self.folder))
        as_written = os.path.normpath(inside / self.path)
        return Path(as_written).is_relative_to(inside) and self.real_path.is_relative_to(inside)


class _Table(Record):
    """An item for every image, in the user's order."""

    class_names: tuple[str, ...]
    shape: Shape
    """channels, height, width, once decoded"""
    files: tuple[str, ...]
    origins: tuple[str, ...]
    """the path that the user's data has for it"""
    labels: tuple[int, ...]
    parts: tuple[PartName, ...] | None
    """None where they are drawn later"""
    notes: tuple[str, ...] = ()
    """what was odd about the files, a line each"""


def fetch_csv(plan: DatasetPlan, folder: Path) -> None:
    """Copy the images that a CSV lists; a MistakeError tells of all that is wrong."""
    dataset = plan.dataset
    assert isinstance(dataset, CsvDataset)
    listed: list[_ListedImage] = []
    problems: list[_Problem] = []
    for place in places(dataset):
        images, faults = _read_csv(place, dataset)
        listed += images
        problems += faults
    if dataset.classes is not None:
        class_names = dataset.classes
        problems += _unknown_labels(listed, class_names, "classes of params.yaml")
    else:
        class_names = tuple(sorted({image.label for image in listed if image.label and image.part in ("train", None)}))
        if any(image.part == "train" for image in listed):
            problems += _unknown_labels(listed, class_names, "the labels of the training rows")
    if dataset.split_column is not None:
        problems += _part_problems(plan.name, dataset, listed)
    _check_and_copy(plan, listed, class_names, problems, folder)


def fetch_folder(plan: DatasetPlan, folder: Path) -> None:
    """Copy the images of a folder a class, as torchvision's ImageFolder finds them; likewise."""
    dataset = plan.dataset
    assert isinstance(dataset, FolderDataset)
    listed: list[_ListedImage] = []
    problems: list[_Problem] = []
    class_names: list[str] = []
    others: list[str] = []
    for place in places(dataset):
        classes = class_folders(place.path)
        if place.part in ("train", None):
            class_names = [found.name for found in classes]
        if not classes:
            problems.append((_At(place.given), "has no folders in it: it must have a folder of images for each class"))
        for found in classes:
            told = "is a link to a folder, which isn't followed: put the folder itself there"
            problems += [(_At(f"{place.given}/{linked}"), told) for linked in found.linked_folders]
            if not found.images and not found.linked_folders:
                told = f"has no images; their names end in {', '.join(IMAGE_SUFFIXES)}"
                problems.append((_At(f"{place.given}/{found.name}"), told))
            listed += [_in_folder(place, path, found.name) for path in found.images]
            others += [f"{place.given}/{path}" for path in found.other_files]
        folders = [_in_folder(place, found.name, found.name) for found in classes]
        problems += _unknown_labels(folders, class_names, "the class folders of the training part")
    notes = _notes("files left out, for they are no images by their names", others)
    _check_and_copy(plan, listed, class_names, problems, folder, notes)


def _in_folder(place: Place, path: str, class_name: str) -> _ListedImage:
    return _ListedImage(_At(f"{place.given}/{path}"), place.path, path, class_name, place.part)


def read_copies(_plan: DatasetPlan, folder: Path) -> LabelledImages:
    """The images that either of them copied into `folder`."""
    table = _Table.model_validate_json((folder / _TABLE).read_bytes())
    paths = [folder / file for file in table.files]
    channels, height, width = table.shape
    parts = np.array(table.parts or ())
    return LabelledImages(
        shape=table.shape,
        labels=np.array(table.labels, dtype=np.int64),
        class_names=table.class_names,
        read=lambda rows: decode_all([paths[row] for row in rows], (height, width), channels, upright=True),
        own_parts={part: np.flatnonzero(parts == part) for part in dict.fromkeys(table.parts or ())},
        origins=table.origins,
        notes=table.notes,
    )


def _read_csv(place: Place, dataset: CsvDataset) -> tuple[list[_ListedImage], list[_Problem]]:
    table = parse_csv(place.path.read_bytes())
    problems = [(_At(place.given, line), text) for line, text in table.problems]
    if not table.header:
        return [], problems
    if not table.rows and not problems:
        problems.append((_At(place.given), "there are no rows below the header"))
    for key in ("path_column", "label_column", "split_column"):
        column = getattr(dataset, key)
        if column is not None and column not in table.header:
            shown = ", ".join(f"'{name}'" for name in table.header)
            commas = " (columns are to be separated by commas)" if any(mark in shown for mark in ";\t") else ""
            text = f"there is no column '{column}' ({key});{did_you_mean(column, table.header)} it has: {shown}{commas}"
            problems.append((_At(place.given), text))
    listed = []
    for line, cells in table.rows if dataset.path_column in table.header else ():
        at, path, label = _At(place.given, line), cells[dataset.path_column], cells.get(dataset.label_column)
        split = None if dataset.split_column is None else cells.get(dataset.split_column)
        part = place.part if split is None else _PARTS.get(split.lower())
        listed.append(_ListedImage(at, place.path.parent, path, label or "", part))
        if label == "":
            problems.append((at, "the label is empty"))
        elif label is not None and dataset.classes is None and label != label.strip():
            problems.append((at, f"the label {label!r} has spaces around it"))
        if split is not None and part is None:
            problems.append((at, f"'{split}' is no part; allowed: {', '.join(_PARTS)}"))
    return listed, problems


def _part_problems(name: str, dataset: CsvDataset, listed: Sequence[_ListedImage]) -> Iterator[_Problem]:
    """Where a column tells the parts: whether it and the sizes in params.yaml together make all three."""
    found, column = {image.part for image in listed}, f"'{dataset.split_column}'"
    if found <= {None}:
        return
    file = _At(listed[0].at.file)
    if "train" not in found:
        yield file, f"no row has 'train' in the column {column}: there is nothing to train on"
    for part, size in (("validation", dataset.validation), ("test", dataset.test)):
        key = f"datasets.{name}.{part}"
        if part in found and size is not None:
            yield file, f"the column {column} has a {part} part: leave {key} out of params.yaml"
        if part not in found and size is None:
            yield file, f"no row has '{part}' in the column {column}: set {key} in params.yaml to draw that part"


def _unknown_labels(
    listed: Sequence[_ListedImage], class_names: Sequence[str], what_they_are: str
) -> Iterator[_Problem]:
    """`what_they_are` says where the class names come from."""
    known = set(class_names)
    shown = ", ".join(class_names[:_MOST_NAMES_SHOWN]) + (", ..." if len(class_names) > _MOST_NAMES_SHOWN else "")
    for image in listed:
        if image.label and image.label not in known and len(image.label) <= LONGEST_CLASS_NAME:
            hint = did_you_mean(image.label, class_names)
            yield image.at, f"'{image.label}' is not among {what_they_are};{hint} there are: {shown}"


def _check_and_copy(
    plan: DatasetPlan,
    listed: Sequence[_ListedImage],
    class_names: Sequence[str],
    problems: list[_Problem],
    folder: Path,
    notes: tuple[str, ...] = (),
) -> None:
    """Copies, never links: what was fetched stays as it was, whatever happens to the user's files."""
    for image in listed:
        if (length := len(image.label)) > LONGEST_CLASS_NAME:
            problems.append((image.at, f"the label has {length:,} characters, {LONGEST_CLASS_NAME} are allowed"))
    shape, faults, several_frames = _check_images(plan, listed)
    problems = sorted(problems + faults)
    if problems or shape is None:
        lines = [printable(f"  {at}  {text}") for at, text in problems[:_MOST_SHOWN]]
        if len(problems) > _MOST_SHOWN:
            lines.append(f"  and {len(problems) - _MOST_SHOWN} more")
        count = f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"
        raise MistakeError(f"data set '{plan.name}' has {count}; nothing was written\n" + "\n".join(lines))
    number_of = {name: number for number, name in enumerate(class_names)}
    files = []
    for row, image in enumerate(listed):
        suffix = Path(image.path).suffix.lower()
        files.append(f"images/{row // _FILES_A_FOLDER:04d}/{row % _FILES_A_FOLDER:03d}{suffix}")
        (folder / files[-1]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image.real_path, folder / files[-1])
    table = _Table(
        class_names=tuple(class_names),
        shape=shape,
        files=tuple(files),
        origins=tuple(image.path for image in listed),
        labels=tuple(number_of[image.label] for image in listed),
        parts=tuple(image.part for image in listed if image.part) or None,
        notes=notes + _notes("images of several frames, of which the first is used", several_frames),
    )
    write_text_atomically(folder / _TABLE, table.model_dump_json(indent=1) + "\n")


def _notes(what: str, paths: Sequence[str]) -> tuple[str, ...]:
    return (f"{what}: {len(paths):,}, such as {printable(shortened(paths[0]))}",) if paths else ()


def _check_images(plan: DatasetPlan, listed: Sequence[_ListedImage]) -> tuple[Shape | None, list[_Problem], list[str]]:
    """Look at every file, and decode it: their shape if all are right, what is wrong, which have several frames."""
    assert isinstance(plan.dataset, LocalDataset)
    size, channels = plan.dataset.size, plan.dataset.channels or _COLOURS
    faults = [(image, fault) for image in listed if (fault := _fault_of_file(image))]
    faults += _listed_again([image for image in listed if image.is_within])

    def decoded(image: _ListedImage) -> tuple[Shape, bool] | str:
        try:
            count, height, width = decode(image.real_path, None, channels, upright=True).shape
            return (count, height, width), has_several_frames(image.real_path)
        except UserError as error:
            return str(error)

    faulty = {image for image, _ in faults}
    to_decode = [image for image in listed if image not in faulty]
    shapes, several_frames = [], []
    with decoding_threads() as pool:
        for start in range(0, len(to_decode), _DECODED_AT_A_TIME):  # so that Ctrl-C needn't wait for them all
            some = to_decode[start : start + _DECODED_AT_A_TIME]
            for image, found in zip(some, pool.map(decoded, some), strict=True):
                if isinstance(found, str):
                    faults.append((image, found))
                    continue
                shape, has_more_frames = found
                shapes.append(shape)
                if has_more_frames:
                    several_frames.append(image.path)
    problems = [(image.at, text) for image, text in faults]
    try:
        return (common_shape(plan.name, shapes, size, channels) if shapes else None), problems, several_frames
    except MistakeError as error:
        first = listed[0]
        of_all = _At(first.at.file if first.at.line else str(first.folder))
        return None, [*problems, (of_all, str(error))], several_frames


def _fault_of_file(image: _ListedImage) -> str | None:
    if not image.path:
        return "the image's path is empty"
    try:
        image.path.encode()
    except UnicodeEncodeError:  # bytes that aren't UTF-8 are kept as halves of characters, which can't be written again
        return f"{image.path!a}: the name is not UTF-8; give the file another one"
    shown = shortened(image.path)
    if Path(image.path).is_absolute():
        return f"{shown} is absolute: images' paths start at {image.folder}, in which they must lie"
    if not image.is_within:
        return f"{shown} leads out of {image.folder}: images must lie in it, and links in it too"
    try:
        status = image.real_path.stat()
    except FileNotFoundError:
        return f"{shown}: there is no such file"
    except OSError as error:
        return f"{shown}: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):
        return f"{shown} is no file"
    return None if status.st_size else f"{shown}: the file is empty (0 bytes)"


def _listed_again(listed: Sequence[_ListedImage]) -> Iterator[tuple[_ListedImage, str]]:
    """Files that are listed more than once, where they are listed again."""
    first_of: dict[Path, _ListedImage] = {}
    for image in listed:
        first = first_of.setdefault(image.real_path, image)
        if first is image:
            continue
        text = f"{image.path} is listed before, {first.at}"
        if first.label != image.label:
            text += f", with another label: '{first.label}' there, '{image.label}' here"
        if first.part != image.part:
            text += f", in another part: {first.part} there, {image.part} here; one must not be tested on the other"
        yield image, text
