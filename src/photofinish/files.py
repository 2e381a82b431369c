"""Files that are either whole or not there, their sha256, and the project's own folders."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from photofinish.errors import UserError
from photofinish.wording import byte_size

SUMS = "SHA256SUMS"
"""beside files that carry figures: the sha256 of each, which every reader checks, and `sha256sum --check` too"""


def sha256_of_bytes(data: bytes) -> str:
    """The sha256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """The same of a file, however large it is."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_as_recorded(path: Path, sha256: str | None) -> bool:
    """Whether the file is there, and is the one that was recorded."""
    return path.is_file() and sha256_of_file(path) == sha256


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file beside `path`, which is forced to disk and renamed into place if all goes well, else removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)  # once renamed, it has that name no more


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, which takes its place if all goes well, else is removed."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # a killed process may have left it
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_bytes_atomically(path: Path, data: bytes) -> None:
    """Write a file of which, whatever happens, all is there or what was there before."""
    with atomic_file(path) as file:
        file.write(data)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a file likewise, in UTF-8."""
    write_bytes_atomically(path, text.encode("utf-8"))


def sums_text(sha256: Mapping[str, str]) -> str:
    """The lines of a SHA256SUMS, by the names of the files."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sha256.items()))


def read_sums(folder: Path) -> dict[str, str]:
    """The sha256 of each file in the folder's SHA256SUMS, by its name."""
    lines = (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def add_sums(folder: Path, sha256: Mapping[str, str]) -> None:
    """Note the sha256 of some files, by their names below `folder`, beside those that are noted already."""
    noted = read_sums(folder) if (folder / SUMS).is_file() else {}
    write_text_atomically(folder / SUMS, sums_text({**noted, **sha256}))


def write_summed(path: Path, data: bytes) -> None:
    """Write a file all at once, its sha256 noted beside it before: who finds the file finds that too."""
    add_sums(path.parent, {path.name: sha256_of_bytes(data)})
    write_bytes_atomically(path, data)


def read_summed(path: Path) -> bytes:
    """What `write_summed` wrote, and nothing else: DVC's cache hands on a flipped bit without a word."""
    data = path.read_bytes()
    if read_sums(path.parent).get(path.name) != sha256_of_bytes(data):
        raise UserError(
            f"{path} is damaged: its sha256 is not the one in {SUMS} beside it. Run "
            f"`find .dvc/cache/files -type f -exec chmod u+w {{}} + -exec touch {{}} +`, so that DVC looks at all that "
            f"it keeps, then `rm -r {path.parent}` and `dvc repro`"
        )
    return data


def is_whole(folder: Path) -> bool:
    """Whether every file that its SHA256SUMS names is there, as it was."""
    if folder.is_dir() and not (folder / SUMS).exists():
        return True
    try:
        return all(sha256_of_file(folder / name) == digest for name, digest in read_sums(folder).items())
    except OSError:
        return False


def to_json(value: Any) -> str:
    """JSON as every file here has it: the same value gives the same bytes."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def write_json_atomically(path: Path, value: Any) -> None:
    """Write a file likewise, as `to_json` has it."""
    write_text_atomically(path, to_json(value))


def free_bytes(folder: Path) -> int:
    """How much room is left on the folder's disk."""
    return shutil.disk_usage(folder).free


def check_room(folder: Path, needed_bytes: int, what: str) -> None:
    """Refuse what the disk has no room for, rather now than after an hour of writing."""
    free = free_bytes(folder)
    if needed_bytes > free:
        raise UserError(
            f"no room for {what}: {byte_size(needed_bytes)} are still to be written and the disk of {folder} has"
            f" {byte_size(free)} free; make {byte_size(needed_bytes - free)} more room there, then run again"
        )


@contextmanager
def explained_when_full(folder: Path, what: str) -> Iterator[None]:
    """A disk that fills up while `what` is written becomes a message."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"no room for {what}: the disk of {folder} is full, or your share of it"
            f" ({byte_size(free_bytes(folder))} free); make room there, then run again"
        ) from error


def project_root() -> Path:
    """The project's folder. DVC names it also where it runs a stage in a copy (`dvc exp run --temp`)."""
    return Path(os.environ.get("DVC_ROOT") or _checkout()).resolve()


def in_project(given: str) -> Path:
    """A path as a user writes it: relative ones start at the project's folder, wherever the stage runs."""
    return project_root() / os.path.expanduser(given)  # noqa: PTH111  # pathlib's fails on an unknown user


def _checkout() -> Path:
    """The project, or the copy of it, that the present folder is in."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".dvc").is_dir()), here)


def own_sweep() -> str | None:
    """The name of the sweep whose folder this is; None in the project's own."""
    here = Path.cwd()
    return here.name if here != _checkout() else None


def folders_with_results() -> list[Path]:
    """The project's own, which this is, and its sweeps'."""
    return [Path(), *(path.parent for path in sorted(Path("sweeps").glob("*/results")))]


def state_folder() -> Path:
    """The folder of locks and checkpoints: what must survive a stage's end, and is no result."""
    return project_root() / ".photofinish"


def removed_folder() -> Path:
    """Where results are, by the names of their experiments, that params.yaml has no more."""
    return state_folder() / "removed"


def finished_folder() -> Path:
    """Where results of finished trainings are, by the keys of their runs, until DVC has them."""
    return state_folder() / "finished"
