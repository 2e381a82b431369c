"""What ends a training, in words: memory that ran out, two devices in one step, CUDA, NCCL, a lost process, a worker.

Torch tells of all these in texts of several lines, one of which says what happened.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from photofinish.custom_code import runs_through_users_code, user_traceback
from photofinish.errors import EXIT_PEER_LOST, PEER_LOST, UserError
from photofinish.training.torch_device import device_name, free_memory_bytes, memory_bytes, peak_memory_bytes
from photofinish.wording import byte_size

if TYPE_CHECKING:
    from photofinish.config.experiment import Experiment
    from photofinish.training.teams import World


_OUT_OF_MEMORY = re.compile(
    r"out of memory|DefaultCPUAllocator: can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED", re.I
)
_NO_ENGINE = re.compile(r"unable to find an engine|unable to find a valid cuDNN algorithm", re.I)
"""cuDNN's last word when all its algorithms failed, most often because their workspaces didn't fit into memory"""
_NEARLY_FULL = 0.1
"""free share of a GPU's memory below which that is certain enough"""
_NO_DETERMINISTIC = "deterministic implementation"
_ASKED = re.compile(r"tried to allocate ([\d.]+) ?(bytes|KiB|MiB|GiB|TiB|KB|MB|GB)", re.I)
_DEVICE = re.compile(r"GPU (\d+) has a total capacity")
_UNITS = "bkmgt"
_TWO_DEVICES = re.compile(
    r"Expected all tensors to be on the same device|is on \S+, but expected \S+ on|"
    r"module must have its parameters and buffers on device|Unhandled FakeTensor Device Propagation",
    re.I,
)
_TWO_TYPES = re.compile(r"Input type \((\S+)\) and (?:weight|bias) type \((\S+)\) should be the same")
_LIBRARY_FAILED = re.compile(r"(cuDNN|CUDNN_STATUS|libcudnn|CUBLAS_STATUS|cuBLAS|libcublas)\w*", re.I)
_PEER_LOST = re.compile(
    r"Connection (closed|reset) by (remote )?peer|Connection refused|remote process exit|ncclRemoteError|Broken pipe|"
    r"Watchdog caught collective|gloo.*Timed out",
    re.I,
)
_TIMED_OUT = re.compile(r"timed? ?out", re.I)
_WORKER_FAILED = re.compile(r"DataLoader worker \(pid[^)]*\) .*|unable to allocate shared memory.*")
_CUDA_ERROR = re.compile(r"(?:CUDA|HIP) error: ")
_NCCL_ERROR = re.compile(r"NCCL error|nccl(?:UnhandledCuda|System|Internal|InvalidArgument|InvalidUsage)Error", re.I)
_LAST_ERROR = re.compile(r"Last error:\s*(\S.*)")
_MOST_CHARACTERS = 200
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where Linux keeps what processes share: containers have little of it
_CUDA_ADVICE = {
    "all CUDA-capable devices are busy": "Another program keeps the GPU to itself (nvidia-smi lists programs, and the "
    "compute mode), or the GPU hangs: free it, then run `dvc repro` again",
    "invalid device ordinal": "Torch sees fewer GPUs than `plan` found: compare nvidia-smi and CUDA_VISIBLE_DEVICES "
    "with devices.gpu in params.yaml, then run `dvc repro` again, which looks anew",
    "illegal memory access": "An operation on the GPU read or wrote where it must not, which is a fault of the model's "
    "code, of torch, of the driver or of the GPU: with `cuda_graphs: off` in params.yaml, "
    "`CUDA_LAUNCH_BLOCKING=1 dvc repro` ends at the operation that does",
    # any other
    "": "See nvidia-smi and `dmesg` for the GPU's state; `dvc repro` goes on from the last checkpoint, and "
    "`CUDA_VISIBLE_DEVICES= dvc repro` leaves the GPU out",
}


class PeerLostError(UserError):
    """Another process of the training is gone, whose own output has the reason."""

    exit_code = EXIT_PEER_LOST


