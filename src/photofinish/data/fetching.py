"""Files from the internet or from a mirror: retried, gone on with where they broke off, checked, and kept in a cache.

Requests and urllib3's retries are used as they are; neither goes on with a body that broke off, or with the part of a
file that an earlier process left, so that is done here.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import ssl
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import quote

import requests
from urllib3 import Retry
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    InvalidHeader,
    MaxRetryError,
    ProtocolError,
    ReadTimeoutError,
)

from photofinish.display import DownloadDisplay
from photofinish.errors import UserError
from photofinish.files import (
    atomic_file,
    check_room,
    explained_when_full,
    in_project,
    sha256_of_bytes,
    state_folder,
    to_json,
    write_text_atomically,
)
from photofinish.locks import sole_writer

STALL_SECONDS = 30.0
_RETRIES = Retry(total=4, connect=1, backoff_factor=1, status_forcelist=(408, 425, 429, 500, 502, 503, 504))
"""a second attempt to connect tells a hiccup from a machine without internet"""
_SHORTEST_PAUSE_SECONDS = 1.0
"""urllib3 would try again at once, when a hiccup is not over yet"""
_LONGEST_PAUSE_SECONDS = 60.0
"""a server that asks for more is given up: who waits for it would rather know"""
_PROGRESS_BYTES = 1 << 20
"""a connection that brought so much was a good one: after it, tries are counted anew"""
_CHUNK_BYTES = 1 << 20
_SHA256_DIGITS = 64
_CERTIFICATE_ADVICE = (
    "where a proxy or a server of your own signs, let the variable REQUESTS_CA_BUNDLE name the file of its certificates"
)
_MIRROR_SETTING = "`mirror:` in params.yaml or the variable PHOTOFINISH_MIRROR"


class _WrongBytesError(Exception):
    """A file is not what its checksum says."""


class _TransferError(Exception):
    """A file did not come, and asking again won't help."""


@dataclass(eq=False)
class _PassingFaultError(Exception):
    """A file did not come, and may the next time."""

    reason: str
    wait_seconds: float = 0.0
    """that the server asks for"""
    part_is_useless: bool = False
    """what was there before can't be gone on from"""
    is_unreachable: bool = False
    """not even a connection came about"""

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class _Expected:
    """What is known of a file before it comes."""

    md5: str | None
    sha256_prefix: str | None

    def sha256_of(self, path: Path, copy: IO[bytes] | None = None) -> str:
        """Of a file, which is copied on the way; raises where either checksum is another one."""
        md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                md5.update(chunk)
                sha256.update(chunk)
                if copy:
                    copy.write(chunk)
        if self.md5 and md5.hexdigest() != self.md5.lower():
            raise _WrongBytesError(f"its md5 should be {self.md5} and is {md5.hexdigest()}")
        if self.sha256_prefix and not sha256.hexdigest().startswith(self.sha256_prefix.lower()):
            raise _WrongBytesError(f"its sha256 should start with {self.sha256_prefix} and is {sha256.hexdigest()}")
        return sha256.hexdigest()


@dataclass(frozen=True)
class _Origin:
    """What the server said of the file that a partial one is the beginning of."""

    validator: str | None = None
    """a strong ETag or a date: tells whether it's still the same file"""
    total_bytes: int | None = None


@dataclass(frozen=True)
class Fetcher:
    """Fetches files, from a mirror if there is one."""

    mirror: str | None
    """a folder or an http address that is asked instead of the internet"""
    cache: Path = field(default_factory=lambda: state_folder() / "downloads")
    """whole files and partial ones; it outlives a killed stage, and DVC's deleting of its outs"""

    def fetch(
        self, urls: Sequence[str], target: Path, *, where: str, md5: str | None = None, sha256_prefix: str | None = None
    ) -> None:
        """Put a file under `target`, from the first of `urls` that has it, or from `where` in a mirror."""
        expected = _Expected(md5, sha256_prefix)
        places = tuple(dict.fromkeys((where, PurePosixPath(where).name)))
        if self.mirror and "://" not in self.mirror:
            _copy_from_folder(self.mirror, places, target, expected)
            return
        addresses = [f"{self.mirror.rstrip('/')}/{quote(place)}" for place in places] if self.mirror else urls
        identity = f"{md5} {sha256_prefix}" if md5 or sha256_prefix else addresses[0]
        kept = self.cache / f"{_key(identity)}-{places[-1]}"
        with sole_writer(self.cache, kept.name, patience_seconds=math.inf):
            if not _placed(kept, target):
                sha256 = self._download(addresses, kept, expected, where)
                _copy_checked(kept, target, _Expected(None, sha256))

    def _download(self, addresses: Sequence[str], kept: Path, expected: _Expected, where: str) -> str:
        """Into the cache, from the first address that has it; its sha256."""
        name, faults = PurePosixPath(where).name, []
        parts = {address: self.cache / f"{_key(address)}-{name}.part" for address in addresses}
        with DownloadDisplay(name) as display:
            for address, part in parts.items():
                try:
                    sha256 = _transferred(address, part, expected, display)
                    write_text_atomically(_checksum_of(kept), sha256)  # first: a whole file always has one
                    os.replace(part, kept)
                    for begun in parts.values():
                        _drop(begun)
                    return sha256
                except (_TransferError, _WrongBytesError) as error:
                    faults.append(f"{address}: {error}")
        advice = f"Where this address can't be reached, {_MIRROR_SETTING} may name a folder or an address with {where}"
        if self.mirror:
            advice = f"This mirror is named by {_MIRROR_SETTING}: put {where} there, or name another or none"
        raise UserError(f"can't fetch {'; '.join(faults)}. {advice}")


