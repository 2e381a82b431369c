"""The line that a script adds: `for batch in photofinish.steps(loader)`.

Within a stage it times each epoch and the wait for each batch, and counts what two steps compute.
It reads a clock twice a step. It waits for the device at the ends of epochs and of counted steps
only. An accelerator notes the time at both ends of every tenth step itself, by events.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from photofinish.profiling.script_step import ScriptStep

FOLDER, DEVICE = "PHOTOFINISH_STEPS_FOLDER", "PHOTOFINISH_STEPS_DEVICE"
"""Variables that a stage sets: where the measurements go, and torch's name of the device."""
MEASUREMENTS = "steps.json"
_COUNTED_STEPS = 2
_STEPS_PER_EVENT = 10
"""An event costs the host some microseconds."""
_BatchT = TypeVar("_BatchT")


def steps(loader: Iterable[_BatchT]) -> Iterable[_BatchT]:
    """Return the loader, or within a stage, an iterable that times each pass over it.

    Use it for the training's batches alone. One pass is an epoch.
    """
    if FOLDER not in os.environ or os.environ.get("RANK", "0") != "0":
        return loader
    return _TimedSteps(loader)


class _TimedSteps(Generic[_BatchT]):
    def __init__(self, loader: Iterable[_BatchT]) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # loader.dataset, loader.sampler.set_epoch

    def __iter__(self) -> Iterator[_BatchT]:
        clock, length = time.perf_counter, _length(self._loader)
        waiting_seconds, steps_done, samples, is_whole = 0.0, 0, 0, False
        counted: list[float] = []
        events: list[tuple[Any, Any]] = []
        is_accelerator, may_count = os.environ[DEVICE] != "cpu", not _MEASURED.has_counted
        _wait_for_device()
        began_seconds, began_at = clock(), time.monotonic()
        try:
            batches = iter(self._loader)
            asked_seconds = began_seconds
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    is_whole = True
                    break
                got_seconds = clock()
                waiting_seconds += got_seconds - asked_seconds
                size = _samples(batch)
                if may_count and _MEASURED.counts(steps_done, length):
                    with _MEASURED.counting(batch, size, counted):
                        yield batch
                elif is_accelerator and steps_done % _STEPS_PER_EVENT == _STEPS_PER_EVENT // 2:
                    begin = _event()
                    yield batch
                    events.append((begin, _event()))
                else:
                    yield batch
                steps_done += 1
                samples += size
                asked_seconds = clock()
        finally:
            _wait_for_device()
            seconds = clock() - began_seconds - sum(counted)
            _MEASURED.epochs.append(
                {
                    "is_whole": is_whole,
                    "began_at": began_at,
                    "ended_at": time.monotonic(),
                    "seconds": seconds,
                    "waiting_seconds": waiting_seconds,
                    "steps": steps_done,
                    "samples": samples,
                    "counted_seconds": counted,
                    "device_step_seconds": [
                        begin.elapsed_time(end) / 1000 for begin, end in events if begin and end
                    ],
                }
            )


class _Measured:
    """Measurements of this process, written when it ends."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, Any]] = []
        self._counted: list[dict[str, Any]] = []
        if FOLDER in os.environ:
            atexit.register(self._write)

    @property
    def has_counted(self) -> bool:
        return len(self._counted) == _COUNTED_STEPS

    def counts(self, step: int, length: int | None) -> bool:
        """Return True for the two steps before the last of the first epoch, if it has a length.

        Otherwise for the first two of the second epoch. Workers of a loader have no time there to
        load ahead for steps that are timed, and the last batch may be smaller.
        """
        if self.has_counted:
            return False
        if self.epochs:
            return True
        return length is not None and length - 1 - _COUNTED_STEPS <= step < length - 1 and step > 0

    @contextmanager
    def counting(self, batch: Any, samples: int, seconds: list[float]) -> Iterator[None]:
        """Count a step, and add its time to the list."""
        _wait_for_device()
        began_seconds = time.perf_counter()
        from photofinish.profiling.script_step import ScriptStep

        try:
            with ScriptStep() as step:
                yield
            self._counted.append(_counts(step, batch, samples))
        finally:
            _wait_for_device()
            seconds.append(time.perf_counter() - began_seconds)

    def _write(self) -> None:
        # Bounds hold for the step with fewer operations.
        counted = min(self._counted, key=lambda each: each["operations"]["flops"], default={})
        measured = {"epochs": self.epochs, **counted, "peak_memory_bytes": _peak_memory_bytes()}
        path = Path(os.environ[FOLDER]) / MEASUREMENTS
        path.write_text(json.dumps(measured), encoding="utf-8")


def _counts(step: ScriptStep, batch: Any, samples: int) -> dict[str, Any]:
    return {
        "operations": step.operations(samples or 1, _bytes_on_host(batch)).model_dump(),
        "precision": step.precision,
        "parameter_count": step.parameter_count,
    }


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _samples(batch: Any) -> int:
    """Return the length of the first array in a batch, 0 if there is none."""
    if isinstance(batch, (list, tuple)):
        batch = batch[0] if batch else None
    elif isinstance(batch, Mapping):
        batch = next(iter(batch.values()), None)
    if isinstance(batch, (list, tuple)):
        return len(batch)
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape else 0


def _bytes_on_host(batch: Any) -> int:
    if isinstance(batch, Mapping):
        batch = [*batch.values()]
    if isinstance(batch, list | tuple):
        return sum(map(_bytes_on_host, batch))
    is_on_host = str(getattr(batch, "device", "cpu")) == "cpu"
    return int(getattr(batch, "nbytes", 0)) if is_on_host else 0


def _event() -> Any:
    """Return an event that the device reaches, or None before the script imports torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    event = torch.Event(os.environ[DEVICE], enable_timing=True)
    event.record()
    return event


def _wait_for_device() -> None:
    torch = sys.modules.get("torch")
    if torch and os.environ[DEVICE] != "cpu":
        torch.accelerator.synchronize()


def _peak_memory_bytes() -> int | None:
    """Return the peak of the device, or of the process on the CPU.

    0 if the script did not use the device, None if torch does not count its memory.
    """
    torch, kind = sys.modules.get("torch"), os.environ[DEVICE]
    if kind == "cpu":
        if resource is None:
            return None
        kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return kibibytes if sys.platform == "darwin" else kibibytes * 1024
    if torch is None:
        return 0
    peak = getattr(torch.get_device_module(kind), "max_memory_allocated", None)
    return int(peak()) if peak else None


_MEASURED = _Measured()