@contextmanager
def failures_explained(
    name: str, experiment: Experiment, team: World, *, runs_custom_code: bool = False
) -> Iterator[None]:
    """Around the training of the experiment called `name`: what torch says becomes what to do, and of what the user's
    own code raises, their part of the traceback is shown."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        told = isinstance(error, MemoryError | RuntimeError | ValueError) and _explained(name, experiment, team, error)
        if told:
            raise told from error
        if runs_custom_code and runs_through_users_code(error):
            raise UserError(f"experiments.{name}: code of its own failed:\n{user_traceback(error)}") from error
        raise


def _explained(name: str, experiment: Experiment, team: World, error: Exception) -> UserError | None:
    text, device = str(error), team.devices[0]
    if told := _WORKER_FAILED.search(text):  # wherever this process was just then
        return UserError(
            f"a process that loads images failed: {told[0].split('. ')[0]}. Most often memory has run out, or "
            f"the shared memory that batches pass through{_shared_memory_in_brackets()}: enlarge it, or lower "
            f"input.workers or input.prefetch_factor in params.yaml; input.workers: 0 loads in the training process "
            f"and needs neither"
        )
    if is_out_of_memory(error):
        return UserError(out_of_memory(name, experiment, team, text))
    if _NO_DETERMINISTIC in text:
        return UserError(_nondeterministic(experiment, f"experiments.{name}.model", text))
    if line := _line_on_two_devices(text):
        return UserError(
            f"one step had tensors on two devices ({line}). The trainer puts the network, the images and the "
            f"labels of experiments.{name} all on {device} before the first step (devices.gpu in params.yaml chooses "
            f"it), so a part of model {experiment.model.name} makes or keeps a tensor elsewhere: make it on "
            f"`images.device`, and keep constants with `register_buffer`"
        )
    first_line = _shortened(text.strip().partition("\n")[0])
    timed_out = isinstance(error, torch.distributed.DistError) and _TIMED_OUT.search(text)
    network_failed = isinstance(error, torch.distributed.DistNetworkError)
    if team.size > 1 and (network_failed or timed_out or _PEER_LOST.search(text)):
        return PeerLostError(
            f"{PEER_LOST} ({first_line}). That process, or the "
            f"network to its machine, failed first: see what it says. The next run goes on from the last checkpoint"
        )
    if _NO_ENGINE.search(text):
        return UserError(
            f"cuDNN found no algorithm for a step on {device} ({first_line}). Most often its workspace doesn't fit "
            f"into the memory: lower experiments.{name}.batch_size (it is {experiment.batch_size}). Else set its "
            f"precision to fp32"
        )
    if library := _LIBRARY_FAILED.search(text):
        return UserError(
            f"{library[0]} can't be used on {device} ({first_line}). Other processes may have taken the memory it "
            f"needs to start (see nvidia-smi), or another CUDA on LD_LIBRARY_PATH hides torch's own: "
            f"free the GPU, or install torch anew. `CUDA_VISIBLE_DEVICES= dvc repro` leaves the GPU out"
        )
    explanation = nccl_failure(text) or cuda_failure(text, device)
    return UserError(explanation) if explanation else None


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if memory ran out, the device's or the machine's."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _OUT_OF_MEMORY.search(str(error)):
        return True
    return bool(_NO_ENGINE.search(str(error))) and _gpu_is_nearly_full()


def _gpu_is_nearly_full() -> bool:
    device = torch.device("cuda", torch.cuda.current_device())
    free_bytes, (_, total_bytes) = free_memory_bytes(device), memory_bytes(device)
    return free_bytes is not None and total_bytes is not None and free_bytes < _NEARLY_FULL * total_bytes


@contextmanager
def nondeterminism_explained(experiment: Experiment) -> Iterator[None]:
    """Name the setting that allows an operation for which torch has no deterministic implementation."""
    try:
        yield
    except RuntimeError as error:
        if _NO_DETERMINISTIC not in str(error):
            raise
        raise UserError(_nondeterministic(experiment, "model", str(error))) from error


def _nondeterministic(experiment: Experiment, key: str, text: str) -> str:
    return (
        f"model {experiment.model.name} can't be trained on this device with the same result each time: torch has no "
        f"deterministic {text.split()[0]}; choose another model in params.yaml ({key}), or allow that results "
        f"differ (deterministic: false)"
    )


def out_of_memory(name: str, experiment: Experiment, team: World, text: str) -> str:
    """Return the message for an experiment whose memory ran out; `text` is torch's own."""
    device, named = team.devices[0], _DEVICE.search(text)
    if named and device.type != "cpu":  # one of the several that a process may use
        device = torch.device(device.type, int(named[1]))
    peak_bytes = peak_memory_bytes(device)
    used_bytes, total_bytes = memory_bytes(device)
    # The data set lies on the first of a process's devices only.
    holds_data = experiment.input.name == "resident" and device == team.devices[0]
    share = -(-experiment.batch_size // team.device_count)
    facts = [
        _asked(text),
        f"{byte_size(used_bytes)} were in use" if used_bytes else "",
        f"{byte_size(peak_bytes)} at the peak" if peak_bytes else "",
        f"the device has {byte_size(total_bytes)}" if total_bytes else "",
        "input: resident puts all images there" if holds_data else "",
        f"its share of a batch is {share:,} image{'' if share == 1 else 's'}",
    ]
    changes = []
    if share > 1:
        changes.append(f"lower experiments.{name}.batch_size (it is {experiment.batch_size})")
    if experiment.precision in ("fp32", "tf32"):
        is_data_parallel = team.device_count > team.size  # which has no bf16
        changes.append(f"set its precision to {'fp16' if is_data_parallel else 'bf16'}")
    if holds_data:
        changes.append("set its input to loader, which leaves the data set in the main memory or on disk")
    name_of_device = "the CPU" if device.type == "cpu" else f"{device} ({device_name(device)})"
    advice = f"In params.yaml, {', or '.join(changes)}" if changes else "It takes a smaller network or smaller images"
    return (
        f"out of memory on {name_of_device}: {', '.join(filter(None, facts))}. {advice}. "
        f"Nothing was made smaller behind your back"
    )


def _asked(text: str) -> str:
    """Return how much memory torch asked for, or nothing if `text` doesn't say."""
    if not (asked := _ASKED.search(text)):
        return ""
    return f"{byte_size(float(asked[1]) * 1024 ** _UNITS.index(asked[2][0].lower()))} more were asked for"


@contextmanager
def too_large_a_network_explained(name: str) -> Iterator[None]:
    """Around its making, in the main memory: what it takes there no size of a batch changes."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        asked = _asked(str(error))
        raise UserError(
            f"the network of experiments.{name} doesn't fit into the main memory, where it is made"
            f"{asked and f': {asked}'}. Give its model smaller layers, or its data set smaller images"
        ) from error


def _line_on_two_devices(text: str) -> str | None:
    """Return the line that names two devices. Torch refuses two precisions in almost the same words."""
    if found := _TWO_DEVICES.search(text):
        return _line_around(text, found)
    types = _TWO_TYPES.search(text)
    if types is None:
        return None
    one, other = (kind.rpartition(".")[0] for kind in types.groups())  # torch.cuda of torch.cuda.FloatTensor
    return _line_around(text, types) if one != other else None


def cuda_failure(text: str, device: torch.device) -> str | None:
    """Return the message for an error of CUDA's, or None for another text."""
    found = _CUDA_ERROR.search(text)
    if found is None:
        return None
    line = _line_around(text, found)
    advice = next(advice for part, advice in _CUDA_ADVICE.items() if part in line)
    if "no kernel image is available" in line:
        try:
            major, minor = torch.cuda.get_device_capability(device)
            capability = f" (compute capability {major}.{minor})"
        except (RuntimeError, AssertionError):  # it asserts that torch was built with CUDA
            capability = ""
        advice = (
            f"Torch {torch.__version__} isn't built for this GPU{capability}: install a torch that is. "
            f"`CUDA_VISIBLE_DEVICES= dvc repro` leaves the GPU out"
        )
    return f"{device} can't be used: {line}. {advice}"


def nccl_failure(text: str) -> str | None:
    """Return the message for an error of NCCL's, or None for another text."""
    found = _NCCL_ERROR.search(text)
    if found is None:
        return None
    last = _LAST_ERROR.search(text)
    told = _shortened(last[1]) if last else _line_around(text, found)
    if "Duplicate GPU" in told:
        advice = "Two processes use one GPU: start no more of them on a machine than it has GPUs (--nproc-per-node)"
    elif str(_SHARED_MEMORY) in told or "shared memory" in told.lower():
        advice = f"NCCL needs more shared memory{_shared_memory_in_brackets()}: enlarge it (docker run --shm-size 1g)"
    else:
        advice = "With NCCL_DEBUG=INFO it says more; nvidia-smi tells whether all GPUs are well"
    return f"NCCL, by which GPUs exchange what they computed, failed: {told}. {advice}"


def _line_around(text: str, found: re.Match[str]) -> str:
    """Return the line around a match. Torch puts a thread's error last, below a traceback."""
    start = text.rfind("\n", 0, found.start()) + 1
    return _shortened(text[start:].partition("\n")[0])


def _shortened(line: str) -> str:
    line = line.strip().rstrip(".")
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}..."


def _shared_memory_in_brackets() -> str:
    """Return the size of shared memory in brackets, or nothing without its folder."""
    if not _SHARED_MEMORY.is_dir():
        return ""
    return f" ({_SHARED_MEMORY}, {shutil.disk_usage(_SHARED_MEMORY).total / 2**20:,.0f} MiB)"
