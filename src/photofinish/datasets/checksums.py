"""What is known of a file before it comes, and copies that appear only when they are that file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from photofinish.datasets.disk import check_room, explained_when_full
from photofinish.files import atomic_file

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
