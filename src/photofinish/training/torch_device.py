"""Devices in torch: choice, settings, precision, memory, name and clock."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from photofinish.config.kinds import KINDS
from photofinish.config.precisions import PRECISIONS
from photofinish.errors import UserError
from photofinish.nested import map_nested

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from photofinish.config.experiment import Experiment

CPU = torch.device("cpu")
_IMAGE_BATCH_DIMENSIONS = 4
_ONEDNN_BLOCK_CHANNELS = 16
"""Channels that oneDNN processes at once with AVX-512. With AVX2, half as many."""
_TRY_AGAIN = (
    "The driver lists a GPU, so it may be busy or not passed into a container: see nvidia-smi, "
    "then run `dvc repro` again. `CUDA_VISIBLE_DEVICES= dvc repro` leaves the GPU out"
)


class NoAcceleratorError(UserError):
    """Missing accelerator with these drivers and this torch: a result, not a failure."""


def accelerator(kind: str, index: int = 0, *, make_current: bool = True) -> torch.device:
    """Return the accelerator with this number, if it is of the given kind (`auto`: any).

    Called only if a driver lists an accelerator. Raises NoAcceleratorError if torch isn't built for
    it, or UserError if torch can't use it at the moment.
    """
    # Number GPUs as the driver, nvidia-smi and `plan` do. CUDA's default begins with the fastest.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if not torch.accelerator.is_available():
        raise _not_available()
    device = torch.accelerator.current_accelerator()
    if device is None or kind not in ("auto", device.type):
        raise NoAcceleratorError(
            f"the accelerator here is '{device}', and devices.gpu.kind is '{kind}'"
        )
    if make_current:
        try:
            torch.accelerator.set_device_index(index)
        except RuntimeError as error:
            raise UserError(f"{device.type}:{index}: {str(error).strip()}. {_TRY_AGAIN}") from error
    return torch.device(device.type, index)


def _not_available() -> UserError:
    message = f"torch {torch.__version__} finds no accelerator it can use"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except AssertionError as error:  # torch was built without CUDA
        return NoAcceleratorError(f"{message}: {error}")
    except RuntimeError as error:
        message += f": {str(error).strip().splitlines()[0].rstrip('.')}"
        if "driver" in message and "too old" in message:
            return NoAcceleratorError(f"{message}. torch is built for CUDA {torch.version.cuda}")
    return UserError(f"{message}. {_TRY_AGAIN}")


class Clock:
    """Clock that waits for the device and for other ranks before it reads the time."""

    def __init__(
        self,
        device: torch.device,
        barrier: Callable[[], object] | None = None,
    ) -> None:
        self._is_accelerator = is_accelerator(device)
        self._barrier = barrier

    def now_seconds(self) -> float:
        """Wait until the device has done all its work, then return the time."""
        if self._is_accelerator:
            torch.accelerator.synchronize()
        if self._barrier:
            self._barrier()
        return time.perf_counter()


def configure_torch(
    device: torch.device, precision: str, threads: int, *, deterministic: bool = True
) -> None:
    """Set up torch for the whole process, once, before it computes the first tensor."""
    torch.set_num_threads(threads)
    # TF32 shortens the mantissa of float32 to 10 bits, so it is off unless `precision` is tf32.
    tf32 = precision == "tf32" and device.type == "cuda" and torch.version.hip is None
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = False
    # cuBLAS repeats its sums bit for bit only with a fixed workspace, set before its first call.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # use_deterministic_algorithms would import torch's compiler, which takes seconds.
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def configure_torch_for(experiment: Experiment, device: torch.device, threads: int) -> None:
    deterministic, given = experiment.deterministic, experiment.input
    configure_torch(device, experiment.precision, threads, deterministic=deterministic)
    # cuDNN times its algorithms for each new shape, and a capture allows no timing.
    custom = experiment.batch_transform or experiment.step or getattr(given, "collate", None)
    is_refused = deterministic or custom or experiment.cuda_graphs == "on" or torch.version.hip
    torch.backends.cudnn.benchmark = device.type == "cuda" and not is_refused


@contextmanager
def torch_restored() -> Iterator[None]:
    """Restore the precision and algorithms that `configure_torch` chose."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    tf32, benchmark = cudnn.allow_tf32, cudnn.benchmark
    deterministic = torch.get_deterministic_debug_mode()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        cudnn.allow_tf32, cudnn.benchmark = tf32, benchmark
        torch.set_deterministic_debug_mode(deterministic)


