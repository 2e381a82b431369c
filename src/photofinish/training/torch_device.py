"""Freed memory stays in the process. By itself, glibc gives large blocks back to the system and asks for them again a
step later, page by page: in a small network's step that takes up to a quarter of the time (docs/performance.md)."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from photofinish.errors import UserError
from photofinish.training.cuda_failures import cuda_failure

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
"""mallopt's names for what it sets"""
_LARGEST_THRESHOLD_BYTES = 32 * 2**20
"""that glibc takes: still larger blocks come from the system each time"""
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """For the rest of the process. Another C library keeps its own ways."""
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)


CPU = torch.device("cpu")
_TRY_AGAIN = (
    "The driver lists a GPU all the same, so it may be busy, asleep, or not let into a container: see nvidia-smi, then "
    "run `dvc repro` again. `CUDA_VISIBLE_DEVICES= dvc repro` leaves the GPU out"
)
_AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class NoAcceleratorError(UserError):
    """The accelerator that was asked for isn't there, and won't be with these drivers and this torch: a result."""


class UnusableAcceleratorError(UserError):
    """The driver lists it, but torch can't use it just now, which may pass: a failure, to be tried again."""


def accelerator(kind: str, index: int = 0, *, make_current: bool = True) -> torch.device:
    """The accelerator of this machine with this number, if it is of the wanted kind (`auto`: any).

    Only where a driver lists one: what torch then can't use is there all the same, unless torch isn't made for it.
    """
    # Numbered as the driver and nvidia-smi do, and so `plan`; CUDA's own order begins with what it takes for fastest.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if not torch.accelerator.is_available():
        raise _not_available()
    device = torch.accelerator.current_accelerator()
    if device is None or kind not in ("auto", device.type):
        raise NoAcceleratorError(f"the accelerator here is '{device}', and devices.gpu.kind is '{kind}'")
    count = torch.accelerator.device_count()
    if index >= count:
        raise UnusableAcceleratorError(
            f"{device.type} device {index} is asked for (the first is 0), torch sees {count}. {_TRY_AGAIN}"
        )
    if make_current:
        try:
            torch.accelerator.set_device_index(index)
        except RuntimeError as error:
            told = cuda_failure(str(error), torch.device(device.type, index))
            raise UnusableAcceleratorError(told or f"{device.type}:{index}: {error}. {_TRY_AGAIN}") from error
    return torch.device(device.type, index)


def _not_available() -> UserError:
    """With what torch itself says, which is of CUDA."""
    said = f"torch {torch.__version__} finds no accelerator it can use"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except AssertionError as error:  # that it was built with CUDA
        return NoAcceleratorError(f"{said}: {error}")
    except RuntimeError as error:
        text = str(error).strip().partition("\n")[0]
        if "driver" in text and "too old" in text:
            return NoAcceleratorError(
                f"{said}: {text} torch is built for CUDA {torch.version.cuda}. "
                f"Update the NVIDIA driver, or install a torch built for an older CUDA"
            )
        return UnusableAcceleratorError(f"{said}: {text.rstrip('.')}. {_TRY_AGAIN}")
    return UnusableAcceleratorError(f"{said}. {_TRY_AGAIN}")


def apply_policy(device: torch.device, precision: str, threads: int) -> None:
    """Settings of the whole process, made once, before the first tensor is computed."""
    torch.set_num_threads(threads)
    # Like for like: TF32 shortens the mantissa of float32 to 10 bits, so it is off unless asked for.
    tf32 = precision == "tf32" and device.type == "cuda"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = False
    # cuBLAS repeats its sums bit for bit only with a fixed workspace, chosen before its first call.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # The same as use_deterministic_algorithms(True), which would import torch's compiler: seconds.
    torch.set_deterministic_debug_mode("error")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    keep_freed_memory()


def memory_format(network: nn.Module, device: torch.device, precision: str) -> torch.memory_format:
    """How a network's weights and images lie in memory: colours innermost where it convolves, which is what
    convolutions work on; everything else reads images as they are stored (docs/performance.md has the figures).

    But for whole float32 on CUDA, whose convolutions are made for images as they are stored: tensor cores, which take
    the other order, work on shorter types.
    """
    convolves = any(isinstance(module, nn.Conv2d) for module in network.modules())
    is_whole = device.type == "cuda" and effective_precision(device, precision) == "fp32"
    return torch.channels_last if convolves and not is_whole else torch.contiguous_format


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    dtype = _AUTOCAST_DTYPES.get(precision)
    return torch.autocast(device.type, dtype) if dtype else nullcontext()


def gradient_scaler(device: torch.device, precision: str) -> torch.amp.GradScaler:
    """Scales the loss so that fp16's gradients don't vanish; does nothing for every other precision."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def effective_precision(device: torch.device, precision: str) -> str:
    """What is really computed: TF32 is a permission that only NVIDIA's matrix units, from Ampere on, make use of."""
    return "fp32" if precision == "tf32" and not _has_tf32(device) else precision


def _has_tf32(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def has_fast_bf16(device: torch.device) -> bool:
    """Whether it computes in bfloat16 itself, on a GPU."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "xpu":
        return torch.xpu.get_device_name(device)
    return device.type


def nvidia_uuid(device: torch.device) -> str | None:
    """By which NVIDIA's driver knows it; None for everything else."""
    if device.type != "cuda" or torch.version.hip:
        return None
    return str(torch.cuda.get_device_properties(device).uuid)


def forget_peak_memory(device: torch.device) -> None:
    """The warm-up trains a second copy: it must not count."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    if device.type == "xpu":
        torch.xpu.reset_peak_memory_stats(device)


def peak_memory_bytes(device: torch.device) -> int | None:
    """Most memory the run took: of the accelerator's own where it counts it, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "xpu":
        return torch.xpu.max_memory_allocated(device)
    if device.type != "cpu":
        return None
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes


def memory_bytes(device: torch.device) -> tuple[int | None, int | None]:
    """What this process has in use there now, and how much there is."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device), torch.cuda.get_device_properties(device).total_memory
    if device.type == "xpu":
        return torch.xpu.memory_allocated(device), torch.xpu.get_device_properties(device).total_memory
    if device.type == "mps":
        return torch.mps.current_allocated_memory(), torch.mps.recommended_max_memory()
    if device.type == "cpu":
        import psutil  # a bare GPU machine may lack it

        return psutil.Process().memory_info().rss, psutil.virtual_memory().total
    return None, None
