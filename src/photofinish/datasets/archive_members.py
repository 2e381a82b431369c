"""What is in an archive, read from its first byte to its last: plain files and folders, and nothing that is not."""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tarfile import EOFHeaderError, HeaderError, ReadError, TarFile  # type: ignore[attr-defined]  # has the first
from typing import IO, Self, cast

from rich.filesize import decimal

from photofinish.errors import UserError

_CHUNK_BYTES = 1 << 20
_LARGEST_READ_BYTES = 1 << 24
"""tarfile reads a header into memory whole, however long it says it is"""
_Open = Callable[[Path], IO[bytes]]
_COMPRESSIONS = {
    ".gz": (b"\x1f\x8b", cast(_Open, gzip.GzipFile)),
    ".bz2": (b"BZh", cast(_Open, bz2.BZ2File)),
    ".xz": (b"\xfd7zXZ\x00", cast(_Open, lzma.LZMAFile)),
}
_TAR_SUFFIXES = (".tar", ".tgz", ".tbz", ".tbz2", ".txz")
_ENCRYPTED = 0x1
_DAMAGE = (
    EOFError, ValueError, NotImplementedError, RuntimeError, zlib.error, lzma.LZMAError, tarfile.TarError,
    zipfile.BadZipFile,
)  # fmt: skip
"""what the readers raise, each its own way, at bytes they can't make sense of"""


@dataclass(frozen=True)
class Member:
    name: str
    content: Callable[[], IO[bytes]] | None
    """None of a folder"""


def members_of(archive: Path, limit_bytes: int) -> Generator[Member, None, None]:
    """Each must be read before the next is asked for; then all of the archive is known to be whole."""
    suffixes = ["", *(suffix.lower() for suffix in archive.suffixes)][-2:]
    if suffixes[-1] == ".zip":
        return _in_zip(archive)
    if suffixes[-1] in _TAR_SUFFIXES or (suffixes[0] == ".tar" and suffixes[-1] in _COMPRESSIONS):
        return _in_tar(archive, limit_bytes)
    if suffixes[-1] in _COMPRESSIONS:
        return _alone(archive, suffixes[-1])
    known = ", ".join((".zip", *_TAR_SUFFIXES, *_COMPRESSIONS))
    raise UserError(f"{archive} can't be unpacked: its name ends in none of {known}")


@contextmanager
def damage_explained(archive: Path) -> Iterator[None]:
    try:
        yield
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault; gzip and bz2 raise OSErrors of their own, without a number
        raise UserError(
            f"{archive} is damaged, cut short or not what its name says ({str(error) or type(error).__name__}): delete"
            f" {archive.name} where downloads are kept (.photofinish/downloads) and run again; if that changes nothing,"
            " get a good copy and let `mirror:` in params.yaml name its folder"
        ) from error


def refusal(archive: Path, member: str, reason: str) -> UserError:
    return UserError(f"{archive} is refused, and nothing of it was unpacked: its member {member!r} {reason}")


def too_large(archive: Path, limit_bytes: int) -> UserError:
    return UserError(
        f"{archive} is refused, and nothing of it was unpacked: it has {decimal(archive.stat().st_size)} and would"
        f" unpack to more than {decimal(limit_bytes)}, as no data set does"
    )


def _alone(archive: Path, suffix: str) -> Generator[Member, None, None]:
    _, open_ = _COMPRESSIONS[suffix]
    yield Member(archive.stem, lambda: open_(archive))


def _in_zip(archive: Path) -> Generator[Member, None, None]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise refusal(archive, info.filename, "is a link or a device")
            if info.flag_bits & _ENCRYPTED:
                raise refusal(archive, info.filename, "is encrypted: get a copy that needs no password")
            yield Member(info.filename, None if info.is_dir() else partial(opened.open, info))


def _in_tar(archive: Path, limit_bytes: int) -> Generator[Member, None, None]:
    """Links are refused all: a copy of what they name would do as well, and where they lead can change meanwhile."""
    with _decompressed(archive) as raw:
        stream = _ForwardOnly(raw, limit_bytes, lambda: too_large(archive, limit_bytes))
        with tarfile.TarFile(fileobj=cast(IO[bytes], stream), tarinfo=_StrictHeader) as tar:
            while info := tar.next():
                tar.members = []  # type: ignore[attr-defined]  # or every header is kept in memory
                if not (info.isreg() or info.isdir()):
                    raise refusal(archive, info.name, "is a link, a device or of an unknown kind")
                content = cast(Callable[[], IO[bytes]], partial(tar.extractfile, info))
                yield Member(info.name, content if info.isreg() else None)
        while stream.read(_CHUNK_BYTES):
            pass  # the checksum of what was compressed comes last


def _decompressed(tar: Path) -> IO[bytes]:
    """By its first bytes: there are compressed archives that are named just .tar."""
    with tar.open("rb") as file:
        beginning = file.read(max(len(magic) for magic, _ in _COMPRESSIONS.values()))
    for magic, open_ in _COMPRESSIONS.values():
        if beginning.startswith(magic):
            return open_(tar)
    return tar.open("rb")


class _StrictHeader(tarfile.TarInfo):
    """tarfile itself takes any damaged header but the first, and bytes cut off, for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tarfile: TarFile) -> Self:
        try:
            info = super().fromtarfile(tarfile)
        except EOFHeaderError:
            raise
        except HeaderError as error:
            raise ReadError(str(error)) from error
        if info.size < 0:
            raise ReadError(f"{info.name} has a negative size")
        return info


class _ForwardOnly:
    """A stream that is read once, and no more of it than there may be; its headers are not trusted."""

    def __init__(self, raw: IO[bytes], limit_bytes: int, too_much: Callable[[], UserError]) -> None:
        self._raw, self._limit_bytes, self._too_much = raw, limit_bytes, too_much
        self._position = 0

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        if size > _LARGEST_READ_BYTES:
            raise tarfile.ReadError(f"a header of {decimal(size)}")
        data = self._raw.read(size)
        self._position += len(data)
        if self._position > self._limit_bytes:
            raise self._too_much()
        return data

    def seek(self, position: int) -> None:
        if position < self._position:
            raise tarfile.ReadError("a header that leads backwards")  # tarfile would go round in circles
        while self._position < position and self.read(min(_CHUNK_BYTES, position - self._position)):
            pass
