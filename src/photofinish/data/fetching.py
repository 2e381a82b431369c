"""What is known of a file before it comes, and copies that appear only when they are that file."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import quote

from photofinish.data.web import PassingFaultError, TransferError, asked
from photofinish.display import DownloadDisplay
from photofinish.errors import UserError
from photofinish.files import (
    atomic_file,
    check_room,
    explained_when_full,
    project_root,
    sha256_of_bytes,
    to_json,
    write_text_atomically,
)
from photofinish.locks import sole_writer

_CHUNK_BYTES = 1 << 20


class WrongBytesError(Exception):
    """A file is not what its checksum says."""


@dataclass(frozen=True)
class Expected:
    """What is known of a file before it comes."""

    md5: str | None
    sha256_prefix: str | None

    @property
    def is_known(self) -> bool:
        return bool(self.md5 or self.sha256_prefix)

    def check(self, md5: str, sha256: str) -> None:
        if self.md5 and md5 != self.md5.lower():
            raise WrongBytesError(f"its md5 should be {self.md5} and is {md5}")
        if self.sha256_prefix and not sha256.startswith(self.sha256_prefix.lower()):
            raise WrongBytesError(f"its sha256 should start with {self.sha256_prefix} and is {sha256}")


def copy_checked(source: Path, target: Path, expected: Expected) -> None:
    """`target` appears only when it is whole and has the expected checksums."""
    target.parent.mkdir(parents=True, exist_ok=True)
    check_room(target.parent, source.stat().st_size, target.name)
    with explained_when_full(target.parent, target.name), atomic_file(target) as copy:
        expected.check(*checksums_of(source, copy))


def checksums_of(path: Path, copy: IO[bytes] | None = None) -> tuple[str, str]:
    """The md5 and the sha256 of a file, which is copied on the way."""
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            md5.update(chunk)
            sha256.update(chunk)
            if copy:
                copy.write(chunk)
    return md5.hexdigest(), sha256.hexdigest()


_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0)
_LONGEST_PAUSE_SECONDS = 60.0
"""a server that asks for more is given up: who waits for it would rather know"""
_PROGRESS_BYTES = 1 << 20
"""a connection that brought so much was a good one: after it, tries are counted anew"""


@dataclass(frozen=True)
class _Origin:
    """What the server said of the file that a partial one is the beginning of."""

    validator: str | None
    total_bytes: int | None


def drop(part: Path) -> None:
    part.unlink(missing_ok=True)
    _origin_file(part).unlink(missing_ok=True)


def transfer(url: str, part: Path, *, checkable: bool, display: DownloadDisplay) -> None:
    """Bring `part` to all of what is at `url`. `checkable`: its checksum is known, so going on is never a risk."""
    pauses, furthest = iter(_PAUSES_SECONDS), _size(part)
    while True:
        try:
            _go_on(url, part, checkable, display)
        except PassingFaultError as fault:
            if _size(part) >= furthest + _PROGRESS_BYTES:
                pauses, furthest = iter(_PAUSES_SECONDS), _size(part)
            if fault.part_is_useless:
                drop(part)
            pause = next(pauses, None)
            if pause is None or fault.wait_seconds > _LONGEST_PAUSE_SECONDS:
                wait = f", and asks for {fault.wait_seconds:.0f} s of patience" if fault.wait_seconds else ""
                raise TransferError(f"{fault}{wait}") from fault
            if fault.is_unreachable:
                pauses = iter(())  # one more try tells a hiccup from a machine without internet
            pause = max(pause, fault.wait_seconds)
            display.say(f"{fault}; trying again in {pause:g} s")
            time.sleep(pause)
        else:
            display.ended(_size(part))
            return


def _go_on(url: str, part: Path, checkable: bool, display: DownloadDisplay) -> None:
    origin, offset = _origin_of(part), _size(part)
    if not (checkable or origin.validator):
        offset = 0  # it may be the beginning of another file by now
    if offset and offset == origin.total_bytes:
        return  # the last process ended between the last byte and the check
    with asked(url, offset=offset, validator=origin.validator) as answer:
        start, total = answer.start_byte, answer.total_bytes
        if start and None not in (total, origin.total_bytes) and total != origin.total_bytes:
            raise PassingFaultError("the file is no longer the same on the server", part_is_useless=True)
        display.began(url, start, total)
        if total is not None:
            check_room(part.parent, total - start, part.name)
        with explained_when_full(part.parent, part.name), part.open("ab" if start else "wb") as file:
            if not start:
                _remember(part, _Origin(answer.validator, total))
            for chunk in answer.chunks:
                file.write(chunk)
                display.advance(len(chunk))
            file.flush()
            os.fsync(file.fileno())
    if total is not None and _size(part) != total:
        raise PassingFaultError(f"the connection ended after {_size(part)} of {total} bytes")


def _origin_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _remember(part: Path, origin: _Origin) -> None:
    write_text_atomically(_origin_file(part), to_json(asdict(origin)))


def _origin_of(part: Path) -> _Origin:
    try:
        return _Origin(**json.loads(_origin_file(part).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return _Origin(None, None)  # a file that nothing is known of is gone on with only if its checksum is known


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


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
