"""Which files of this machine a data set is made of, as one sha256: where it changes, `download` runs again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping

from photofinish.datasets.csv_files import parse_csv
from photofinish.datasets.image_folders import class_folders
from photofinish.datasets.local_places import LocalDataset, Place, places
from photofinish.errors import MistakeError
from photofinish.params.datasets import CsvDataset, Dataset, FolderDataset
from photofinish.provenance import project_root


def sha256_of_local_files(datasets: Mapping[str, Dataset]) -> dict[str, str]:
    """Of each data set that is made of local files; one MistakeError tells of all the paths that lead nowhere."""
    local = {name: dataset for name, dataset in datasets.items() if isinstance(dataset, LocalDataset)}
    mistakes = [
        f"datasets.{name}.{place.key} = '{place.given}'\n    {problem}"
        for name, dataset in local.items()
        for place in places(dataset)
        if (problem := _problem(place, dataset))
    ]
    if mistakes:
        start = f"; relative paths start at {project_root()}"
        raise MistakeError(
            f"params.yaml names data that can't be read; nothing was started{start}\n" + "\n".join(mistakes)
        )
    return {name: _sha256(dataset) for name, dataset in local.items()}


def _problem(place: Place, dataset: LocalDataset) -> str | None:
    path, wanted = place.path, "folder" if isinstance(dataset, FolderDataset) else "CSV file"
    if not path.exists():
        return f"there is no such {wanted} ({path}): put it there, or correct the path"
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
