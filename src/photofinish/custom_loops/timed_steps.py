"""The line that a script adds: `for batch in photofinish.steps(loader)`.

Within a stage, it times each epoch and the wait for each batch, and counts the operations of two
steps. It reads a clock twice in each step. It waits for the device only at the ends of epochs and
of counted steps. On an accelerator, events time some steps.

Lightning and Hugging Face's Trainer know the loader's length. They do not ask for a batch after the
last, and validate before they drop the iterator. With them, the last step of an optimizer ends the
epoch.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
import weakref
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from photofinish.custom_loops.script_batches import all_samples, bytes_on_host, samples_in_batch
from photofinish.custom_loops.script_device import (
    DEVICE,
    event_now,
    peak_memory_bytes,
    used_accelerator,
    wait_for_device,
)
from photofinish.machine.host_memory import peak_host_memory_bytes

if TYPE_CHECKING:
    from photofinish.profiling.script_step import ScriptStep

FOLDER = "PHOTOFINISH_STEPS_FOLDER"
"""Variable that a stage sets: the folder for measurements."""
MEASUREMENTS = "steps.json"
_COUNTED_STEPS = 2
_WARM_UP_STEPS = 10
_LONG_STEP_SECONDS = 5.0
"""Time of a counted step from which on one is enough."""
_SAVED_EVERY_SECONDS = 5.0
_SAMPLED = 11
"""Every 11th step is timed by events and has its samples counted, as both cost microseconds.
A loop may take 2, 4 or 8 batches before it computes on all. 11 has no factor in common with these,
so events time each place in turn."""
_MOST_EVENTS = 2000
"""Most pairs of events in an epoch. They are kept until it ends."""
_BatchT = TypeVar("_BatchT")


def steps(loader: Iterable[_BatchT]) -> Iterable[_BatchT]:
    """Return the loader, or within a stage, an iterable that times each pass over the loader.

    Use it for training batches only. Each pass is an epoch.
    """
    if FOLDER not in os.environ or os.environ.get("RANK", "0") != "0":
        return loader
    return _TimedSteps(loader)


class _TimedSteps(Generic[_BatchT]):
    def __init__(self, loader: Iterable[_BatchT]) -> None:
        self._loader = loader
        self._own_pass: Iterator[_BatchT] | None = None
        """Pass of a script that calls `next` on the object itself."""

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # loader.dataset, loader.sampler.set_epoch

    def __next__(self) -> _BatchT:
        self._own_pass = self._own_pass or iter(self)
        try:
            return next(self._own_pass)
        except StopIteration:
            self._own_pass = None
            raise

    def __iter__(self) -> Iterator[_BatchT]:
        one_pass = self._pass()
        _MEASURED.last_pass = weakref.ref(one_pass)
        return one_pass

    def _pass(self) -> Generator[_BatchT, None, None]:
        _MEASURED.loader = self._loader
        clock, epoch = time.perf_counter, _Epoch(_length(self._loader))
        try:
            batches = iter(self._loader)
            asked_seconds = epoch.began_seconds
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    epoch.is_whole = True
                    break
                epoch.waiting_seconds += clock() - asked_seconds
                epoch.loaded(batch)
                is_counted = _MEASURED.may_count and epoch.steps in epoch.counted_steps
                if is_counted:
                    with _MEASURED.counting(batch, epoch.counted_seconds):
                        yield batch
                elif epoch.has_events():
                    begin = event_now()
                    yield batch
                    epoch.events.append((begin, event_now()))
                else:
                    yield batch
                epoch.steps += 1
                began_step_seconds, asked_seconds = asked_seconds, clock()
                if not epoch.is_on_accelerator and not is_counted:
                    epoch.step_seconds.append(asked_seconds - began_step_seconds)
        finally:
            _MEASURED.epoch_ended(epoch.ended())


class _Epoch:
    """Measurements of one pass over a loader."""

    def __init__(self, length: int | None) -> None:
        self.is_on_accelerator = os.environ[DEVICE] != "cpu"
        self.counted_steps = _MEASURED.begin_epoch(length)
        self.counted_seconds: list[float] = []
        self.waiting_seconds, self.steps, self.is_whole = 0.0, 0, False
        self.step_seconds = array("d")
        self.events: list[tuple[Any, Any]] = []
        self._length = length
        self._sizes: list[int] = []
        self._last_size: int | None = None
        self._last_step = _LastStep()
        wait_for_device()
        self.began_seconds, self._began_at = time.perf_counter(), time.monotonic()
        self._began_cpu_seconds = _MEASURED.cpu_seconds()

    def loaded(self, batch: Any) -> None:
        """Count the samples of some batches, and watch the last step."""
        if self.steps % _SAMPLED == 0:
            self._sizes.append(samples_in_batch(batch))
        if self.steps + 1 == self._length:
            self._last_size = samples_in_batch(batch)
            self._last_step.watch()

    def has_events(self) -> bool:
        """Return True if the device's events should time the next step."""
        is_sampled = self.steps % _SAMPLED == _SAMPLED // 2
        return is_sampled and self.is_on_accelerator and len(self.events) < _MOST_EVENTS

    def ended(self) -> dict[str, Any]:
        """Return the measurements. A loop may have left the loader after its last batch."""
        wait_for_device()
        cpu_seconds = _MEASURED.cpu_seconds() - self._began_cpu_seconds
        ended_seconds, ended_at = time.perf_counter(), time.monotonic()
        if self._last_step.ended and not self.is_whole:
            (ended_seconds, ended_at), self.is_whole = self._last_step.ended, True
            self.steps += 1
        self._last_step.forget()
        times = sorted(self.step_seconds)
        return {
            "is_whole": self.is_whole,
            "began_at": self._began_at,
            "ended_at": ended_at,
            "seconds": ended_seconds - self.began_seconds - sum(self.counted_seconds),
            "waiting_seconds": self.waiting_seconds,
            "steps": self.steps,
            "samples": all_samples(self._sizes, self._last_size, self.steps),
            "counted_seconds": self.counted_seconds,
            "quickest_step_seconds": times[len(times) // 10] if times else None,
            "cpu_seconds": None if self.is_on_accelerator else cpu_seconds,
            "device_step_seconds": [
                begin.elapsed_time(end) / 1000 for begin, end in self.events if begin and end
            ],
        }


class _LastStep:
    """Time of the last optimizer step after `watch`."""

    def __init__(self) -> None:
        self.ended: tuple[float, float] | None = None
        """Readings of the performance counter and the monotonic clock."""
        self._hook: Any = None

    def watch(self) -> None:
        if "torch" in sys.modules:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            self._hook = register_optimizer_step_post_hook(self._stepped)

    def forget(self) -> None:
        if self._hook:
            self._hook.remove()

    def _stepped(self, *_: Any) -> None:
        wait_for_device()
        self.ended = time.perf_counter(), time.monotonic()


class _Measured:
    """Measurements of this process, written when it ends."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, Any]] = []
        self.loader: Any = None
        """Loader of the last epoch."""
        self.last_pass: Callable[[], Generator[Any, None, None] | None] = lambda: None
        """Pass that the script may leave open, if it still has it."""
        self._saved_seconds = time.monotonic()
        self._counted: list[dict[str, Any]] = []
        self._counted_cpu_seconds = 0.0
        self.may_count = True
        """False after two steps have been counted."""
        self._needs_profile = False
        """True once a counted step had operators without a formula: the next shows their cost."""
        self._takes_several = self._skips_next = False
        """True if the loop loads several batches before it computes on them."""
        self._samples = self._bytes = 0
        """Samples and bytes in the batches since the last step that computed."""
        if FOLDER in os.environ:
            atexit.register(self._end)

    def cpu_seconds(self) -> float:
        """Return the CPU time of this process, without counted steps."""
        return time.process_time() - self._counted_cpu_seconds

    def begin_epoch(self, length: int | None) -> range:
        """Return the steps of this epoch that may be counted, without the last.

        The last batch may be smaller. A first epoch begins with steps that warm up. It counts steps
        early, so that a script that is stopped has them.
        """
        self._samples, self._bytes, self._skips_next = 0, 0, self._takes_several
        last = max(1, length - 1) if length else sys.maxsize
        first = 0 if self.epochs else min(_WARM_UP_STEPS, max(1, last - _COUNTED_STEPS))
        return range(first, last)

    def epoch_ended(self, epoch: dict[str, Any]) -> None:
        """Add an epoch, and save all from time to time, for a script that is killed."""
        self.epochs.append(epoch)
        if time.monotonic() - self._saved_seconds > _SAVED_EVERY_SECONDS:
            self._write({})
            self._saved_seconds = time.monotonic()

    def _end(self) -> None:
        """End a pass that the script left open, and write the measurements."""
        if one_pass := self.last_pass():
            one_pass.close()
        self._write({})  # the data set's code may crash the process, or hang until it is killed
        if loading := self._loading():
            self._write(loading)

    @contextmanager
    def counting(self, batch: Any, seconds: list[float]) -> Iterator[None]:
        """Count a step, and append its time to `seconds`."""
        wait_for_device()
        began_seconds, began_cpu_seconds = time.perf_counter(), time.process_time()
        from photofinish.profiling.script_step import ScriptStep

        imported_seconds = time.perf_counter()
        try:
            with ScriptStep(is_profiled=self._needs_profile) as step:
                yield
            self._add(step, batch)
        finally:
            wait_for_device()
            ended_seconds = time.perf_counter()
            seconds.append(ended_seconds - began_seconds)
            if self._counted and ended_seconds - imported_seconds > _LONG_STEP_SECONDS:
                self.may_count = False
            self._counted_cpu_seconds += time.process_time() - began_cpu_seconds

    def _add(self, step: ScriptStep, batch: Any) -> None:
        """Keep the counts of a step. It computed on all batches since the step before."""
        self._samples += samples_in_batch(batch)
        self._bytes += bytes_on_host(batch)
        operations = step.operations(self._samples or 1, self._bytes)
        if not operations.kernels:
            if not self._takes_several:
                self._takes_several = self._skips_next = True
                self._counted.clear()
            return
        self._samples = self._bytes = 0
        self._needs_profile = step.needs_profile
        if self._skips_next:  # it may have taken batches before counting began
            self._skips_next = False
            return
        self._counted.append(
            {
                "operations": operations.model_dump(),
                "precision": step.precision,
                "parameter_count": step.parameter_count,
            }
        )
        self.may_count = len(self._counted) < _COUNTED_STEPS

    def _loading(self) -> dict[str, Any]:
        """Time the parts of the loader. Return how long that took."""
        failed = hasattr(sys, "last_value")
        if "torch.utils.data" not in sys.modules or not self.epochs or failed:
            return {}
        from photofinish.profiling.loader_parts import custom_loader_times

        began_seconds = time.monotonic()
        found = custom_loader_times(self.loader, sum(epoch["seconds"] for epoch in self.epochs))
        seconds = time.monotonic() - began_seconds
        return {"loader": found and found.model_dump(), "taking_apart_seconds": seconds}

    def _write(self, loading: dict[str, Any]) -> None:
        # Use the step with fewer operations, so that bounds hold.
        counted = min(self._counted, key=lambda each: each["operations"]["flops"], default={})
        if counted:
            profiled = self._counted[-1]["operations"]
            counted["operations"]["without_formula"] = profiled["without_formula"]
        readings = {
            "peak_memory_bytes": peak_memory_bytes(),
            "peak_host_memory_bytes": peak_host_memory_bytes(),
        }
        measured = {"epochs": self.epochs, **counted, "readings": readings, **loading}
        measured |= {"used_accelerator": used_accelerator()}
        path = Path(os.environ[FOLDER]) / MEASUREMENTS
        new = path.with_suffix(".new")
        new.write_text(json.dumps(measured), encoding="utf-8")
        new.replace(path)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


_MEASURED = _Measured()
