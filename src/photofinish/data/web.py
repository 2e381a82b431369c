"""One request for a file, from some byte on, and what the answer means: here it comes, later, or never."""

from __future__ import annotations

import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import IO
from urllib.parse import urlsplit

STALL_SECONDS = 30.0
_USER_AGENT = "photofinish"
_CHUNK_BYTES = 1 << 18
_SCHEMES = ("http", "https")
_WORTH_ANOTHER_TRY = (408, 425, 429, 500, 502, 503, 504)


class TransferError(Exception):
    """A file did not come, and asking again at once won't help."""

    def __init__(self, reason: str, *, is_absent: bool = False) -> None:
        super().__init__(reason)
        self.is_absent = is_absent
        """the server was there and has no such file"""


class PassingFaultError(Exception):
    """A file did not come, and may the next time."""

    def __init__(
        self, reason: str, *, wait_seconds: float = 0.0, part_is_useless: bool = False, is_unreachable: bool = False
    ) -> None:
        super().__init__(reason)
        self.is_unreachable = is_unreachable
        """not even a connection came about"""
        self.wait_seconds = wait_seconds
        self.part_is_useless = part_is_useless
        """what was there before can't be gone on from"""


@dataclass(frozen=True)
class Answer:
    start_byte: int
    total_bytes: int | None
    validator: str | None
    """a strong ETag or a date: tells whether it's still the same file"""
    chunks: Iterator[bytes]


class _HttpOnly(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme not in _SCHEMES:
            fp.close()
            raise TransferError(f"the server redirects to {newurl}, which is no http address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextmanager
def asked(url: str, *, offset: int, validator: str | None) -> Iterator[Answer]:
    """The file from `offset` on if it's still the one of `validator`; else, or if the server can't, all of it."""
    if urlsplit(url).scheme not in _SCHEMES:
        raise TransferError("this is no http address")
    headers = {"User-Agent": _USER_AGENT}
    if offset:
        headers |= {"Range": f"bytes={offset}-"} | ({"If-Range": validator} if validator else {})
    with _response(urllib.request.Request(url, headers=headers), offset) as response:  # noqa: S310  # checked above
        start, total = _range_of(response, offset)
        etag = response.headers.get("ETag", "")
        validator = etag if etag.startswith('"') else response.headers.get("Last-Modified")
        yield Answer(start, total, validator, _chunks(response))


def _response(request: urllib.request.Request, offset: int) -> http.client.HTTPResponse:
    try:
        response = urllib.request.build_opener(_HttpOnly).open(request, timeout=STALL_SECONDS)
    except urllib.error.HTTPError as error:
        with error:
            raise _fault_of_status(error, offset) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ValueError | http.client.InvalidURL):  # a wrong certificate is a ValueError too
            raise TransferError(str(reason)) from error
        # Only what fails before the answer is wrapped in a URLError.
        raise PassingFaultError(_in_words(reason), is_unreachable=isinstance(error, urllib.error.URLError)) from error
    assert isinstance(response, http.client.HTTPResponse)
    return response


def _fault_of_status(error: urllib.error.HTTPError, offset: int) -> Exception:
    reason = f"the server answers {error.code} {error.reason}"
    if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
        return PassingFaultError(reason, part_is_useless=True)
    if error.code in _WORTH_ANOTHER_TRY:
        return PassingFaultError(reason, wait_seconds=_wait_seconds(error.headers.get("Retry-After", "")))
    return TransferError(reason, is_absent=error.code in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE))


def _wait_seconds(retry_after: str) -> float:
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return 0.0


def _range_of(response: http.client.HTTPResponse, offset: int) -> tuple[int, int | None]:
    """Where what comes begins, and how long the whole file is."""
    if response.status == HTTPStatus.OK:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    place = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if response.status != HTTPStatus.PARTIAL_CONTENT or place is None:
        raise TransferError(f"the server answers {response.status} {response.reason}, without the file")
    if int(place[1]) != offset:
        reason = f"asked for the bytes from {offset} on, the server sends those from {place[1]} on"
        raise PassingFaultError(reason, part_is_useless=True)
    return offset, None if place[2] == "*" else int(place[2])


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """As they come: nothing that arrived is lost when the connection is."""
    while True:
        try:
            chunk = response.read1(_CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise PassingFaultError(_in_words(error)) from error
        if not chunk:
            return
        yield chunk


def _in_words(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"no byte came for {STALL_SECONDS:g} s"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended too early"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
