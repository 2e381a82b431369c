"""Which device trains, and under which policy: threads, precision, determinism. Nothing is decided silently."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from photofinish.errors import UserError

CPU = torch.device("cpu")
_AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class NoAcceleratorError(UserError):
    """The accelerator that was asked for isn't there."""


def accelerator(kind: str) -> torch.device:
    """The accelerator of this machine, if it is of the wanted kind (`auto`: any)."""
    if not torch.accelerator.is_available():
        raise NoAcceleratorError(f"torch {torch.__version__} finds no accelerator it can use")
    device = torch.accelerator.current_accelerator()
    if device is None or kind not in ("auto", device.type):
        raise NoAcceleratorError(f"the accelerator here is '{device}', and devices.gpu.kind is '{kind}'")
    return torch.device(device.type, 0)


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


@contextmanager
def refusals_explained(model: str) -> Iterator[None]:
    """Some operations have no implementation that repeats bit for bit: torch refuses them where they run."""
    try:
        yield
    except RuntimeError as error:
        if "deterministic implementation" not in str(error):
            raise
        operation = str(error).split()[0]
        raise UserError(
            f"model {model} can't be trained on this device with the same result each time: torch has no "
            f"deterministic {operation}; choose another model in params.yaml"
        ) from error


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


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "xpu":
        return torch.xpu.get_device_name(device)
    return device.type


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
