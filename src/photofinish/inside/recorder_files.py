"""Files of a recorder: the one that it writes, a JSON value a line, and those of the script."""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from .device import peak_device_memory_bytes, peak_host_memory_bytes

_WRITE_SECONDS = 0.5
_SETTINGS = ".yaml", ".yml", ".toml", ".ini", ".cfg"


class LineFile:
    """Lines for a file, appended from time to time. Of forks, only one that trains has a file."""

    def __init__(self, folder: Path) -> None:
        self._path, self._process = folder / f"{os.getpid()}.jsonl", os.getpid()
        self._file: int | None = None
        """Open file. A file object would warn in the user's process that it is never closed."""
        self._lines: list[Any] = []
        self._early: list[Any] | None = []
        """Lines from before the training, for a fork. None during the training."""
        self.written_at = 0.0

    @property
    def is_forked(self) -> bool:
        return os.getpid() != self._process

    def begin_training(self, end: Callable[[], None]) -> bool:
        """Begin a file if this process is a fork, with the lines from before the training."""
        is_forked, early, self._early = self.is_forked, self._early, None
        if is_forked and early is not None:
            self._process, self._file = os.getpid(), None
            self._path = self._path.with_name(f"{self._process}.jsonl")
            self._lines = early + self._lines
        if is_forked:
            from multiprocessing.util import Finalize

            Finalize(None, end, exitpriority=0)  # such a process skips atexit
        return is_forked

    def is_old(self, now: float) -> bool:
        """Return True if nothing was written for a while."""
        return now - self.written_at > _WRITE_SECONDS

    def note(self, **values: Any) -> None:
        """Write a line at once."""
        self.add(values)
        self._write(time.perf_counter())

    def add(self, values: Any) -> None:
        self._lines.append(values)  # as text only when written: that takes 40 us

    def add_memory(self) -> None:
        device_bytes, reserved_bytes = map(peak_device_memory_bytes, ("allocated", "reserved"))
        peaks = {"device_bytes": device_bytes, "reserved_bytes": reserved_bytes}
        self.add({"kind": "memory", "host_bytes": peak_host_memory_bytes()} | peaks)

    def write_sometimes(self, now: float) -> None:
        """Write what was added if nothing was written for a while, with the peak memory."""
        if self.is_old(now):
            self.add_memory()
            self._write(now)

    def _write(self, now: float) -> None:
        lines, self._lines, self.written_at = self._lines, [], now
        if self._early is not None:
            self._early += lines
        if lines and not self.is_forked:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.write(self._file, "".join(json.dumps(line) + "\n" for line in lines).encode())


class ScriptFiles:
    """Files below the folder in which the script starts."""

    def __init__(self) -> None:
        """Begin to note the settings that are read."""
        self._folder = Path()
        self._read: set[str] = set()
        with contextlib.suppress(OSError):  # the current folder may be gone
            self._folder = Path.cwd()
        self._open: Any = builtins.open
        builtins.open = io.open = self._note_and_open

    def _note_and_open(self, file: Any, *rest: Any, **named: Any) -> Any:
        name = os.fspath(file) if isinstance(file, (str, os.PathLike)) else ""
        if str(name).endswith(_SETTINGS) and "r" in (*rest, named.get("mode", "r"))[0]:
            with contextlib.suppress(OSError):
                self._read.add(str(Path(name).absolute()))
        return self._open(file, *rest, **named)

    def end(self) -> list[str]:
        """Return the files, and note no more."""
        if builtins.open == self._note_and_open:  # the script may replace it, too
            builtins.open = io.open = self._open
        modules = [each for each in list(sys.modules.values()) if isinstance(each, ModuleType)]
        try:
            found = {vars(module).get("__file__") for module in modules}  # lazy ones have others
            paths = {Path(path).absolute() for path in found | self._read if path}
            below = (path for path in paths if path.is_file() and path.is_relative_to(self._folder))
            return sorted(str(path) for path in below if "site-packages" not in path.parts)
        except Exception:  # noqa: BLE001  # such as of a current folder that is gone
            return []
