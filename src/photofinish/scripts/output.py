"""Last part of a command's output, and the question at which it waits."""

from __future__ import annotations

import os
import threading
import time
from typing import IO

_LAST_LINES = 40
_KEPT_BYTES = 64 * 1024
"""Most output that is kept: 40 lines of 1,600 characters."""
SILENT_SECONDS = 5.0
"""Time after which a line without its end is shown, by hand: a question waits for an answer."""
_MOST_SHOWN_BYTES = 200
_HELD_SECONDS = 2.0
"""Time to wait for the rest of the output, as a process that outlives the command may hold it."""
_clock = time.perf_counter


class Output:
    """Last part of a command's output. A thread reads it, so that the command never waits."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        self._kept, self._came_at, self._shown = b"", _clock(), b""
        self._reading = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._reading.start()

    def _read(self, pipe: IO[bytes] | None) -> None:
        if pipe is None:  # the output is shown
            return
        with pipe:
            while came := os.read(pipe.fileno(), _KEPT_BYTES):
                self._kept, self._came_at = (self._kept + came)[-_KEPT_BYTES:], _clock()

    def new_question(self) -> str | None:
        """Return a last line without its end, once nothing has followed it for a while."""
        line = self._kept.rpartition(b"\n")[2]
        is_bar = b"\r" in line
        is_silent = _clock() - self._came_at > SILENT_SECONDS
        if is_bar or not is_silent or not line.strip() or line == self._shown:
            return None
        self._shown = line
        return line[-_MOST_SHOWN_BYTES:].decode(errors="replace").strip()

    def last_lines(self) -> str:
        """Return the last lines once the command has ended."""
        self._reading.join(_HELD_SECONDS)
        return "\n".join(self._kept.decode(errors="replace").splitlines()[-_LAST_LINES:])
