"""The one clock: it waits for the device to finish before it reads the time."""

from __future__ import annotations

import time

import torch


class Clock:
    def __init__(self, device: torch.device) -> None:
        self._is_accelerator = device.type != "cpu"

    def now_seconds(self) -> float:
        if self._is_accelerator:
            torch.accelerator.synchronize()
        return time.perf_counter()
