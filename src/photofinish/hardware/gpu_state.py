"""An NVIDIA GPU's clock, and why it is held down, as its driver tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pynvml

_SLOWDOWNS = {
    "nvmlClocksThrottleReasonHwSlowdown": "a brake of the hardware",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "heat, by the hardware",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power supply",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "heat",
}
"""A limit of power is none of these: a GPU that works hard runs into it as it should."""


@dataclass(frozen=True)
class GpuState:
    clock_mhz: int
    slowdowns: tuple[str, ...]


def nvidia_gpu_state(uuid: str | None) -> Callable[[], GpuState | None]:
    """A function that reads the state of this GPU, or gives None where there is none or its driver doesn't tell."""
    handle = _handle(uuid) if uuid else None

    def read() -> GpuState | None:
        if handle is None:
            return None
        try:
            clock_mhz = int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
            reasons = int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        except pynvml.NVMLError:  # a virtual GPU, say, keeps it to itself
            return None
        return GpuState(clock_mhz, tuple(word for name, word in _SLOWDOWNS.items() if reasons & getattr(pynvml, name)))

    return read


def _handle(uuid: str) -> object | None:
    try:
        pynvml.nvmlInit()
        handle: object = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        return None
    return handle