def _key(identity: str) -> str:
    return sha256_of_bytes(identity.encode())[:16]


def _checksum_of(kept: Path) -> Path:
    return kept.with_name(f"{kept.name}.sha256")


def _placed(kept: Path, target: Path) -> bool:
    """Whether the cache had it and it could be copied; a damaged one is dropped."""
    checksum = _checksum_of(kept)
    if not (kept.is_file() and checksum.is_file()):
        return False
    try:
        recorded = checksum.read_text(encoding="utf-8", errors="replace")
        if len(recorded) != _SHA256_DIGITS:
            raise _WrongBytesError(f"{checksum.name} holds no sha256")
        _copy_checked(kept, target, _Expected(None, recorded))
    except _WrongBytesError as error:
        print(f"{kept} is damaged ({error}): it is fetched again", file=sys.stderr, flush=True)
        kept.unlink()
        return False
    return True


def _copy_from_folder(mirror: str, places: Sequence[str], target: Path, expected: _Expected) -> None:
    candidates = [in_project(mirror) / place for place in places]
    source = next((path for path in candidates if path.is_file()), None)
    if source is None:
        tried = " nor ".join(str(path) for path in candidates)
        raise UserError(f"the mirror has no {tried}: put the file there, or correct {_MIRROR_SETTING}")
    with DownloadDisplay(target.name) as display:
        size_bytes = source.stat().st_size
        display.began(str(source), 0, size_bytes)
        try:
            _copy_checked(source, target, expected)
        except _WrongBytesError as error:
            raise UserError(f"{source} is not the file it should be: {error}; put the right one there") from error
        display.ended(size_bytes)


