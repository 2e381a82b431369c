"""The one downloader: a file from the internet or a mirror, checked, and kept for a stage that has to run again."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from photofinish.datasets.checksums import Expected, WrongBytesError, checksums_of, copy_checked
from photofinish.datasets.progress import DownloadDisplay
from photofinish.datasets.transfer import drop, transfer
from photofinish.datasets.web import TransferError
from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes, write_text_atomically
from photofinish.processes.locks import sole_writer
from photofinish.provenance import project_root

_MIRROR_SETTING = "`mirror:` in params.yaml or the variable PHOTOFINISH_MIRROR"
_SHA256_DIGITS = 64


class CannotFetchError(UserError):
    """A file that came from none of its addresses."""

    def __init__(self, faults: list[str], advice: str) -> None:
        super().__init__(f"can't fetch {'; '.join(faults)}. {advice}")
        self.faults, self.advice = faults, advice


@dataclass(frozen=True)
class _Cached:
    """A file's places in the cache: whole, its sha256, and as far as it has come."""

    whole: Path

    @property
    def checksum(self) -> Path:
        return self.whole.with_name(f"{self.whole.name}.sha256")

    def placed(self, target: Path) -> bool:
        """Whether it was there and could be copied; a damaged one is dropped."""
        if not (self.whole.is_file() and self.checksum.is_file()):
            return False
        try:
            self.place(target)
        except WrongBytesError as error:
            print(f"{self.whole} is damaged ({error}): it is fetched again", file=sys.stderr, flush=True)
            self.whole.unlink()
            return False
        return True

    def place(self, target: Path) -> None:
        """Copy it, never link: DVC makes the files it manages read-only, through every link."""
        recorded = self.checksum.read_text(encoding="utf-8", errors="replace")
        if len(recorded) != _SHA256_DIGITS:
            raise WrongBytesError(f"{self.checksum.name} holds no sha256")
        copy_checked(self.whole, target, Expected(None, recorded))

    def adopt(self, part: Path, sha256: str) -> None:
        """The checksum comes first: a whole file always has one."""
        write_text_atomically(self.checksum, sha256)
        os.replace(part, self.whole)
        drop(part)


@dataclass(frozen=True)
class Fetcher:
    mirror: str | None
    """a folder or an http address that is asked instead of the internet"""
    cache: Path
    """whole files and partial ones; it outlives a killed stage, and DVC's deleting of its outs"""

    def fetch(
        self, url: str, target: Path, *, where: str, md5: str | None = None, sha256_prefix: str | None = None
    ) -> None:
        """Put the file at `url` under `target`; `where` is its place in a mirror, such as "MNIST/raw/train.gz"."""
        expected = Expected(md5, sha256_prefix)
        places = tuple(dict.fromkeys((where, PurePosixPath(where).name)))
        if self.mirror and "://" not in self.mirror:
            _fetch_from_folder(self.mirror, places, target, expected)
            return
        addresses = [url]
        if self.mirror:
            addresses = [f"{self.mirror.rstrip('/')}/{quote(place)}" for place in places]
        identity = f"{md5} {sha256_prefix}" if expected.is_known else addresses[0]
        cached = _Cached(self.cache / f"{_key(identity)}-{places[-1]}")
        with sole_writer(self.cache, cached.whole.name, patience_seconds=math.inf):
            if not cached.placed(target):
                self._download(addresses, cached, expected, where)
                cached.place(target)

    def _download(self, addresses: list[str], cached: _Cached, expected: Expected, where: str) -> None:
        """Into the cache; a file with the wrong bytes is asked for once more, for a proxy may have spoilt it."""
        for is_last_try in (False, True):
            with DownloadDisplay(PurePosixPath(where).name) as display:
                address, part = self._transfer(addresses, where, expected, display)
                try:
                    md5, sha256 = checksums_of(part)
                    expected.check(md5, sha256)
                except WrongBytesError as error:
                    drop(part)
                    if is_last_try:
                        raise UserError(
                            f"{address} is not the file it should be: {error}. {self._advice(where)}"
                        ) from error
                    display.say(f"not the file it should be: {error}; fetching it again")
                else:
                    cached.adopt(part, sha256)
                    return

    def _transfer(
        self, addresses: list[str], where: str, expected: Expected, display: DownloadDisplay
    ) -> tuple[str, Path]:
        """From the first address that has it; that address, and the file."""
        faults: list[str] = []
        for address in addresses:
            part = self.cache / f"{_key(address)}-{PurePosixPath(where).name}.part"
            try:
                transfer(address, part, checkable=expected.is_known, display=display)
                return address, part
            except TransferError as error:
                faults.append(f"{address}: {error}")
                if not error.is_absent:
                    break
        raise CannotFetchError(faults, self._advice(where))

    def _advice(self, where: str) -> str:
        if self.mirror:
            return f"This mirror is named by {_MIRROR_SETTING}: put {where} there, or name another or none"
        return f"Where this address can't be reached, {_MIRROR_SETTING} may name a folder or an address with {where}"


def _fetch_from_folder(mirror: str, places: tuple[str, ...], target: Path, expected: Expected) -> None:
    folder = project_root() / os.path.expanduser(mirror)  # noqa: PTH111  # Path's fails for an unknown user
    candidates = [folder / place for place in places]
    source = next((path for path in candidates if path.is_file()), None)
    if source is None:
        tried = " nor ".join(str(path) for path in candidates)
        raise UserError(f"the mirror has no {tried}: put the file there, or correct {_MIRROR_SETTING}")
    with DownloadDisplay(target.name) as display:
        size_bytes = source.stat().st_size
        display.began(str(source), 0, size_bytes)
        try:
            copy_checked(source, target, expected)
        except WrongBytesError as error:
            raise UserError(f"{source} is not the file it should be: {error}; put the right one there") from error
        display.ended(size_bytes)


def _key(identity: str) -> str:
    return sha256_of_bytes(identity.encode())[:16]
