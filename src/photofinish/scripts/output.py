"""Last part of a command's output."""

from __future__ import annotations

import os
import threading
from typing import IO

_LAST_LINES = 40
_KEPT_BYTES = 64 * 1024
"""Most output that is kept: 40 lines of 1,600 characters."""
_HELD_SECONDS = 2.0
"""Time to wait for the rest of the output, as a process that outlives the command may hold it."""


class Output:
    """Last part of a command's output. A thread reads it, so that the command never waits."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        self._kept = b""
        self._reading = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._reading.start()

    def _read(self, pipe: IO[bytes] | None) -> None:
        if pipe is None:  # the output is shown
            return
        with pipe:
            while came := os.read(pipe.fileno(), _KEPT_BYTES):
                self._kept = (self._kept + came)[-_KEPT_BYTES:]

    def last_lines(self) -> str:
        """Return the last lines once the command has ended."""
        self._reading.join(_HELD_SECONDS)
        return "\n".join(self._kept.decode(errors="replace").splitlines()[-_LAST_LINES:])