def _copy_checked(source: Path, target: Path, expected: _Expected) -> None:
    """`target` appears only when it is whole and right. Never a link: DVC makes its files read-only, through links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    check_room(target.parent, source.stat().st_size, target.name)
    with explained_when_full(target.parent, target.name), atomic_file(target) as copy:
        expected.sha256_of(source, copy)


def _transferred(url: str, part: Path, expected: _Expected, display: DownloadDisplay) -> str:
    """Bring `part` to all of what is at `url`; its sha256. Wrong bytes (a proxy's, say) are asked for once more."""
    retries, furthest_bytes, were_wrong = _RETRIES, _size(part), False
    while True:
        try:
            _go_on(url, part, expected, display)
            display.ended(_size(part))
            return expected.sha256_of(part)
        except _WrongBytesError as wrong:
            _drop(part)
            if were_wrong:
                raise _WrongBytesError(f"it is not the file it should be: {wrong}") from wrong
            display.say(f"not the file it should be: {wrong}; fetching it again")
            retries, furthest_bytes, were_wrong = _RETRIES, 0, True
        except _PassingFaultError as fault:
            if _size(part) >= furthest_bytes + _PROGRESS_BYTES:
                retries, furthest_bytes = _RETRIES, _size(part)
            if fault.part_is_useless:
                _drop(part)
            if fault.wait_seconds > _LONGEST_PAUSE_SECONDS:
                raise _TransferError(f"{fault}, and asks for {fault.wait_seconds:.0f} s of patience") from fault
            try:
                error = ConnectTimeoutError() if fault.is_unreachable else ProtocolError()
                retries = retries.increment("GET", url, error=error)
            except MaxRetryError:
                raise _TransferError(str(fault)) from fault
            pause_seconds = max(_SHORTEST_PAUSE_SECONDS, fault.wait_seconds, retries.get_backoff_time())
            display.say(f"{fault}; trying again in {pause_seconds:g} s")
            time.sleep(pause_seconds)


def _go_on(url: str, part: Path, expected: _Expected, display: DownloadDisplay) -> None:
    """One request, for what is missing; for all of it, where nothing tells that the file is still the same."""
    try:
        origin = _Origin(**json.loads(_origin_file(part).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        origin = _Origin()  # a file that nothing is known of is gone on with only if its checksum is known
    offset = _size(part)
    if not (expected.md5 or expected.sha256_prefix or origin.validator):
        offset = 0
    if offset and offset == origin.total_bytes:
        return  # the last process ended between the last byte and the check
    with _asked(url, offset, origin.validator) as response:
        start, total = _range_of(response, offset)
        if start and None not in (total, origin.total_bytes) and total != origin.total_bytes:
            raise _PassingFaultError("the file is no longer the same on the server", part_is_useless=True)
        display.began(url, start, total)
        if total is not None:
            check_room(part.parent, total - start, part.name)
        with explained_when_full(part.parent, part.name), part.open("ab" if start else "wb") as file:
            if not start:
                etag = response.headers.get("ETag", "")
                validator = etag if etag.startswith('"') else response.headers.get("Last-Modified")
                write_text_atomically(_origin_file(part), to_json(asdict(_Origin(validator, total))))
            lost = None
            try:
                while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=False):  # nothing that came is lost
                    file.write(chunk)
                    display.advance(len(chunk))
            except HTTPError as error:
                lost = error
            file.flush()
            os.fsync(file.fileno())
    if lost or (total is not None and _size(part) != total):
        why = f"no byte came for {STALL_SECONDS:g} s" if isinstance(lost, ReadTimeoutError) else "the connection ended"
        of_all = "" if total is None else f" of {total}"
        raise _PassingFaultError(f"{why} after {_size(part)}{of_all} bytes") from lost


def _asked(url: str, offset: int, validator: str | None) -> requests.Response:
    headers = {"User-Agent": "photofinish", "Accept-Encoding": "identity"}
    if offset:
        headers |= {"Range": f"bytes={offset}-"} | ({"If-Range": validator} if validator else {})
    try:
        return requests.get(url, headers=headers, stream=True, timeout=STALL_SECONDS)
    except (requests.RequestException, HTTPError, ValueError) as error:  # urllib3 refuses some hosts by itself
        causes: list[BaseException] = [error]
        while causes[-1].__context__:
            causes.append(causes[-1].__context__)
        first = causes[-1]
        reason = (first.strerror if isinstance(first, OSError) else None) or str(first) or type(first).__name__
        if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
            raise _TransferError(f"{reason}; {_CERTIFICATE_ADVICE}") from error
        if isinstance(error, ValueError | requests.TooManyRedirects):
            raise _TransferError(reason) from error
        if isinstance(first, TimeoutError):
            reason = f"no byte came for {STALL_SECONDS:g} s"
        unreachable = any(isinstance(cause, ConnectTimeoutError) for cause in causes)
        raise _PassingFaultError(reason, is_unreachable=unreachable) from error


def _range_of(response: requests.Response, offset: int) -> tuple[int, int | None]:
    """Where what comes begins, and how long the whole file is."""
    if response.status_code == requests.codes.ok:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    said = f"the server answers {response.status_code} {response.reason}"
    place = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if response.status_code == requests.codes.partial_content and place:
        if int(place[1]) == offset:
            return offset, None if place[2] == "*" else int(place[2])
        said = f"asked for the bytes from {offset} on, the server sends those from {place[1]} on"
        raise _PassingFaultError(said, part_is_useless=True)
    if response.status_code == requests.codes.requested_range_not_satisfiable and offset:
        raise _PassingFaultError(said, part_is_useless=True)
    if _RETRIES.is_retry("GET", response.status_code):
        try:
            wait_seconds = _RETRIES.get_retry_after(response.raw) or 0.0
        except InvalidHeader:
            wait_seconds = 0.0  # neither a number nor a date
        raise _PassingFaultError(said, wait_seconds=wait_seconds)
    raise _TransferError(said)


def _origin_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _drop(part: Path) -> None:
    part.unlink(missing_ok=True)
    _origin_file(part).unlink(missing_ok=True)
