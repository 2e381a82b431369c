"""The one clock: it waits for the device to finish before it reads the time."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


class Clock:
    def __init__(self, device: torch.device, barrier: Callable[[], None] | None = None) -> None:
        self._is_accelerator = device.type != "cpu"
        self._barrier = barrier
        """where several processes train together: an epoch ends when the last of them is done"""

    def host_seconds(self) -> float:
        """Without waiting: the device may still be at work on what it was given."""
        return time.perf_counter()

    def now_seconds(self) -> float:
        if self._is_accelerator:
            torch.accelerator.synchronize()
        if self._barrier:
            self._barrier()
        return self.host_seconds()
