"""Device of a script's process, by the torch that the script imports. This module imports none."""

from __future__ import annotations

import os
import sys
from typing import Any

from photofinish.machine.host_memory import peak_host_memory_bytes

DEVICE = "PHOTOFINISH_STEPS_DEVICE"
"""Variable that a stage sets: torch's name of the device."""
_MEMORY_IN_USE = ("max_memory_allocated", "current_allocated_memory")
"""Functions of PyTorch's device modules, of which each has one."""


def event_now() -> Any:
    """Return a recorded event of the device, or None if the script has not imported torch yet."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    event = torch.Event(os.environ[DEVICE], enable_timing=True)
    event.record()
    return event


def wait_for_device() -> None:
    torch = sys.modules.get("torch")
    if torch and os.environ[DEVICE] != "cpu" and not is_capturing():
        torch.accelerator.synchronize()


def is_capturing() -> bool:
    """Return True while the script captures a CUDA graph, where waiting is an error."""
    cuda = sys.modules["torch"].cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def peak_memory_bytes() -> int | None:
    """Return the peak memory of the device, or of the process on the CPU.

    Returns 0 if the script did not use the device, and None if torch does not count its memory.
    """
    torch, kind = sys.modules.get("torch"), os.environ[DEVICE]
    if kind == "cpu":
        return peak_host_memory_bytes()
    if torch is None:
        return 0
    peak = getattr(torch.get_device_module(kind), "max_memory_allocated", None)
    return int(peak()) if peak else None


def used_accelerator() -> bool:
    """Return True if the CPU's run used an accelerator that nothing hides, such as Apple's."""
    torch = sys.modules.get("torch")
    if torch is None or os.environ[DEVICE] != "cpu" or not torch.accelerator.is_available():
        return False
    device = torch.get_device_module()
    counts = (getattr(device, name, None) for name in _MEMORY_IN_USE)
    return any(count and count() for count in counts)
