"""Settings, precision, memory, name and clock of each kind of device."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress

import torch
from torch import nn

CPU = torch.device("cpu")
_COUNTED = ("cuda", "xpu")
"""kinds of devices that torch knows the name of, and counts the memory of, in the same words"""
_AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_DIMENSIONS_OF_IMAGES = 4
"""of a batch of them"""
_CHANNELS_AT_ONCE = 16
"""that oneDNN works on with AVX-512; with AVX2, half as many"""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
"""mallopt's names for what it sets"""
_LARGEST_THRESHOLD_BYTES = 32 * 2**20
"""that glibc takes: still larger blocks come from the system each time"""
_NEVER = 2**31 - 1


class Clock:
    """The one clock: it waits for the device, and for the others of its team, before it reads the time."""

    def __init__(self, device: torch.device, barrier: Callable[[], object] | None = None) -> None:
        self._is_accelerator = device.type != "cpu"
        self._barrier = barrier
        """where several processes train together: an epoch ends when the last of them is done"""

    def host_seconds(self) -> float:
        """Return the time without waiting for the device."""
        return time.perf_counter()

    def now_seconds(self) -> float:
        """Return the time once the device has done all its work."""
        if self._is_accelerator:
            torch.accelerator.synchronize()
        if self._barrier:
            self._barrier()
        return self.host_seconds()


def configure_torch(
    device: torch.device, precision: str, threads: int, *, keep_freed: bool = True, deterministic: bool = True
) -> None:
    """Settings of the whole process, made once, before the first tensor is computed; `keep_freed` is of the CPU."""
    torch.set_num_threads(threads)
    # Like for like: TF32 shortens the mantissa of float32 to 10 bits, so it is off unless asked for.
    tf32 = precision == "tf32" and device.type == "cuda"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = False
    # cuBLAS repeats its sums bit for bit only with a fixed workspace, chosen before its first call.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # use_deterministic_algorithms would import torch's compiler, which takes seconds: compile_network does.
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if keep_freed and device.type == "cpu":
        keep_freed_memory()


def compile_network(network: nn.Module, *, deterministic: bool) -> None:
    """Compile for each size of a batch that comes.

    Inductor chooses among kernels by timing them, unless it is told to be deterministic: only
    use_deterministic_algorithms does that, which imports the compiler and so is left for here.
    """
    torch.use_deterministic_algorithms(deterministic)
    network.compile(dynamic=False)


def keep_freed_memory() -> None:  # by hand: no library sets this; MALLOC_* variables are read before Python starts
    """Freed memory stays in the process from here on. By itself, glibc gives large blocks back to the system and asks
    for them again a step later, page by page: in a small network's step that takes up to a quarter of the time
    (docs/performance.md). Another C library keeps its own ways."""
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)


def memory_format(network: nn.Module, device: torch.device, precision: str) -> torch.memory_format:
    """How a network's weights and images lie in memory: colours innermost where it convolves, which is what
    convolutions work on; everything else reads images as they are stored (docs/performance.md has the figures).

    But for whole float32 on CUDA, whose convolutions are made for images as they are stored: tensor cores, which take
    the other order, work on shorter types. And for Apple's GPUs, on which it was never measured. And where oneDNN,
    which convolves on the CPU, would write past its memory: wrong gradients or a crash, seen with torch 2.14
    (https://github.com/uxlfoundation/oneDNN/issues/6035).
    """
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    is_whole = device.type == "cuda" and effective_precision(device, precision) == "fp32"
    is_unsafe = device.type == "cpu" and any(map(_skips_pixels_of_few_channels, convolutions))
    stays = is_whole or is_unsafe or device.type == "mps"
    return torch.channels_last if convolutions and not stays else torch.contiguous_format


def _skips_pixels_of_few_channels(convolution: nn.Conv2d) -> bool:
    """Return True for a shortcut of a narrow residual network."""
    channels = convolution.in_channels // convolution.groups
    is_single, skips = max(convolution.kernel_size) == 1, max(convolution.stride) > 1
    return is_single and skips and channels < _CHANNELS_AT_ONCE


def to_memory_format(images: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    """Return a batch in that memory format, which only images have."""
    return images.contiguous(memory_format=layout) if images.dim() == _DIMENSIONS_OF_IMAGES else images


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context of the forward pass, which may compute in a shorter dtype."""
    dtype = _AUTOCAST_DTYPES.get(precision)
    return torch.autocast(device.type, dtype) if dtype else nullcontext()


def gradient_scaler(device: torch.device, precision: str) -> torch.amp.GradScaler:
    """Return a scaler, which does nothing unless the precision is fp16."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def effective_precision(device: torch.device, precision: str) -> str:
    """Return the effective precision: tf32 falls back to fp32 on hardware without TF32."""
    if precision != "tf32":
        return precision
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    return "tf32" if is_nvidia and torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"


def has_fast_bf16(device: torch.device) -> bool:
    """Return True for a GPU that computes in bfloat16."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def is_accelerator(device: torch.device) -> bool:
    """Return True unless the device is the CPU."""
    return device.type != "cpu"


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor to the device. On CUDA the host does not wait for the copy."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def device_name(device: torch.device) -> str:
    """Return the product name if torch knows it, else the kind."""
    if device.type not in _COUNTED:
        return device.type
    name: str = torch.get_device_module(device).get_device_name(device)
    return name


def nvidia_uuid(device: torch.device) -> str | None:
    """Return the UUID in NVIDIA's driver, or None for other devices."""
    if device.type != "cuda" or torch.version.hip:
        return None
    return str(torch.cuda.get_device_properties(device).uuid)


def forget_peak_memory(device: torch.device) -> None:
    """Reset the peak memory, in which the warm-up's copy must not count."""
    if device.type in _COUNTED:
        torch.get_device_module(device).reset_peak_memory_stats(device)


def peak_memory_bytes(device: torch.device) -> int | None:
    """Return the peak memory of the accelerator, or of the process on the CPU."""
    if device.type in _COUNTED:
        peak_bytes: int = torch.get_device_module(device).max_memory_allocated(device)
        return peak_bytes
    if device.type != "cpu":
        return None
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes


def memory_bytes(device: torch.device) -> tuple[int | None, int | None]:
    """Return the bytes that this process uses, and the total."""
    if device.type in _COUNTED:
        module = torch.get_device_module(device)
        return module.memory_allocated(device), module.get_device_properties(device).total_memory
    if device.type == "mps":
        return torch.mps.current_allocated_memory(), torch.mps.recommended_max_memory()
    if device.type == "cpu":
        import psutil  # a bare GPU machine may lack it

        return psutil.Process().memory_info().rss, psutil.virtual_memory().total
    return None, None


def free_memory_bytes(device: torch.device) -> int | None:
    """How much of an accelerator's memory this process may still take: what others hold is gone, what its own allocator
    holds in reserve is not. None where the device doesn't tell."""
    module = torch.get_device_module(device)
    if hasattr(module, "mem_get_info"):
        with suppress(RuntimeError):  # which some of Intel's answer with
            free_bytes, _total_bytes = module.mem_get_info(device)
            return int(free_bytes + module.memory_reserved(device) - module.memory_allocated(device))
    used_bytes, total_bytes = memory_bytes(device)
    return None if total_bytes is None else total_bytes - (used_bytes or 0)
