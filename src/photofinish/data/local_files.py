"""Files of this machine that params.yaml names: their paths, and a hash of their states.

`plan` runs this at every `dvc repro`, so it imports nothing slow.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from photofinish.config.datasets import Dataset
from photofinish.errors import ConfigError
from photofinish.files import sha256_of_bytes


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
        raise ConfigError(
            f"{path} can't be read as CSV in UTF-8 after line {line}: {error}"
        ) from error


def files_below(root: Path) -> Iterator[str]:
    """Yield the files below a folder, relative to it. Links are followed, but not upwards."""
    for folder, folders, names in os.walk(root, followlinks=True):
        above = Path(folder).parents[: len(Path(folder).parts) - len(root.parts)]
        if Path(folder).resolve() in [each.resolve() for each in above]:
            folders.clear()
            continue
        folders.sort()
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), root)  # noqa: PTH118


def sha256_of_local_files(datasets: Mapping[str, Dataset]) -> dict[str, str]:
    """Return a hash for each data set of local files. It changes if one of the files does.

    It covers the name, size and time of a file, and the content of a CSV. All paths must exist.
    """
    hashes = {}
    for name, dataset in datasets.items():
        states = "\n".join(_states(dataset))
        if states:
            hashes[name] = sha256_of_bytes(states.encode(errors="surrogateescape"))
    return hashes


def _states(dataset: Dataset) -> Iterator[str]:
    if dataset.is_downloaded:
        return
    for place in dataset.paths():
        path = place.path
        yield str(place.key)
        if place.listing_column is not None:
            yield sha256_of_bytes(path.read_bytes())
            with suppress(ConfigError):  # `split` reports it
                for _, cells in read_csv(path):
                    yield state_of_file(path.parent, cells.get(place.listing_column) or "")
        elif path.is_file():
            yield state_of_file(path.parent, path.name)
        else:
            for name in files_below(path):
                yield state_of_file(path, name)


def state_of_file(folder: Path, name: str) -> str:
    """Return size and time of a file, after its name."""
    try:
        # Three times as fast as pathlib.
        status = os.stat(os.path.join(folder, name))  # noqa: PTH116, PTH118
    except (OSError, ValueError):  # missing, or not a valid file name
        return f"{name}\0missing"
    return f"{name}\0{status.st_size} {status.st_mtime_ns}"
