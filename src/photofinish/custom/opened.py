"""Files below the project that custom code opens, and that no cache key has."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from photofinish.custom.running import OURS, is_custom_file
from photofinish.files import project_root
from photofinish.wording import counted

_CODE = (".py", ".pyc", ".so")
_WRITES = os.O_WRONLY | os.O_RDWR
_opened: list[set[Path]] = []
"""Files that custom code opened, for each block that notes them."""


@contextmanager
def unnamed_files_reported(key: str, named: Collection[str]) -> Iterator[None]:
    """Print the files that custom code opens in this block and that are not `named`.

    `named` are files and folders. Python keeps an audit hook until it ends, and each audited event
    then takes longer, so no process that times a training uses this.
    """
    _add_hook()
    opened: set[Path] = set()
    _opened.append(opened)
    try:
        yield
    finally:
        _opened.remove(opened)
        known = {Path(name).resolve() for name in named}
        root = project_root().resolve()
        unnamed = sorted(
            path.relative_to(root).as_posix()
            for path in opened
            if path.is_file() and _is_of_project(path, root) and not known & {path, *path.parents}
        )
        if unnamed:
            more = f" and {counted(len(unnamed) - 1, 'file')} more" if len(unnamed) > 1 else ""
            print(
                f"note: {key} reads {unnamed[0]}{more}, which its deps do not name: a change of it "
                f"runs nothing again",
                flush=True,
            )


def _is_of_project(path: Path, root: Path) -> bool:
    """Return True for data of the user below the project, which is neither hidden nor code."""
    if not path.is_relative_to(root) or path.suffix in _CODE or not is_custom_file(str(path)):
        return False
    return not any(part.startswith(".") for part in path.relative_to(root).parts)


@cache
def _add_hook() -> None:
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _opened:
        return
    path, _mode, flags = arguments
    if isinstance(path, str) and not flags & _WRITES and _is_by_custom_code():
        _opened[-1].add(Path(path).resolve())


def _is_by_custom_code() -> bool:
    """Return True if custom code opens the file, itself or by a library."""
    frame = inspect.currentframe()
    while frame := frame and frame.f_back:
        name = frame.f_code.co_filename
        if name.startswith(OURS) and name != __file__:
            return False
        if is_custom_file(name):
            return True
    return False
