"""The sha256 of this package's code, as one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from photofinish.files import sha256_of_bytes


@cache
def source_sha256() -> str:
    """A run is never resumed by other code than began it."""
    folder = Path(__file__).parent
    sources = sorted(folder.rglob("*.py"))
    named = (f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes() for path in sources)
    return sha256_of_bytes(b"\0".join(named))