def memory_format(
    network: nn.Module,
    device: torch.device,
    precision: str,
) -> torch.memory_format:
    """Return channels_last for a network that convolves, else the contiguous format.

    fp32 on CUDA stays contiguous, since its kernels are made for that. MPS does too, where
    channels_last was not measured (figures: benchmarks/README.md). So does a custom network that
    was found to fail in channels_last.
    """
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    is_fp32_cuda = device.type == "cuda" and effective_precision(device, precision) == "fp32"
    # In the strided 1x1 shortcut of a narrow residual network, oneDNN writes past its memory.
    # Gradients are wrong or the process crashes, seen with torch 2.14
    # (https://github.com/uxlfoundation/oneDNN/issues/6035).
    is_unsafe = device.type == "cpu" and any(
        max(layer.kernel_size) == 1 < max(layer.stride)
        and layer.in_channels // layer.groups < _ONEDNN_BLOCK_CHANNELS
        for layer in convolutions
    )
    is_unsafe |= hasattr(network, "needs_contiguous")
    if not convolutions or is_fp32_cuda or is_unsafe or device.type == "mps":
        return torch.contiguous_format
    return torch.channels_last


def to_memory_format(images: Any, layout: torch.memory_format) -> Any:
    """Convert images, also in a tuple or dict. Other inputs are not changed."""
    if not isinstance(images, torch.Tensor):
        return map_nested(lambda leaf: to_memory_format(leaf, layout), images)
    if images.dim() != _IMAGE_BATCH_DIMENSIONS:
        return images
    return images.contiguous(memory_format=layout)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    dtype = PRECISIONS[precision].autocast
    return torch.autocast(device.type, getattr(torch, dtype)) if dtype else nullcontext()


def effective_precision(device: torch.device, precision: str) -> str:
    """Return the effective precision: tf32 falls back to fp32 on hardware without TF32."""
    if precision != "tf32":
        return precision
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    return "tf32" if is_nvidia and torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"


def generator_state(device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    state: torch.Tensor = torch.get_device_module(device).get_rng_state(device)
    return state


def is_accelerator(device: torch.device) -> bool:
    return device.type != "cpu"


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor to the device. On CUDA the host does not wait for the copy."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def device_name(device: torch.device) -> str:
    """Return the product name if torch knows it, else the kind."""
    if not _counts_memory(device):
        return device.type
    return str(torch.get_device_module(device).get_device_name(device))


def _counts_memory(device: torch.device) -> bool:
    return device.type in KINDS and KINDS[device.type].counts_memory


def nvidia_uuid(device: torch.device) -> str | None:
    """Return the UUID in NVIDIA's driver, or None for other devices."""
    if device.type != "cuda" or torch.version.hip:
        return None
    return str(torch.cuda.get_device_properties(device).uuid)


def forget_peak_memory(device: torch.device) -> None:
    if _counts_memory(device):
        torch.get_device_module(device).reset_peak_memory_stats(device)


def peak_memory_bytes(device: torch.device) -> int | None:
    if _counts_memory(device):
        return int(torch.get_device_module(device).max_memory_allocated(device))
    return peak_host_memory_bytes() if device.type == "cpu" else None


def peak_host_memory_bytes() -> int | None:
    """Return the largest resident set so far, or None if the system has no count."""
    # As in inside/device.py, on which no training may depend.
    if resource is None:
        return None
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes


def free_memory_bytes(device: torch.device) -> int | None:
    """Return the free memory of an accelerator, or None if unknown.

    Memory that this process's allocator holds in reserve counts as free.
    """
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    if not _counts_memory(device):
        return None
    module = torch.get_device_module(device)
    free_bytes = module.get_device_properties(device).total_memory
    if device.type == "cuda":  # without what other programs hold
        free_bytes = module.mem_get_info(device)[0] + module.memory_reserved(device)
    return int(free_bytes - module.memory_allocated(device))
