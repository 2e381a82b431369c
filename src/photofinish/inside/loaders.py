"""Data loaders of a script, and the time of the training's loader."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from .timed_batches import NAMED, batches_of


class Loaders:
    """Numbers of loaders by data set and batch size. A script may make one for each epoch."""

    def __init__(self, note: Callable[..., None], *, times_loading: bool) -> None:
        self._note = note
        self._numbers: dict[Any, int] = {}
        self._lines: dict[int, Any] = {}
        self._kept: dict[int, Any] | None = {} if times_loading else None
        self.batches: Counter[int | None] = Counter()
        """Number of batches of each loader."""

    def number_of(self, loader: Any, key: Any) -> int:
        """Return the number of a loader. Note its batches and workers if they have changed."""
        number = self._numbers.setdefault(key, len(self._numbers))
        batches, workers = batches_of(loader), getattr(loader, "num_workers", 0)
        if self._lines.get(number) != (batches, workers):
            self._lines[number] = batches, workers
            line = {"loader": number, "batches": batches, "workers": workers}
            self._note(kind="loader", **line, is_named=key == NAMED)
        if self._kept is not None:
            self._kept[number] = loader
        return number

    def time_loading(self, training_seconds: float) -> None:
        """Time batches of the training's loader, if loaders are kept for this."""
        if not self._kept:
            return
        from .loader_time import time_loader

        number = self._numbers.get(NAMED, max(self._kept, key=self.batches.__getitem__))
        began_at = time.perf_counter()
        try:
            times = time_loader(self._kept[number], training_seconds)
        except Exception as error:  # noqa: BLE001  # of the user's code, which runs once more
            times = None
            print(f"note: loading isn't timed: {type(error).__name__}: {error}", file=sys.stderr)
        self._note(kind="loader_time", seconds=time.perf_counter() - began_at, times=times)
