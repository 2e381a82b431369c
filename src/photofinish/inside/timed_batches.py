"""A script's data loaders, and their batches with timed waits."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .recorder import Recorder

_clock = time.perf_counter
_loading: list[int] = []
"""Threads that load now. Another one may train meanwhile."""


def is_loading() -> bool:
    """Return True while this thread loads, when nothing is counted."""
    return threading.get_ident() in _loading


def _loaded(load: Callable[[Any], Any], given: Any) -> Any:
    thread = threading.get_ident()
    _loading.append(thread)
    try:
        return load(given)
    finally:
        _loading.remove(thread)


class TimedBatches(Iterator[Any]):
    """Iterator of a loader with timed waits."""

    def __init__(
        self, recorder: Recorder, loader: Any, iterate: Callable[[Any], Any], key: Any
    ) -> None:
        self._recorder = recorder
        self._number = recorder.loader_begins(loader, key)
        began_at = _clock()
        self._iterator = _loaded(iterate, loader)
        recorder.waiting_seconds += _clock() - began_at

    def __next__(self) -> Any:
        recorder, asked_at = self._recorder, _clock()
        device = recorder.device
        if device is not None:
            device.batch_awaited()
        try:
            batch = _loaded(next, self._iterator)
        except StopIteration:
            recorder.loader_ended()
            raise
        recorder.waiting_seconds += _clock() - asked_at
        recorder.batches += 1
        if recorder.is_attentive or recorder.loader != self._number:
            recorder.batch_loaded(self._number, batch)
        if device is not None:
            device.batch_loaded()
        return batch

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


class _NamedBatches(TimedBatches):
    """Iterator of a loader that a script names. Each batch ends a period if no optimizer steps."""

    def __init__(self, recorder: Recorder, loader: Any) -> None:
        self._has_given = False
        super().__init__(recorder, loader, self._iterate, NAMED)

    def _iterate(self, loader: Any) -> Iterator[Any]:
        self._recorder.is_nested = True  # a DataLoader in it is not timed once more
        try:
            return iter(loader)
        finally:
            self._recorder.is_nested = False

    def __next__(self) -> Any:
        recorder = self._recorder
        if self._has_given:
            recorder.named_batch_ended()
        self._has_given, recorder.is_nested = True, True
        try:
            return super().__next__()
        finally:
            recorder.is_nested = False


class NamedLoader:
    """Loader that a script names as the training's. Otherwise it acts like the loader."""

    def __init__(self, recorder: Recorder, loader: Iterable[Any]) -> None:
        self._recorder, self._loader = recorder, loader
        self._own_pass: Iterator[Any] | None = None
        """Pass of a script that calls `next` on the object itself."""

    def __iter__(self) -> Iterator[Any]:
        return _NamedBatches(self._recorder, self._loader)

    def __next__(self) -> Any:
        if self._own_pass is None:
            self._own_pass = iter(self)
        try:
            return next(self._own_pass)
        except StopIteration:
            self._own_pass = None
            raise

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # loader.dataset, loader.sampler.set_epoch


NAMED = "named"
"""Key of the loader that a script names."""


def batches_of(loader: Any) -> float | None:
    """Return the number of batches in an epoch. A smaller last batch is a fraction."""
    try:
        batches = len(loader)
        sampler: Any = getattr(loader, "sampler", None)
        size = getattr(loader, "batch_size", None)
        if size and hasattr(sampler, "__len__"):
            return float(min(batches, len(sampler) / size))
        return float(batches)
    except Exception:  # noqa: BLE001  # of a script's data without a length
        return None


class Loaders:
    """Numbers of loaders by data set and batch size. A script may make one for each epoch."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._numbers: dict[Any, int] = {}
        self._lines: dict[int, Any] = {}
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
        return number
