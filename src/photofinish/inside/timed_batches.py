"""A script's data loaders: batches with timed waits, and the slowest line."""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .recorder import Recorder

_clock = time.perf_counter
_PERIOD_SECONDS, _SWITCH_SECONDS, _MOST_SECONDS = 0.005, 0.0001, 20.0
"""Times by hand: between samples of stacks, until one is taken, and to sample a script."""
_FEWEST_SAMPLES, _MOST_SAMPLES, _LEAST_SHARE = 20, 200, 0.2
"""Numbers of samples, and share of loading from which on a line is named, by hand."""
_NOT_OWN = "<", sysconfig.get_path("stdlib"), str(Path(__file__).parent.parent)
_NO_CALLS = "", "photofinish", "torch"
"""Libraries whose functions call the user's, collate, or wait for workers."""
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\](\w+)")
_loading: list[tuple[int, float]] = []
"""Threads that load now, and since when. Another one may train meanwhile."""


def is_loading() -> bool:
    """Return True while this thread loads, when nothing is counted."""
    return any(thread == threading.get_ident() for thread, _ in _loading)


def loaded(load: Callable[[Any], Any], given: Any) -> Any:
    now = threading.get_ident(), _clock()
    _loading.append(now)
    try:
        return load(given)
    finally:
        _loading.remove(now)


@functools.cache
def library_of(file: str) -> str | None:
    """Return a file's library, "" for Python's and ours, None for the user's."""
    if installed := _INSTALLED.search(file):
        return installed[1]
    return "" if file.startswith(_NOT_OWN) else None


def charged(stack: Iterable[tuple[str, int, str]]) -> str:
    """Return the user's nearest line in a stack, with the call of a library, or "".

    A frame is a file, a line and a function, the innermost first.
    """
    call = ""
    for file, line, function in stack:
        library = library_of(file)
        if library is None:
            return f"{Path(file).name}:{line}{call and f' ({call})'}"
        # Readers know `resize`, but not the `__call__` or `forward` around it.
        if library not in _NO_CALLS and not function.startswith(("_", "<", "forward")):
            call = f"{library}'s {function}"
    return call


def slowest_line(samples: Sequence[str]) -> tuple[float, str] | None:
    """Return the largest share of loading at a line, and the line, if it is clear."""
    count = Counter(samples)
    slowest = max(filter(None, count), key=count.__getitem__, default="")
    share = count[slowest] / max(1, len(samples))
    is_clear = slowest and len(samples) >= _FEWEST_SAMPLES and share >= _LEAST_SHARE
    return (share, slowest) if is_clear else None


def sample_lines(seconds: float) -> list[str]:
    """Return a list to which a thread adds, for a while, lines at which others load.

    A line is there once a period, also where C code let no other thread run.
    """
    samples, ends_at = list[str](), _clock() + seconds

    def sample() -> None:
        now, never = _clock(), threading.Event()
        while now < ends_at and len(samples) < _MOST_SAMPLES:
            before = now
            never.wait(_PERIOD_SECONDS)  # a script may replace `sleep`
            now = _clock()
            for thread, began_at in [*_loading]:
                periods = round((now - max(before, began_at)) / _PERIOD_SECONDS)
                samples.extend([charged(_stack(thread))] * max(1, periods))
        restore()

    def restore() -> None:
        if sys.getswitchinterval() == own_seconds:  # the script may have set another
            sys.setswitchinterval(interval_seconds)

    interval_seconds = sys.getswitchinterval()
    # By default, a sample waits for up to 5 ms until a function allows it.
    sys.setswitchinterval(_SWITCH_SECONDS)
    own_seconds = sys.getswitchinterval()
    if hasattr(os, "register_at_fork"):  # workers of a loader would inherit it
        os.register_at_fork(after_in_child=restore)
    threading.Thread(target=sample, daemon=True).start()
    return samples


def _stack(thread: int) -> list[tuple[str, int, str]]:
    """Return the frames of a thread since it began to load, the innermost first."""
    stack, frame = [], sys._current_frames().get(thread)
    while frame and frame.f_code is not loaded.__code__:
        stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return stack if frame else []


class TimedBatches(Iterator[Any]):
    def __init__(
        self, recorder: Recorder, loader: Any, iterate: Callable[[Any], Any], key: Any
    ) -> None:
        self._recorder = recorder
        self._number = recorder.loader_begins(loader, key)
        began_at = _clock()
        self._iterator = loaded(iterate, loader)
        recorder.waiting_seconds += _clock() - began_at

    def __next__(self) -> Any:
        recorder, asked_at = self._recorder, _clock()
        device = recorder.device
        if device is not None:
            device.batch_awaited()
        try:
            batch = loaded(next, self._iterator)
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
            recorder.step_ended_without_optimizer()
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
        return next(self._own_pass)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # loader.dataset, loader.sampler.set_epoch


NAMED = "named"


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
        self.batches = 0
        self._samples: list[str] | None = None
        self._noted_samples = _FEWEST_SAMPLES // 2

    def number_of(self, loader: Any, key: Any) -> int:
        """Return the number of a loader. Note its batches and workers if they have changed."""
        number = self._numbers.setdefault(key, len(self._numbers))
        batches, workers = batches_of(loader), getattr(loader, "num_workers", 0)
        if self._lines.get(number) != (batches, workers):
            self._lines[number] = batches, workers
            line = {"loader": number, "batches": batches, "workers": workers}
            self._note(kind="loader", **line, is_named=key == NAMED)
        return number

    def add(self, batches: int) -> None:
        """Add batches. Note the slowest line whenever there are twice as many samples."""
        self.batches += batches
        if self._samples is None:
            # After the first batches, which fill caches, of a loader that loads in this process.
            if any(workers == 0 for _, workers in self._lines.values()):
                self._samples = sample_lines(_MOST_SECONDS)
        elif len(self._samples) >= 2 * self._noted_samples:
            self._noted_samples = len(self._samples)
            self._note(kind="slow_line", value=slowest_line(self._samples))
