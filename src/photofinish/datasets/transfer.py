"""One file over HTTP into a partial file that grows until it is whole, over lost connections and ended processes."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from photofinish.datasets.disk import check_room, explained_when_full
from photofinish.datasets.progress import DownloadDisplay
from photofinish.datasets.web import PassingFaultError, TransferError, asked
from photofinish.files import to_json, write_text_atomically

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
