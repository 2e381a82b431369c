"""Archives unpacked all or not at all.

tarfile with its data filter and zipfile do the unpacking. Neither bounds how much comes out, both take some damage for
the end of an archive, and both put what would lie outside somewhere inside, without a word: those are refused here.
"""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tarfile import EOFHeaderError, HeaderError, ReadError, TarFile  # type: ignore[attr-defined]
from typing import IO, Any, Self, cast

from rich.filesize import decimal

from photofinish.errors import UserError
from photofinish.files import explained_when_full, free_bytes

_COMPRESSIONS: dict[str, Callable[[Path], Any]] = {".gz": gzip.GzipFile, ".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile}
_TAR_SUFFIXES = (".tar", ".tgz", ".tbz", ".tbz2", ".txz", *(f".tar{suffix}" for suffix in _COMPRESSIONS))
_CHUNK_BYTES = 1 << 20
_LARGEST_HEADER_BYTES = 1 << 24
"""tarfile reads a header into memory whole, however long it says it is"""
_LARGEST_RATIO = 200
_ALLOWANCE_BYTES = 10**9
_MOST_MEMBERS = 5_000_000
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:[/\\]")
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755
_ENCRYPTED = 0x1
_DAMAGE = (
    EOFError, ValueError, OverflowError, NotImplementedError, RuntimeError, zlib.error, lzma.LZMAError,
    tarfile.TarError, zipfile.BadZipFile,
)  # fmt: skip
"""what the readers raise, each its own way, at bytes they can't make sense of"""


def unpack(archive: Path, folder: Path) -> None:
    """Unpack into `folder`, beside what is there; files of the same name are replaced. The name tells the kind."""
    folder = folder.resolve()
    unpacking = folder.with_name(f".{folder.name}.unpacking")
    shutil.rmtree(unpacking, ignore_errors=True)  # a killed process may have left it
    unpacking.mkdir(parents=True)
    try:
        _unpack_all(archive, unpacking)
        for path in (unpacking, *unpacking.rglob("*")):
            path.chmod(_FOLDER_MODE if path.is_dir() else _FILE_MODE)
        _merge(archive, unpacking, folder)
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault; gzip and bz2 raise OSErrors of their own, without a number
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{archive} is damaged, cut short or not what its name says ({reason}): delete"
            f" {archive.name} where downloads are kept (.photofinish/downloads) and run again; if that changes nothing,"
            " get a good copy and let `mirror:` in params.yaml name its folder"
        ) from error
    finally:
        shutil.rmtree(unpacking, ignore_errors=True)


def _unpack_all(archive: Path, folder: Path) -> None:
    name = archive.name.lower()
    suffix = Path(name).suffix
    unpacked = _Unpacked(archive, archive.stat().st_size * _LARGEST_RATIO + _ALLOWANCE_BYTES, free_bytes(folder))
    if suffix == ".zip":
        with zipfile.ZipFile(archive) as opened:
            members = opened.infolist()
            for info in members:
                kind = stat.S_IFMT(info.external_attr >> 16)
                unpacked.check(info.filename, is_plain=kind in (0, stat.S_IFREG, stat.S_IFDIR))
                if info.flag_bits & _ENCRYPTED:
                    raise _refusal(archive, info.filename, "is encrypted: get a copy that needs no password")
                unpacked.add(info.file_size)
            for info in members:
                with _writing(archive, info.filename, folder):
                    opened.extract(info, folder)
    elif name.endswith(_TAR_SUFFIXES):
        with tarfile.open(archive, tarinfo=_StrictHeader) as tar:
            begun_bytes = 0
            while member := tar.next():
                tar.members = []  # type: ignore[attr-defined]  # which would keep every header, however large
                # Links too: a copy of what they name would do as well, and where they lead can change meanwhile.
                unpacked.check(member.name, is_plain=(member.isreg() or member.isdir()) and not member.issparse())
                unpacked.add(tar.offset - begun_bytes)  # its headers too, which may be larger than it is
                begun_bytes = tar.offset
                with _writing(archive, member.name, folder):
                    tar.extract(member, folder, filter="data")
            while rest := cast(IO[bytes], tar.fileobj).read(_CHUNK_BYTES):  # the compression's checksum comes last
                unpacked.add(len(rest))
    elif suffix in _COMPRESSIONS:
        unpacked.check(archive.stem, is_plain=True)
        alone = folder / archive.stem
        with _COMPRESSIONS[suffix](archive) as content, _writing(archive, alone.name, folder), alone.open("wb") as file:
            while chunk := content.read(_CHUNK_BYTES):
                unpacked.add(len(chunk))
                file.write(chunk)
    else:
        known = ", ".join((".zip", *_TAR_SUFFIXES, *_COMPRESSIONS))
        raise UserError(f"{archive} can't be unpacked: its name ends in none of {known}")
    if unpacked.members == 0 or archive.stat().st_size == 0:
        raise EOFError("it is empty")  # to some readers no bytes at all, or zeros, are an archive of nothing


@dataclass
class _Unpacked:
    """What has come out of an archive so far, and how much may."""

    archive: Path
    limit_bytes: int
    room_bytes: int
    members: int = 0
    size_bytes: int = 0

    def check(self, name: str, *, is_plain: bool) -> None:
        """Count a member that is about to be unpacked, or refuse it."""
        self.members += 1
        if self.members > _MOST_MEMBERS:
            raise _refusal(self.archive, name, f"is one too many: at most {_MOST_MEMBERS:,} are unpacked")
        if _ABSOLUTE.match(name) or ".." in re.split(r"[/\\]", name):
            raise _refusal(self.archive, name, "would come to lie outside its folder")
        if not is_plain:
            raise _refusal(self.archive, name, "is a link, a device or of an unknown kind")

    def add(self, size_bytes: int) -> None:
        """Count bytes before they are written, or refuse them."""
        self.size_bytes += size_bytes
        if self.size_bytes > self.limit_bytes:
            raise UserError(
                f"{self.archive} is refused, and nothing of it was unpacked: it has"
                f" {decimal(self.archive.stat().st_size)} and would unpack to more than {decimal(self.limit_bytes)},"
                " as no data set does"
            )
        if self.size_bytes > self.room_bytes:
            raise UserError(f"no room for what is in {self.archive}: make room on the disk that it is unpacked on")


class _StrictHeader(tarfile.TarInfo):
    """tarfile itself takes any damaged header but the first, and bytes cut off, for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tarfile: TarFile) -> Self:
        """The next header; an error where it is damaged."""
        try:
            info = super().fromtarfile(tarfile)
        except EOFHeaderError:
            raise
        except HeaderError as error:
            raise ReadError(str(error)) from error
        if info.size < 0:
            raise ReadError(f"{info.name} has a negative size")  # tarfile would go round in circles
        return info

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """The header in `buf`; an error where what it announces is too much to hold in memory."""
        info = super().frombuf(buf, encoding, errors)
        if not (info.isreg() or info.isdir() or 0 <= info.size <= _LARGEST_HEADER_BYTES):
            raise ReadError(f"a header of {decimal(info.size)}")
        return info


def _refusal(archive: Path, member: str, reason: str) -> UserError:
    return UserError(f"{archive} is refused, and nothing of it was unpacked: its member {member!r} {reason}")


@contextmanager
def _writing(archive: Path, member: str, folder: Path) -> Iterator[None]:
    """What can't be written has a name that no file can have, or the disk is full."""
    try:
        with explained_when_full(folder.parent, f"what is in {archive}"):
            yield
    except OSError as error:
        if error.errno is None:
            raise
        raise _refusal(archive, member, f"can't be written: {error.strerror}") from error


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
