"""What params.yaml says of this machine's files: whether they are there, and the state of those a data set is made of.

CSVs are read with Python's own csv module: pandas knows no lines, cuts off what a row has too much, and takes longer to
import than `plan` may take in all.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from photofinish.files import in_project
from photofinish.params.datasets import CsvDataset, Dataset, FolderDataset, LocalDataset, OwnDataset, Place, places
from photofinish.params.mistakes import Mistake, unknown_name

if TYPE_CHECKING:
    from photofinish.params.reader import Params


class Row(NamedTuple):
    """A row of a CSV, with the line that it starts on, and its cells by their columns."""

    line: int
    cells: dict[str, str]


@dataclass
class CsvFile:
    """What could be read of it; what couldn't is among the problems, each with its line (0: the whole file)."""

    header: tuple[str, ...] = ()
    rows: list[Row] = field(default_factory=list)
    problems: list[tuple[int, str]] = field(default_factory=list)


def parse_csv(data: bytes) -> CsvFile:
    """The rows of a CSV in UTF-8, with or without a byte order mark; fields may be quoted, blank lines don't count."""
    if not data.strip():
        return CsvFile(problems=[(0, "the file is empty")])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"this is not UTF-8 text (byte 0x{data[error.start]:02x}): save the file as CSV in UTF-8"
        return CsvFile(problems=[(line, problem)])
    if "\0" in text:
        return CsvFile(problems=[(0, "this is no text, it has zero bytes: save the file as CSV in UTF-8")])
    found = CsvFile()
    reader, line = csv.reader(io.StringIO(text, newline=""), strict=True), 1
    try:
        for cells in reader:
            if len(cells) <= 1 and not "".join(cells).strip():
                pass  # a blank line
            elif not found.header:
                found.header = tuple(cells)
            elif len(cells) == len(found.header):
                found.rows.append(Row(line, dict(zip(found.header, cells, strict=True))))
            else:
                fields = f"{len(cells)} field{'' if len(cells) == 1 else 's'}"
                found.problems.append((line, f"has {fields}, the header has {len(found.header)}"))
            line = reader.line_num + 1
    except csv.Error as error:
        found.problems.append((line, f"can't be read as CSV, nor can what follows: {error}"))
    for name, count in Counter(found.header).items():
        if count > 1:
            found.problems.append((0, f"the header names the column '{name}' {count} times"))
    return found


IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision's IMG_EXTENSIONS"""


@dataclass(frozen=True)
class ClassFolder:
    """A class of a folder data set."""

    name: str
    images: list[str] = field(default_factory=list)
    """relative to the folder that holds the classes, in torchvision's order"""
    other_files: list[str] = field(default_factory=list)
    """likewise; what is no image by its name"""
    linked_folders: list[str] = field(default_factory=list)
    """links to folders, which are not followed: they may lead anywhere, and round in circles"""


def class_folders(root: Path) -> list[ClassFolder]:
    """The folders in `root`, each a class, sorted by name; what is hidden doesn't count."""
    classes = []
    for name in sorted(entry.name for entry in _visible(root) if (root / entry.name).is_dir()):
        found, todo = ClassFolder(name), [name]
        while todo:
            folder = todo.pop()
            if (root / folder).is_symlink():
                found.linked_folders.append(folder)
                continue
            for entry in _visible(root / folder):
                path = f"{folder}/{entry.name}"
                if os.path.isdir(entry):  # noqa: PTH112  # entry.is_dir() fails on a link that leads round in a circle
                    todo.append(path)
                elif path.lower().endswith(IMAGE_SUFFIXES):
                    found.images.append(path)
                else:
                    found.other_files.append(path)
        found.images.sort(key=os.path.split)
        found.other_files.sort()
        found.linked_folders.sort()
        classes.append(found)
    return classes


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def misplaced(params: Params, references: Path) -> Iterator[Mistake]:
    """The paths in params.yaml that lead nowhere, or to something else, and names of no folder in reference/."""
    for name, dataset in params.datasets.items():
        for place in places(dataset) if isinstance(dataset, LocalDataset) else ():
            if problem := _problem(place, dataset):
                yield Mistake(("datasets", name, *place.key.split(".")), problem, place.given)
        for number, file in enumerate(dataset.files if isinstance(dataset, OwnDataset) else ()):
            path = in_project(file)
            if not os.path.exists(path):  # noqa: PTH110  # pathlib's fails on a name that no file can have
                problem = f"there is no such file or folder ({path}): correct it, or leave it out"
                yield Mistake(("datasets", name, "files", number), problem, file)
    chosen = params.comparing.references
    machines = sorted(path.name for path in references.iterdir() if path.is_dir()) if references.is_dir() else []
    for number, name in enumerate(() if isinstance(chosen, str) else chosen):  # "all" or "none" names no folder
        if name not in machines:
            problem = unknown_name("folder", name, machines) if machines else f"{references}/ has no folder yet"
            yield Mistake(("compare", "references", number), problem, name)


