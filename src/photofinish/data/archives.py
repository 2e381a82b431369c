"""What is in an archive, read from its first byte to its last: plain files and folders, and nothing that is not."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tarfile import EOFHeaderError, HeaderError, ReadError, TarFile  # type: ignore[attr-defined]
from typing import IO, Self, cast

from rich.filesize import decimal

from photofinish.errors import UserError
from photofinish.files import explained_when_full, free_bytes

_READ_BYTES = 1 << 20
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
        while stream.read(_READ_BYTES):
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
        while self._position < position and self.read(min(_READ_BYTES, position - self._position)):
            pass


_CHUNK_BYTES = 1 << 20
_LARGEST_RATIO = 200
_ALLOWANCE_BYTES = 10**9
_MOST_MEMBERS = 5_000_000
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:[/\\]")
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755


def unpack(archive: Path, folder: Path) -> None:
    """Into `folder`, beside what is there; of the same name it is replaced. The kind is told by the archive's name."""
    folder = folder.resolve()
    unpacking = folder.with_name(f".{folder.name}.unpacking")
    shutil.rmtree(unpacking, ignore_errors=True)  # a killed process may have left it
    unpacking.mkdir(parents=True)
    try:
        _unpack_all(archive, unpacking)
        for path in (unpacking, *unpacking.rglob("*")):
            path.chmod(_FOLDER_MODE if path.is_dir() else _FILE_MODE)
        _merge(archive, unpacking, folder)
    finally:
        shutil.rmtree(unpacking, ignore_errors=True)


def _unpack_all(archive: Path, folder: Path) -> None:
    size_bytes = archive.stat().st_size
    limit_bytes = size_bytes * _LARGEST_RATIO + _ALLOWANCE_BYTES
    room_bytes = free_bytes(folder)
    number = unpacked_bytes = 0
    with damage_explained(archive), closing(members_of(archive, limit_bytes)) as members:
        for number, member in enumerate(members, start=1):
            if number > _MOST_MEMBERS:
                raise refusal(archive, member.name, f"is one too many: at most {_MOST_MEMBERS:,} are unpacked")
            most_bytes = min(limit_bytes, room_bytes) - unpacked_bytes
            written = _unpack_one(archive, member, folder, most_bytes)
            unpacked_bytes += written
            if unpacked_bytes > limit_bytes:
                raise too_large(archive, limit_bytes)
            if unpacked_bytes > room_bytes:
                raise UserError(f"no room for what is in {archive}: make room on the disk of {folder.parent}")
        if number == 0 or size_bytes == 0:
            raise EOFError("it is empty")  # to some readers no bytes at all, or zeros, are an archive of nothing


def _unpack_one(archive: Path, member: Member, folder: Path, most_bytes: int) -> int:
    """How many bytes were written: they end soon after `most_bytes`."""
    if _ABSOLUTE.match(member.name) or ".." in re.split(r"[/\\]", member.name):
        raise refusal(archive, member.name, "would come to lie outside its folder")
    path = folder / member.name
    written = 0
    try:
        with explained_when_full(folder.parent, f"what is in {archive}"):
            if member.content is None:
                path.mkdir(parents=True, exist_ok=True)
                return 0
            path.parent.mkdir(parents=True, exist_ok=True)
            with member.content() as content, path.open("wb") as file:
                while written <= most_bytes and (chunk := content.read(_CHUNK_BYTES)):
                    written += file.write(chunk)
    except OSError as error:
        if error.errno is None:
            raise
        raise refusal(archive, member.name, f"can't be written: {error.strerror}") from error
    return written


def _merge(archive: Path, unpacked: Path, folder: Path) -> None:
    if not folder.exists():
        unpacked.rename(folder)
        return
    moves = [(path, folder / path.relative_to(unpacked), path.is_dir()) for path in sorted(unpacked.rglob("*"))]
    for _, place, is_folder in moves:
        if (is_folder and place.is_symlink()) or (place.exists() and place.is_dir() != is_folder):
            raise UserError(f"{archive} can't be unpacked, for {place} is in the way: move it")
    for path, place, is_folder in moves:
        if not is_folder:
            os.replace(path, place)
        elif not place.exists():
            place.mkdir()
            place.chmod(_FOLDER_MODE)
