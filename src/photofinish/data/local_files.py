"""Files of this machine that params.yaml names: whether they exist, and a hash of the state of a data set's files.

`plan` runs this at every `dvc repro`, so it imports nothing slow.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from photofinish.config.datasets import (
    CsvDataset,
    Dataset,
    FolderDataset,
    LocalDataset,
    OwnDataset,
    TorchvisionDataset,
    places,
)
from photofinish.config.problems import ConfigProblem, unknown_name
from photofinish.errors import ConfigError
from photofinish.files import in_project

if TYPE_CHECKING:
    from photofinish.config.loader import Params

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision's IMG_EXTENSIONS"""


def read_csv(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row of a CSV in UTF-8, with the line it ends on. Blank lines are skipped."""
    line = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            for cells in reader:
                line = reader.line_num
                yield line, cells
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} can't be read as CSV in UTF-8 after line {line}: {error}") from error


def class_folders(root: Path) -> dict[str, list[str]]:
    """Return the images of each class folder in `root`, in the order of torchvision's ImageFolder.

    Paths are relative to `root`. Hidden files and folders are skipped.
    """
    classes = {}
    for name in sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith(".")):
        images = []
        for path in _files_below(root / name, skip_hidden=True):
            if path.lower().endswith(IMAGE_SUFFIXES):
                images.append(f"{name}/{path}")
        classes[name] = sorted(images, key=os.path.split)
    return classes


def _files_below(path: Path, *, skip_hidden: bool = False) -> Iterator[str]:
    """Yield the files below a folder, relative to it. Links to folders are followed, each folder once."""
    seen = set[str]()  # links may form circles
    for folder, folders, names in os.walk(path, followlinks=True):
        here = os.path.realpath(folder)
        if here in seen:
            folders.clear()
            continue
        seen.add(here)
        folders[:] = sorted(each for each in folders if not (skip_hidden and each.startswith(".")))
        for name in sorted(names):
            if not (skip_hidden and name.startswith(".")):
                yield os.path.relpath(os.path.join(folder, name), path)  # noqa: PTH118


def check_paths(params: Params, references: Path) -> Iterator[ConfigProblem]:
    """Yield the paths in params.yaml that lead nowhere, and names of folders that reference/ lacks."""
    for name, dataset in params.datasets.items():
        for key, given, wanted in _paths(dataset):
            path = in_project(given)
            # os.path returns False for names that no file can have; pathlib raises.
            is_right = {"folder": os.path.isdir, "CSV file": os.path.isfile}.get(wanted, os.path.exists)
            if not is_right(path):
                problem = f"there is no such {wanted} ({path}): put it there, or correct the path"
                yield ConfigProblem(("datasets", name, *key), problem, given)
    chosen = params.comparing.references
    machines = sorted(path.name for path in references.iterdir() if path.is_dir()) if references.is_dir() else []
    for number, name in enumerate(() if isinstance(chosen, str) else chosen):  # "all" or "none" names no folder
        if name not in machines:
            problem = unknown_name("folder", name, machines) if machines else f"{references}/ has no folder yet"
            yield ConfigProblem(("compare", "references", number), problem, name)


def _paths(dataset: Dataset) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Yield each path of a data set: its key, the path as written, and what it must be."""
    if isinstance(dataset, LocalDataset):
        for place in places(dataset):
            wanted = "folder" if isinstance(dataset, FolderDataset) else "CSV file"
            yield tuple(place.key.split(".")), place.given, wanted
    elif isinstance(dataset, OwnDataset):
        for number, file in enumerate(dataset.files):
            yield ("files", number), file, "file or folder"
    elif isinstance(dataset, TorchvisionDataset) and dataset.root is not None:
        yield ("root",), dataset.root, "folder"


def sha256_of_local_files(datasets: Mapping[str, Dataset]) -> dict[str, str]:
    """Return a hash for each data set of local files, which changes with any of them; all paths must exist."""
    found = {}
    for name, dataset in datasets.items():
        if isinstance(dataset, LocalDataset):
            found[name] = _sha256_of_images(dataset)
        elif isinstance(dataset, OwnDataset) and dataset.files:
            found[name] = _sha256_of_files(dataset.files)
    return found


def _sha256_of_images(dataset: LocalDataset) -> str:
    """Hash a CSV and the states of the files it lists, or the states of all images in folders."""
    digest = hashlib.sha256()
    for place in places(dataset):
        digest.update(f"{place.key}\n".encode())
        if isinstance(dataset, CsvDataset):
            digest.update(place.path.read_bytes())
            try:
                for _, cells in read_csv(place.path):
                    digest.update(_state_of(cells.get(dataset.path_column) or "", place.path.parent))
            except ConfigError:
                continue  # `split` reports it
        else:
            for name, paths in class_folders(place.path).items():
                digest.update(f"{name}/\n".encode(errors="surrogateescape"))
                for path in paths:
                    digest.update(_state_of(path, place.path))
    return digest.hexdigest()


def _sha256_of_files(files: Iterable[str]) -> str:
    """Hash the states of files, and of all files below folders, linked ones too."""
    digest = hashlib.sha256()
    for given in files:
        digest.update(f"{given}\n".encode(errors="surrogateescape"))
        path = in_project(given)
        digest.update(_state_of(path.name, path.parent) if path.is_file() else b"")
        for name in _files_below(path):
            digest.update(_state_of(name, path))
    return digest.hexdigest()


def _state_of(name: str, folder: Path) -> bytes:
    try:
        status = os.stat(os.path.join(folder, name))  # noqa: PTH116, PTH118  # three times as fast as pathlib's
        state = f"{status.st_size} {status.st_mtime_ns}"
    except (OSError, ValueError):  # not there, or a name that no file can have
        state = "missing"
    return f"{name}\0{state}\n".encode(errors="surrogateescape")
