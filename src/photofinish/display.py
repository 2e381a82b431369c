"""What a person sees of long work: a bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress


class Display:
    def __init__(self, title: str, make_bar: Callable[[], Progress], lines: TextIO) -> None:
        self._title, self._lines = title, lines
        self._bar = make_bar() if sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def say(self, text: str) -> None:
        line = f"{self._title}  {text}"
        if self._bar:
            self._bar.console.print(line, highlight=False, markup=False)
        else:
            print(line, file=self._lines, flush=True)
