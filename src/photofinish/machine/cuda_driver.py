"""The GPUs that CUDA itself lists, asked where NVML doesn't answer or knows whole GPUs alone, not their slices (MIG).

CUDA's driver is asked in a process of its own (`python -m photofinish.machine.cuda_driver`), which ends with whatever
it did. It heeds CUDA_VISIBLE_DEVICES by itself. No torch here, which would take seconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from photofinish.machine.cpu import read_or_empty

_LIBRARY = "libcuda.so.1"
_DEVICES = Path("/dev")
_NODES = ("nvidia[0-9]*", "nvhost-gpu", "nvgpu", "dxg")
"""what the kernel shows of NVIDIA's GPUs: on servers, on Jetson boards, in WSL"""
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_MOST_SECONDS = 60.0


class CudaDriverError(Exception):
    """CUDA's driver can't list GPUs, and why."""


def has_nodes() -> bool:
    """Whether the kernel shows a GPU of NVIDIA's at all."""
    return any(any(_DEVICES.glob(pattern)) for pattern in _NODES)


def gpus() -> tuple[str, list[tuple[str, int]]]:
    """The driver's version, and the name and bytes of memory of each GPU or slice that this process may use."""
    command = [sys.executable, "-m", "photofinish.machine.cuda_driver"]
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


def listed() -> tuple[str, list[tuple[str, int]]]:
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
        print(json.dumps(listed()))
    except CudaDriverError as error:
        sys.exit(str(error))
