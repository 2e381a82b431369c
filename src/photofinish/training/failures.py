"""Errors that end a training, with the experiment's name and what to do."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from photofinish.custom_code import has_user_frame, user_traceback
from photofinish.errors import EXIT_PEER_LOST, PEER_LOST, UserError
from photofinish.training.torch_device import CPU, device_name, memory_bytes, peak_memory_bytes
from photofinish.wording import byte_size

if TYPE_CHECKING:
    from photofinish.config.experiment import Experiment
    from photofinish.training.world import World

# cuDNN finds no engine when its workspaces don't fit into memory.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED|unable to find an engine|"
    r"unable to find a valid cuDNN algorithm",
    re.I,
)
_REQUESTED = re.compile(r"tried to allocate [\d.]+ ?\w+", re.I)
_DEVICE = re.compile(r"GPU (\d+) has a total capacity")
_NONDETERMINISTIC = "deterministic implementation"
_TWO_DEVICES = re.compile(
    r".*(Expected all tensors to be on the same device|is on \S+, but expected \S+ on|"
    r"must have its parameters and buffers on device|FakeTensor Device Propagation|"
    r"Input type \((\S+)\.\w+\) and \w+ type \((?!\2\.\w+\))\S+\)).*",
    re.I,
)
_PEER_LOST = re.compile(
    r"Connection (closed|reset) by (remote )?peer|Connection refused|remote process exit|"
    r"ncclRemoteError|Broken pipe|Watchdog caught collective|timed? ?out",
    re.I,
)
_WORKER_FAILED = re.compile(
    r"DataLoader worker \(pid[^)]*\) [^\n]*|unable to allocate shared memory.*"
)
_BACKEND = re.compile(r"CUDA|HIP error|cuDNN|CUDNN|CUBLAS|NCCL|MIOpen")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # Linux's; containers have little of it


class PeerLostError(UserError):
    """Another process of the training is gone. Its own output has the reason."""

    exit_code = EXIT_PEER_LOST


@contextmanager
def failures_explained(
    name: str, experiment: Experiment, team: World, *, runs_custom_code: bool = False
) -> Iterator[None]:
    """Raise UserError for errors of torch and of custom code in training the experiment `name`.

    Custom code's traceback is shown from its first line on.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if explained := _explained(name, experiment, team, error):
            raise explained from error
        if runs_custom_code and has_user_frame(error):
            traceback = user_traceback(error)
            raise UserError(f"experiments.{name}: custom code failed:\n{traceback}") from error
        if isinstance(error, RuntimeError) and _BACKEND.search(str(error)):
            text = str(error).strip()
            raise UserError(f"experiments.{name} on {team.devices[0]}: {text}") from error
        raise


def _explained(
    name: str, experiment: Experiment, team: World, error: Exception
) -> UserError | None:
    text = str(error)
    if not isinstance(error, MemoryError | RuntimeError | ValueError):
        return None
    if match := _WORKER_FAILED.search(text):
        size = ""
        if _SHARED_MEMORY.is_dir():
            total_bytes = shutil.disk_usage(_SHARED_MEMORY).total
            size = f" ({_SHARED_MEMORY}, {total_bytes / 2**20:,.0f} MiB)"
        return UserError(
            f"experiments.{name}: a process that loads samples failed: "
            f"{match[0].partition('. ')[0]}. Most often memory has run out, or the shared memory "
            f"that batches pass through{size}: enlarge it, or lower input.workers or "
            f"input.prefetch_factor in params.yaml (input.workers: 0 needs neither)"
        )
    if is_out_of_memory(error):
        return UserError(out_of_memory(name, experiment, team, text))
    if _NONDETERMINISTIC in text:
        return UserError(_nondeterministic(experiment, f"experiments.{name}.model", text))
    if match := _TWO_DEVICES.search(text):
        return UserError(
            f"experiments.{name}: one step had tensors on two devices ({match[0].strip()}). "
            f"Network, images and labels are on {team.devices[0]}: model {experiment.model.name} "
            f"must create its tensors on `images.device`, and keep constants with `register_buffer`"
        )
    if team.size > 1 and (isinstance(error, dist.DistNetworkError) or _PEER_LOST.search(text)):
        first_line = text.strip().partition("\n")[0]
        return PeerLostError(
            f"{PEER_LOST} ({first_line}). See that process's output for the reason. "
            f"The next run goes on from the last checkpoint"
        )
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if memory ran out, the device's or the machine's."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return bool(_OUT_OF_MEMORY.search(str(error)))


def out_of_memory(name: str, experiment: Experiment, team: World, text: str) -> str:
    """Return the message for an experiment whose memory ran out; `text` is torch's own."""
    device, number = team.devices[0], _DEVICE.search(text)
    if "CPUAllocator" in text:
        device = CPU
    elif number and device.type != "cpu":
        device = torch.device(device.type, int(number[1]))
    used_bytes, total_bytes = memory_bytes(device)
    peak_bytes = peak_memory_bytes(device)
    requested = _REQUESTED.search(text)
    facts = [
        requested[0] if requested else "",
        f"{byte_size(used_bytes)} were in use" if used_bytes else "",
        f"{byte_size(peak_bytes)} at the peak" if peak_bytes else "",
        f"the device has {byte_size(total_bytes)}" if total_bytes else "",
    ]
    changes = []
    if experiment.batch_size > team.device_count:
        changes.append(f"lower experiments.{name}.batch_size (it is {experiment.batch_size})")
    if experiment.precision in ("fp32", "tf32"):
        is_data_parallel = team.device_count > team.size  # which has no bf16
        changes.append(f"set its precision to {'fp16' if is_data_parallel else 'bf16'}")
    if experiment.input.name == "resident" and device == team.devices[0]:
        changes.append("set its input to loader, which keeps the data set off the device")
    changes.append("choose a smaller model or smaller images")
    label = "the CPU" if device.type == "cpu" else f"{device} ({device_name(device)})"
    return (
        f"out of memory on {label}: {', '.join(filter(None, facts))}. "
        f"In params.yaml, {', or '.join(changes)}"
    )


@contextmanager
def nondeterminism_explained(experiment: Experiment) -> Iterator[None]:
    """Name the setting that allows an operation without a deterministic implementation."""
    try:
        yield
    except RuntimeError as error:
        if _NONDETERMINISTIC not in str(error):
            raise
        raise UserError(_nondeterministic(experiment, "model", str(error))) from error


def _nondeterministic(experiment: Experiment, key: str, text: str) -> str:
    return (
        f"model {experiment.model.name} can't be trained on this device with the same result each "
        f"time: torch has no deterministic {text.split()[0]}. Choose another model in params.yaml "
        f"({key}), or allow that results differ (deterministic: false)"
    )
