"""Unpack an archive so that all of it comes into its folder, or nothing comes anywhere."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import closing
from pathlib import Path

from photofinish.datasets.archive_members import Member, damage_explained, members_of, refusal, too_large
from photofinish.datasets.disk import explained_when_full, free_bytes
from photofinish.errors import UserError

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
