"""Accelerator of a script, by the torch that the script has imported. This module imports none."""

from __future__ import annotations

import sys
import time
from typing import Any

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_IDLE_SECONDS, _IDLE_SHARE = 1e-3, 0.05
"""Longest wait for a device that counts as idle, or its share of the time since `at`, by hand."""
_SAMPLED = 11
"""Every 11th period, by hand, is timed by events, as they cost microseconds."""


class Device:
    """Accelerator that holds an optimizer's weights. It is waited for at the end of a block."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._begin: Any = None
        self._pairs: list[tuple[Any, Any]] = []
        self._periods = 0

    def wait(self, at: float) -> float | None:
        """Wait until the device is idle. Return the time then, or None if it was idle since `at`.

        While a graph is captured, there is no waiting.
        """
        if is_capturing():
            return None
        asked_at = time.perf_counter()
        torch = sys.modules["torch"]
        if hasattr(torch, "accelerator"):  # from torch 2.6 on
            torch.accelerator.synchronize(self._device)
        else:
            getattr(torch, self._device.type).synchronize()
        now = time.perf_counter()
        idle_seconds = max(_IDLE_SECONDS, _IDLE_SHARE * (asked_at - at))
        return now if now - asked_at > idle_seconds else None

    def begin_event(self) -> None:
        """Record an event where some periods begin to compute."""
        if self._begin is None and self._periods % _SAMPLED == _SAMPLED // 2:
            self._begin = self._event()

    def period_ended(self) -> None:
        """Record an event if the period has one where it began."""
        self._periods += 1
        if self._begin is not None and (end := self._event()) is not None:
            self._pairs.append((self._begin, end))
        self._begin = None

    def event_seconds(self) -> list[float]:
        """Return the times of periods by events, after a wait, and forget them."""
        if is_capturing():
            return []
        pairs, self._pairs, self._begin = self._pairs, [], None
        try:
            return [begin.elapsed_time(end) / 1000 for begin, end in pairs]
        except RuntimeError:  # of a device whose events have no times
            return []

    def _event(self) -> Any:
        """Record an event and return it, or None without events or while a graph is captured."""
        kind = getattr(sys.modules["torch"], "Event", None)  # from torch 2.5 on
        if kind is None or is_capturing():
            return None
        try:
            event = kind(self._device, enable_timing=True)
            event.record()
        except RuntimeError:  # of a device that torch can wait for, without events
            return None
        return event


def is_capturing() -> bool:
    """Return True while the script captures a CUDA graph, where waiting is an error."""
    cuda = sys.modules["torch"].cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


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
