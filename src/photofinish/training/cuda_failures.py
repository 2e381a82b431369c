"""What CUDA and NCCL report, in words. Torch hands their errors on as texts of several lines, one of which tells."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import torch

_CUDA_ERROR = re.compile(r"(?:CUDA|HIP) error: ")
_NCCL_ERROR = re.compile(r"NCCL error|nccl(?:UnhandledCuda|System|Internal|InvalidArgument|InvalidUsage)Error", re.I)
_LAST_ERROR = re.compile(r"Last error:\s*(\S.*)")
_MOST_CHARACTERS = 200
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where Linux keeps what processes share: containers have little of it
_ADVICE = (
    (
        "all CUDA-capable devices are busy",
        "Another program keeps the GPU to itself (nvidia-smi lists programs, and the compute mode), or the GPU hangs: "
        "free it, then run `dvc repro` again",
    ),
    (
        "invalid device ordinal",
        "Torch sees fewer GPUs than `plan` found: compare nvidia-smi and CUDA_VISIBLE_DEVICES with devices.gpu in "
        "params.yaml, then run `dvc repro` again, which looks anew",
    ),
    (
        "illegal memory access",
        "An operation on the GPU read or wrote where it must not, which is a fault of the model's code, of torch, of "
        "the driver or of the GPU: `CUDA_LAUNCH_BLOCKING=1 dvc repro` ends at the operation that does",
    ),
)
_ADVICE_FOR_OTHERS = (
    "See nvidia-smi and `dmesg` for the GPU's state; `dvc repro` goes on from the last checkpoint, and "
    "`CUDA_VISIBLE_DEVICES= dvc repro` leaves the GPU out"
)


def cuda_failure(text: str, device: torch.device) -> str | None:
    """What to tell of torch's `text`, if it is of CUDA's."""
    found = _CUDA_ERROR.search(text)
    if found is None:
        return None
    line = line_around(text, found)
    return f"{device} can't be used: {line}. {_advice(line, device)}"


def nccl_failure(text: str) -> str | None:
    """What to tell of torch's `text`, if it is of NCCL's."""
    found = _NCCL_ERROR.search(text)
    if found is None:
        return None
    last = _LAST_ERROR.search(text)
    told = shortened(last[1]) if last else line_around(text, found)
    if "Duplicate GPU" in told:
        advice = "Two processes use one GPU: start no more of them on a machine than it has GPUs (--nproc-per-node)"
    elif str(_SHARED_MEMORY) in told or "shared memory" in told.lower():
        advice = f"NCCL needs more shared memory{shared_memory_in_brackets()}: enlarge it (docker run --shm-size 1g)"
    else:
        advice = "With NCCL_DEBUG=INFO it says more; nvidia-smi tells whether all GPUs are well"
    return f"NCCL, by which GPUs exchange what they computed, failed: {told}. {advice}"


def line_around(text: str, found: re.Match[str]) -> str:
    """The one that tells: where a thread failed, torch puts it last, below a traceback."""
    start = text.rfind("\n", 0, found.start()) + 1
    return shortened(text[start:].partition("\n")[0])


def shortened(line: str) -> str:
    line = line.strip().rstrip(".")
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}..."


def _advice(line: str, device: torch.device) -> str:
    if "no kernel image is available" in line:
        return (
            f"Torch {torch.__version__} isn't built for this GPU{_compute_capability(device)}: install a torch that "
            f"is. `CUDA_VISIBLE_DEVICES= dvc repro` leaves the GPU out"
        )
    return next((advice for part, advice in _ADVICE if part in line), _ADVICE_FOR_OTHERS)


def _compute_capability(device: torch.device) -> str:
    try:
        major, minor = torch.cuda.get_device_capability(device)
    except (RuntimeError, AssertionError):  # it asserts that torch was built with CUDA
        return ""
    return f" (compute capability {major}.{minor})"


def shared_memory_in_brackets() -> str:
    """How much of it processes may share, for a message; nothing where there is no such folder."""
    if not _SHARED_MEMORY.is_dir():
        return ""
    return f" ({_SHARED_MEMORY}, {shutil.disk_usage(_SHARED_MEMORY).total / 2**20:,.0f} MiB)"
