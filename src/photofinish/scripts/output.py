"""Last part of a command's output, and the line on a terminal with its progress."""

from __future__ import annotations

import math
import os
import sys
import threading
from typing import IO, Self

from photofinish.wording import seconds

_LAST_LINES = 40
_KEPT_BYTES = 64 * 1024
"""Most output that is kept: 40 lines of 1,600 characters."""
_HELD_SECONDS = 2.0
"""Time to wait for the rest of the output, as a process that outlives the command may hold it."""
_CLEAR = "\r\033[K"


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
        self._reading.join(_HELD_SECONDS)
        return "\n".join(self._kept.decode(errors="replace").splitlines()[-_LAST_LINES:])


class ProgressLine:
    """Line on a terminal with the progress and the maximum time left.

    If the script's output is shown, it is dimmed and replaces the line.
    """

    def __init__(self, kind: str, *, shows_output: bool) -> None:
        self._where = "On the CPU" if kind == "cpu" else f"On {kind}"
        self._is_terminal, self._shows_output = sys.stderr.isatty(), shows_output

    def __enter__(self) -> Self:
        if self._shows_output:
            self._write("\033[2m")
        return self

    def __exit__(self, *_: object) -> None:
        self._write("\033[0m" if self._shows_output else _CLEAR)

    def show(self, text: str, left_seconds: float) -> None:
        if not self._shows_output:
            left = seconds(max(1, math.ceil(left_seconds)))
            self._write(f"{_CLEAR}{self._where}: {text}, at most {left} more")

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._write(_CLEAR)
        print(f"{self._where}: {text}", file=sys.stderr)

    def _write(self, text: str) -> None:
        if self._is_terminal:
            print(text, end="", file=sys.stderr, flush=True)
