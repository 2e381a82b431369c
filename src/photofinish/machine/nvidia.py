"""What is asked of NVIDIA's GPUs besides their list: by NVML, how one is doing, but of a slice (MIG) nothing, for its
figures are of the whole; by CUDA itself, which there are, where NVML doesn't answer or knows whole GPUs alone.

CUDA's driver is asked in a process of its own (`python -m photofinish.machine.nvidia`), which ends with whatever it
did. It heeds CUDA_VISIBLE_DEVICES by itself. No torch here, which would take seconds; and ctypes on the driver's public
functions, for cuda-bindings comes with torch's CUDA builds alone, and a torch without CUDA is to be told of its GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pynvml

from photofinish.machine.host import read_or_empty

_LIBRARY = "libcuda.so.1"
_DEVICES = Path("/dev")
_NODES = ("nvidia[0-9]*", "nvhost-gpu", "nvgpu", "dxg")
"""what the kernel shows of NVIDIA's GPUs: on servers, on Jetson boards, in WSL"""
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_MOST_SECONDS = 60.0
_SLOWDOWNS = {
    "nvmlClocksThrottleReasonHwSlowdown": "a brake of the hardware",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "heat, by the hardware",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power supply",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "heat",
}
"""A limit of power is none of these: a GPU that works hard runs into it as it should."""


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


class CudaDriverError(Exception):
    """CUDA's driver can't list GPUs, and why."""


def has_nodes() -> bool:
    """Whether the kernel shows a GPU of NVIDIA's at all."""
    return any(any(_DEVICES.glob(pattern)) for pattern in _NODES)


def cuda_gpus() -> tuple[str, list[tuple[str, int]]]:
    """The driver's version, and the name and bytes of memory of each GPU or slice that this process may use."""
    command = [sys.executable, "-m", "photofinish.machine.nvidia"]
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as the training has it, unless the user says otherwise
    try:
        ran = subprocess.run(
            command, env=order | os.environ, capture_output=True, text=True, check=False, timeout=_MOST_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise CudaDriverError(f"CUDA's driver doesn't answer within {_MOST_SECONDS:.0f} s") from error
    if ran.returncode:
        raise CudaDriverError(ran.stderr.strip().rpartition("\n")[2] or f"it ended with status {ran.returncode}")
    cuda_version, found = json.loads(ran.stdout)
    module = re.search(r"\d{3}\.[\d.]+", read_or_empty(_KERNEL_MODULE))
    return module[0] if module else f"CUDA {cuda_version}", [(name, size) for name, size in found]


def cuda_gpus_in_this_process() -> tuple[str, list[tuple[str, int]]]:
    """The same, by CUDA in this process; the version is that of CUDA."""
    try:
        cuda = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise CudaDriverError(f"CUDA's driver can't be loaded: {error}") from error

    def ask(function: str, *arguments: object) -> None:
        """Call it; everything but 0 is an error."""
        if status := getattr(cuda, function)(*arguments):
            raise CudaDriverError(f"CUDA's driver can't be used: {function} gives error {status}")

    version, count, device, memory_bytes = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name, found = ctypes.create_string_buffer(256), []
    ask("cuInit", 0)
    ask("cuDriverGetVersion", ctypes.pointer(version))
    ask("cuDeviceGetCount", ctypes.pointer(count))
    for number in range(count.value):
        ask("cuDeviceGet", ctypes.pointer(device), number)
        ask("cuDeviceGetName", name, len(name), device)
        ask("cuDeviceTotalMem_v2", ctypes.pointer(memory_bytes), device)
        found.append((name.value.decode(), memory_bytes.value))
    return f"{version.value // 1000}.{version.value % 1000 // 10}", found


if __name__ == "__main__":
    try:
        print(json.dumps(cuda_gpus_in_this_process()))
    except CudaDriverError as error:
        sys.exit(str(error))
