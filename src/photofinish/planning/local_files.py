"""What params.yaml says of this machine's files: whether they are there, and which ones a data set is made of, as one
sha256: where it changes, `download` runs again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from photofinish.datasets.csv_files import parse_csv
from photofinish.datasets.image_folders import class_folders
from photofinish.datasets.local_places import LocalDataset, Place, places
from photofinish.params.datasets import CsvDataset, Dataset, FolderDataset
from photofinish.params.mistakes import Mistake, unknown_name
from photofinish.params.reader import Params


def misplaced(params: Params, references: Path) -> Iterator[Mistake]:
    """The paths in params.yaml that lead nowhere, or to something else, and names of no folder in reference/."""
    for name, dataset in _local(params.datasets).items():
        for place in places(dataset):
            problem = _problem(place, dataset)
            if problem:
                yield Mistake(("datasets", name, *place.key.split(".")), problem, place.given)
    yield from _unknown_references(params.comparing.references, references)


def _unknown_references(chosen: Literal["all", "none"] | tuple[str, ...], folder: Path) -> Iterator[Mistake]:
    if isinstance(chosen, str):
        return
    machines = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    for number, name in enumerate(chosen):
        if name not in machines:
            problem = unknown_name("folder", name, machines) if machines else f"{folder}/ has no folder yet"
            yield Mistake(("compare", "references", number), problem, name)


def sha256_of_local_files(datasets: Mapping[str, Dataset]) -> dict[str, str]:
    """Of each data set that is made of local files, all of whose paths lead somewhere."""
    return {name: _sha256(dataset) for name, dataset in _local(datasets).items()}


def _local(datasets: Mapping[str, Dataset]) -> dict[str, LocalDataset]:
    return {name: dataset for name, dataset in datasets.items() if isinstance(dataset, LocalDataset)}


def _problem(place: Place, dataset: LocalDataset) -> str | None:
    path, wanted = place.path, "folder" if isinstance(dataset, FolderDataset) else "CSV file"
    start = "" if Path(place.given).is_absolute() else "; relative paths start at the folder of params.yaml"
    if not path.exists():
        return f"there is no such {wanted} ({path}): put it there, or correct the path{start}"
    if path.is_dir() != isinstance(dataset, FolderDataset):
        return f"this must be a {wanted}, and {path} is a {'folder' if path.is_dir() else 'file'}"
    return None if os.access(path, os.R_OK) else f"there is no permission to read {path}"


def _sha256(dataset: LocalDataset) -> str:
    digest = hashlib.sha256()
    for place in places(dataset):
        digest.update(f"{place.key}\n".encode())
        lines = _csv_lines(place, dataset) if isinstance(dataset, CsvDataset) else _folder_lines(place)
        for line in lines:
            digest.update(line)
    return digest.hexdigest()


def _csv_lines(place: Place, dataset: CsvDataset) -> Iterator[bytes]:
    """The CSV itself, and the state of the files it lists; what is wrong with either, `download` tells."""
    data = place.path.read_bytes()
    yield data
    folder = place.path.parent
    for path in parse_csv(data).column(dataset.path_column) or ():
        yield _state_of(path, os.path.join(folder, path))  # noqa: PTH118  # three times as fast


def _folder_lines(place: Place) -> Iterator[bytes]:
    for found in class_folders(place.path):
        yield f"{found.name}/\n".encode(errors="surrogateescape")
        for path in [*found.images, *found.linked_folders]:
            yield _state_of(path, os.path.join(place.path, path))  # noqa: PTH118  # three times as fast


def _state_of(name: str, path: str) -> bytes:
    try:
        status = os.stat(path)  # noqa: PTH116  # so is this
        state = f"{status.st_size} {status.st_mtime_ns}"
    except (OSError, ValueError):  # not there, or a name that no file can have
        state = "missing"
    return f"{name}\0{state}\n".encode(errors="surrogateescape")
