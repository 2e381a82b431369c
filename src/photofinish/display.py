"""Progress of long work: a bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from typing import Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

_SECONDS_BETWEEN_LINES = 10.0


class Display:
    """A bar with a title on a terminal, and lines in `lines` otherwise."""

    def __init__(self, title: str, bar: Progress, total: float | None, lines: TextIO) -> None:
        self._title, self._bar, self._lines = title, bar, lines
        self._bar.disable = not sys.stderr.isatty()
        self._task = bar.add_task(title, total=total, note="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line after the title, above the bar if there is one."""
        line = f"{self._title}  {text}"
        if self._bar.disable:
            print(line, file=self._lines, flush=True)
        else:
            self._bar.console.print(line, highlight=False, markup=False)


class ReadingDisplay(Display):
    """Progress of reading the samples of a data set."""

    def __init__(self, name: str, count: int, what: str) -> None:
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        super().__init__(name, bar, count, sys.stderr)
        self._count, self._done = count, 0
        self._printed_seconds = time.monotonic()
        self.say(f"reading {count:,} {what}")

    def advance(self) -> None:
        """Add one sample. Without a terminal, print a line now and then."""
        self._done += 1
        self._bar.advance(self._task)
        passed_seconds = time.monotonic() - self._printed_seconds
        if self._bar.disable and passed_seconds >= _SECONDS_BETWEEN_LINES:
            self._printed_seconds = time.monotonic()
            self.say(f"{self._done:,} of {self._count:,}")
