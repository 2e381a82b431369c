"""What NVML tells of one of NVIDIA's GPUs while it works. Of a slice of a GPU (MIG), that is nothing: its figures are
of the whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pynvml


class SliceError(Exception):
    """What is asked of one slice of a GPU, NVML knows of the whole GPU alone."""


def is_divided(handle: object) -> bool:
    """Whether this GPU is divided into slices (MIG), which CUDA then has in its place."""
    with suppress(pynvml.NVMLError):  # most can't be
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
        return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)
    return False


def whole_gpu(uuid: str) -> object:
    """NVML's handle of the GPU that torch knows by this UUID, which may be its slice's."""
    pynvml.nvmlInit()
    with suppress(pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        if not is_divided(handle):
            return handle
        raise SliceError("the GPU is divided (MIG), and its driver tells of the whole only")
    pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
    raise SliceError("it is a slice of a GPU (MIG), and the driver tells of the whole only")


_SLOWDOWNS = {
    "nvmlClocksThrottleReasonHwSlowdown": "a brake of the hardware",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "heat, by the hardware",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power supply",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "heat",
}
"""A limit of power is none of these: a GPU that works hard runs into it as it should."""


@dataclass(frozen=True)
class GpuState:
    """How fast it runs just now, and what slows it down, in words."""

    clock_mhz: int
    slowdowns: tuple[str, ...]


def nvidia_gpu_state(uuid: str | None) -> Callable[[], GpuState | None]:
    """A function that reads the state of this GPU, or gives None where there is none or its driver doesn't tell."""
    handle: object | None = None
    if uuid:
        with suppress(pynvml.NVMLError, SliceError):
            handle = whole_gpu(uuid)

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
