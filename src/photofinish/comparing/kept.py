"""What `compare` found of each experiment, kept in the state folder by the content of all that it rests on.

That is the bytes of the experiment's results, the settings, photofinish itself, the versions of what computes, and
whatever the asker names: what has changed in any of it is found anew, and so is what is damaged.
"""

from __future__ import annotations

import hashlib
import pickle
import platform
import sys
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import photofinish
from photofinish.comparing.pairs import Pair, read_pair
from photofinish.files import own_sweep, sha256_of_bytes, state_folder, write_bytes_atomically
from photofinish.params.compare import Comparing
from photofinish.results.records import DEVICE_LABELS, EVALUATED, LEARNED, TIMED

LIBRARIES = ("Jinja2", "MarkupSafe", "numpy", "pandas", "pydantic", "pydantic_core")
"""what findings and pages are made with"""
_FOLDERS = (*(f"{device}/{part}" for device in DEVICE_LABELS for part in (LEARNED, TIMED)), EVALUATED)
_FIGURES = (".csv", ".json")
_SHA256_BYTES = hashlib.sha256().digest_size

_Found = TypeVar("_Found")


class Kept:
    """Findings about the experiments in one folder of results, under one set of settings; all in one file."""

    def __init__(self, results: Path, settings: Comparing) -> None:
        self._results = results
        self._file = state_folder() / "compared" / f"{own_sweep() or 'project'}.kept"
        self._basis = f"{_software()} {settings.model_dump_json(exclude={'experiments'})}"
        self._former = _read(self._file)
        self._used: dict[str, bytes] = {}
        self._contents: dict[str, str] = {}

    def of(self, experiment: str, what: str, find: Callable[[], _Found]) -> _Found:
        """What `find` gives, or gave before. It rests on what the class says, and on what is named in `what` alone."""
        if experiment not in self._contents:
            self._contents[experiment] = _content(self._results / experiment)
        name = sha256_of_bytes(repr((self._basis, experiment, self._contents[experiment], what)).encode())
        if name in self._former:
            self._used[name] = self._former[name]
            found: _Found = pickle.loads(zlib.decompress(self._used[name]))  # noqa: S301
        else:
            found = find()
            self._used[name] = zlib.compress(pickle.dumps(found, pickle.HIGHEST_PROTOCOL), level=1)
        return found

    def write(self) -> None:
        """Keep what was asked for, and nothing else: the next report is of what this one was of."""
        if self._used.keys() != self._former.keys():
            data = pickle.dumps(self._used, pickle.HIGHEST_PROTOCOL)
            with suppress(OSError):  # no room, say: then the next time finds it anew
                write_bytes_atomically(self._file, hashlib.sha256(data).digest() + data)


def _read(file: Path) -> dict[str, bytes]:
    """Nothing where it isn't whole. A pickle runs what it says: none is read but the project's own."""
    try:
        entry = file.read_bytes()
    except OSError:
        return {}
    digest, data = entry[:_SHA256_BYTES], entry[_SHA256_BYTES:]
    former: dict[str, bytes] = pickle.loads(data) if digest == hashlib.sha256(data).digest() else {}  # noqa: S301
    return former


def read_pairs(names: Iterable[str], results: Path, kept: Kept) -> list[Pair]:
    """A pair for each experiment."""
    return [kept.of(name, "pair", partial(read_pair, name, results / name)) for name in names]


def _content(folder: Path) -> str:
    """The sha256 of all figures of an experiment's results, as they are and as they should be."""
    digest = hashlib.sha256()
    for part in _FOLDERS:
        place = folder / part
        with suppress(OSError):  # whoever reads it then tells of it
            for file in sorted(place.iterdir()):
                if file.name.endswith(_FIGURES):
                    digest.update(f"{part} {file.name} {sha256_of_bytes(file.read_bytes())}".encode())
    return digest.hexdigest()


def _software() -> str:
    """Where any of it is another, so may be the last digit of a finding, or a page's words."""
    package = Path(photofinish.__file__).parent
    files = sorted(path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    own = [f"{path.relative_to(package)} {sha256_of_bytes(path.read_bytes())}" for path in files]
    versions = [f"{name} {metadata.version(name)}" for name in LIBRARIES]
    return sha256_of_bytes("\n".join([sys.version, platform.node(), *versions, *own]).encode())