def sha256_of_local_files(datasets: Mapping[str, Dataset]) -> dict[str, str]:
    """What changes with the files of each local data set, all of whose paths lead somewhere; `download` goes by it."""
    found = {}
    for name, dataset in datasets.items():
        if isinstance(dataset, LocalDataset):
            found[name] = _sha256_of_images(dataset)
        elif isinstance(dataset, OwnDataset) and dataset.files:
            found[name] = _sha256_of_files(dataset.files)
    return found


def _problem(place: Place, dataset: Dataset) -> str | None:
    path, wanted = place.path, "folder" if isinstance(dataset, FolderDataset) else "CSV file"
    if not place.given.strip():
        return f"this is blank: name the {wanted}"
    start = "" if Path(place.given).is_absolute() else "; relative paths start at the folder of params.yaml"
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no such {wanted} ({path}): put it there, or correct the path{start}"
    except (OSError, ValueError) as error:  # a name that no file can have, links in a circle, folders that are closed
        reason = error.strerror if isinstance(error, OSError) else error
        return f"this can't be the path of a {wanted}: {reason}"
    if not (stat.S_ISDIR if isinstance(dataset, FolderDataset) else stat.S_ISREG)(mode):
        kind = "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "device or a pipe"
        return f"this must be a {wanted}, and {path} is a {kind}"
    return None if os.access(path, os.R_OK) else f"there is no permission to read {path}"


def _sha256_of_images(dataset: LocalDataset) -> str:
    """Of a CSV and the state of the files it lists, or of all images in the folders; `download` tells what is wrong."""
    digest = hashlib.sha256()
    for place in places(dataset):
        digest.update(f"{place.key}\n".encode())
        if isinstance(dataset, CsvDataset):
            data = place.path.read_bytes()
            digest.update(data)
            for row in parse_csv(data).rows:
                if dataset.path_column in row.cells:
                    digest.update(_state_of(row.cells[dataset.path_column], place.path.parent))
        else:
            for found in class_folders(place.path):
                digest.update(f"{found.name}/\n".encode(errors="surrogateescape"))
                for path in [*found.images, *found.linked_folders]:
                    digest.update(_state_of(path, place.path))
    return digest.hexdigest()


def _sha256_of_files(files: Iterable[str]) -> str:
    """Of files, and of all that is below folders, linked ones too."""
    digest = hashlib.sha256()
    for given in files:
        digest.update(f"{given}\n".encode(errors="surrogateescape"))
        path = in_project(given)
        digest.update(_state_of(path.name, path.parent) if path.is_file() else b"")
        seen = set[str]()  # links may lead round in circles
        for folder, folders, names in os.walk(path, followlinks=True):
            here = os.path.realpath(folder)
            folders[:] = sorted(folders) if here not in seen else []
            seen.add(here)
            for name in sorted(names):
                digest.update(_state_of(os.path.relpath(os.path.join(folder, name), path), path))  # noqa: PTH118
    return digest.hexdigest()


def _state_of(name: str, folder: Path) -> bytes:
    try:
        status = os.stat(os.path.join(folder, name))  # noqa: PTH116, PTH118  # three times as fast as pathlib's
        state = f"{status.st_size} {status.st_mtime_ns}"
    except (OSError, ValueError):  # not there, or a name that no file can have
        state = "missing"
    return f"{name}\0{state}\n".encode(errors="surrogateescape")
