"""Accelerator of a script, by the torch that the script has imported. This module imports none."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

IDLE = 4
"""Flag of a block at whose end the device had less than a tenth of a step left to do."""
_SAMPLE_SECONDS = 0.02
"""Time between periods with events, by hand. An event costs microseconds."""
_clock = time.perf_counter


class _Block(NamedTuple):
    line: list[Any]
    end: Any
    """Event at its end, or None from within a capture."""
    parts: list[tuple[Any, Any]]
    """Events around what is computed between two waits for batches."""
    periods: int
    """Number of periods with such pairs."""

    @property
    def is_over(self) -> bool:
        return all(end.query() for end in (self.end, *(end for _, end in self.parts)) if end)


class Device:
    """Accelerator that holds an optimizer's weights. Its own clock ends blocks.

    Events are read once the device has passed them: a script that waits overlaps less.
    """

    def __init__(self, device: Any, add: Callable[[list[Any]], None]) -> None:
        """Set the clock once the device is idle. Raise an error if it has none."""
        torch = sys.modules["torch"]
        self._add = add
        of_kind: Any = getattr(torch, device.type, None)
        self._module: Any = getattr(torch, "accelerator", of_kind)  # from torch 2.6 on
        if hasattr(torch, "Event"):  # from torch 2.5 on
            self._new_event = functools.partial(torch.Event, device, enable_timing=True)
        else:
            self._new_event = functools.partial(of_kind.Event, enable_timing=True)
        # torch.mps has neither streams nor several devices.
        self._where = (device,) if hasattr(self._module, "current_stream") else ()
        begin, self._passed = self._recorded(), self._recorded()
        self._module.synchronize(*self._where)
        begin.elapsed_time(self._passed)
        self._passed_at = _clock()
        """Time of the last event that ended a block and was passed."""
        self._ended_at = 0.0
        self._begin: Any = None
        self._end: Any = None
        self._parts: list[tuple[Any, Any]] = []
        self._periods, self._sampled_at = 0, 0.0
        self._is_sampled = self._is_over = False
        self._blocks: list[_Block] = []
        """Blocks whose end is unknown."""

    def batch_loaded(self) -> None:
        """Record an event where a batch begins to compute."""
        if self._is_sampled and self._begin is None:
            self._begin = self._recorded()

    def batch_awaited(self) -> None:
        """Record an event where a batch was computed."""
        begin, self._begin = self._begin, None
        if begin is not None and (end := self._recorded()) is not None:
            self._parts.append((begin, end))
        if self._is_over:
            self._periods += self._is_sampled
            now, self._is_over = _clock(), False
            self._is_sampled = now - self._sampled_at > _SAMPLE_SECONDS
            self._sampled_at = now if self._is_sampled else self._sampled_at

    def leave_out(self) -> None:
        """Leave out a period with the recorder's own work."""
        self._begin, self._is_sampled = None, False

    def mark(self, *, ends_period: bool = False) -> None:
        """Record an event where a block may end."""
        self._end = self._recorded(self._end)
        self._is_over = self._is_over or ends_period

    def block_ended(self, line: list[Any]) -> None:
        """Keep a line until its end is known."""
        self._blocks.append(_Block(line, self._end, self._parts, self._periods))
        self._end, self._parts, self._periods = None, [], 0
        self.add_known(waits=not self._ended_at)  # idle at the first step

    def add_known(self, *, waits: bool) -> None:
        """Add the lines of blocks that the device has ended."""
        if is_capturing():
            return
        if waits:
            self._module.synchronize(*self._where)
        while self._blocks and self._blocks[0].is_over:
            line, end, parts, periods = self._blocks.pop(0)
            line[0] = max(line[0], self._ended_at)
            if end is not None:
                # Both clocks drift, so the host's bounds the device's.
                at = self._passed_at + _seconds(self._passed, end)
                if at - line[1] < (line[1] - line[0]) / 10 / max(1, sum(line[2])):
                    line[6] |= IDLE
                line[1] = min(max(line[1], at), _clock())
                self._passed, self._passed_at = end, line[1]
            line[1] = self._ended_at = max(line[0], line[1])
            self._add([*line, sum(_seconds(*pair) for pair in parts), periods])

    def _recorded(self, event: Any = None) -> Any:
        """Record an event and return it, or None while a graph is captured."""
        if is_capturing():
            return None
        event = event or self._new_event()
        event.record(*map(self._module.current_stream, self._where))
        return event


def _seconds(begin: Any, end: Any) -> float:
    try:
        return float(begin.elapsed_time(end)) / 1000
    except RuntimeError:  # on MPS, of two events at the same time
        return 0.0


def is_capturing() -> bool:
    """Return True while the script captures a CUDA graph, where waiting is an error."""
    cuda = sys.modules["torch"].cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def noted_rank(note: Callable[..., None]) -> int:
    """Return this process's rank. Note how many processes the script has joined, if it has."""
    distributed = sys.modules["torch"].distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0
    note(kind="ranks", value=distributed.get_world_size())
    return int(distributed.get_rank())


def clock_of(
    device: Any, add: Callable[[list[Any]], None], note: Callable[..., None]
) -> Device | None:
    """Return the accelerator, or note that it has no clock."""
    try:
        return Device(device, add)
    except Exception:  # noqa: BLE001  # of a device without a clock
        why = f"trains on {device.type} with a torch that can't time it"
        note(kind="unseen", why=why, may_be_named=False)
        return None


def is_in_backward() -> bool:
    """Return True while a backward pass calls the script, whose modes and hooks end with it."""
    of_backward = getattr(sys.modules["torch"]._C, "_current_graph_task_id", None)
    return of_backward is not None and of_backward() != -1


def peak_host_memory_bytes() -> int | None:
    """Return this process's largest resident set so far, or None if the system has no count."""
    if resource is None:
        return None
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes


def peak_device_memory_bytes(kind: str) -> int | None:
    """Return the largest peak of an accelerator's memory that tensors or the allocator had.

    Without a peak, return what is in use. Return 0 if none was used, and None without a count.
    """
    accelerator = getattr(sys.modules.get("torch"), "accelerator", None)
    if accelerator is None or not accelerator.is_available():
        return 0
    module = sys.modules["torch"].get_device_module()
    if peak := getattr(module, f"max_memory_{kind}", None):
        return int(max(map(peak, range(accelerator.device_count())), default=0))
    in_use = getattr(module, f"current_{kind}_memory", None)
    return int(in_use()) if in_use else None
