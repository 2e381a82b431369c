"""Memory that ran out, in words: what is known of it, and which lines of params.yaml need less."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from photofinish.errors import EXIT_PEER_LOST, UserError
from photofinish.training.cuda_failures import cuda_failure, line_around, nccl_failure, shortened
from photofinish.training.torch_device import device_name, memory_bytes, peak_memory_bytes
from photofinish.wording import byte_size

if TYPE_CHECKING:
    from photofinish.params.experiment import Experiment
    from photofinish.training.teams import Team


OUT_OF_MEMORY = re.compile(r"out of memory|DefaultCPUAllocator: can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED", re.I)
_ASKED = re.compile(r"tried to allocate ([\d.]+) ?(bytes|KiB|MiB|GiB|TiB|KB|MB|GB)", re.I)
_DEVICE = re.compile(r"GPU (\d+) has a total capacity")
_UNITS = ("bytes", "ki", "mi", "gi", "ti")


def out_of_memory(name: str, experiment: Experiment, team: Team, text: str) -> str:
    """What to tell of it in the experiment called `name`; `text` is torch's own."""
    device = _device(team, text)
    asked_bytes = _asked_bytes(text)
    peak_bytes = peak_memory_bytes(device)
    used_bytes, total_bytes = memory_bytes(device)
    # The data set lies on the first of a process's devices only.
    holds_data = experiment.input.name == "resident" and device == team.devices[0]
    facts = [
        f"{byte_size(asked_bytes)} more were asked for" if asked_bytes else "",
        f"{byte_size(used_bytes)} were in use" if used_bytes else "",
        f"{byte_size(peak_bytes)} at the peak" if peak_bytes else "",
        f"the device has {byte_size(total_bytes)}" if total_bytes else "",
        "input: resident puts all images there" if holds_data else "",
        f"its share of a batch is {_share(experiment, team):,} images",
    ]
    changes = [f"lower experiments.{name}.batch_size (it is {experiment.batch_size})"]
    if experiment.precision in ("fp32", "tf32"):
        is_data_parallel = team.device_count > team.size  # which has no bf16
        changes.append(f"set its precision to {'fp16' if is_data_parallel else 'bf16'}")
    if holds_data:
        changes.append("set its input to loader, which leaves the data set in the main memory or on disk")
    name_of_device = "the CPU" if device.type == "cpu" else f"{device} ({device_name(device)})"
    return (
        f"out of memory on {name_of_device}: {', '.join(filter(None, facts))}. "
        f"In params.yaml, {', or '.join(changes)}. Nothing was made smaller behind your back"
    )


def _device(team: Team, text: str) -> torch.device:
    """The one that torch names, of the several that a process may use."""
    named = _DEVICE.search(text)
    first = team.devices[0]
    return torch.device(first.type, int(named[1])) if named and first.type != "cpu" else first


def _share(experiment: Experiment, team: Team) -> int:
    return -(-experiment.batch_size // team.device_count)


def _asked_bytes(text: str) -> int | None:
    match = _ASKED.search(text)
    if match is None:
        return None
    unit = match[2].lower()
    power = next(power for power, start in enumerate(_UNITS) if unit[0] == start[0])
    return int(float(match[1]) * 1024**power)


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


class PeerLostError(UserError):
    """Another process of the training is gone; it, or what started it, says why."""

    exit_code = EXIT_PEER_LOST


@contextmanager
def failures_explained(name: str, experiment: Experiment, team: Team) -> Iterator[None]:
    """Around the training of the experiment called `name`."""
    try:
        yield
    except UserError:
        raise
    except MemoryError as error:
        raise UserError(out_of_memory(name, experiment, team, str(error))) from error
    except (RuntimeError, ValueError) as error:
        explained = _explained(name, experiment, team, error)
        if explained is None:
            raise
        raise explained from error


def _explained(name: str, experiment: Experiment, team: Team, error: Exception) -> UserError | None:
    text, device = str(error), team.devices[0]
    if isinstance(error, torch.OutOfMemoryError) or OUT_OF_MEMORY.search(text):
        return UserError(out_of_memory(name, experiment, team, text))
    if "deterministic implementation" in text:
        return UserError(
            f"model {experiment.model.name} can't be trained on this device with the same result each time: torch has "
            f"no deterministic {text.split()[0]}; choose another model in params.yaml (experiments.{name}.model)"
        )
    if told := _two_devices(text):
        return UserError(_on_two_devices(name, experiment, device, told))
    if team.size > 1 and _is_of_lost_peer(error):
        return PeerLostError(
            f"the connection to another process of this training was lost ({_first_line(text)}). That process, or the "
            f"network to its machine, failed first: see what it says. The next run goes on from the last checkpoint"
        )
    if found := _LIBRARY_FAILED.search(text):
        return UserError(
            f"{found[0]} can't be used on {device} ({_first_line(text)}). Other processes may have taken the memory it "
            f"needs to start (see nvidia-smi), or another CUDA on LD_LIBRARY_PATH hides torch's own: "
            f"free the GPU, or install torch anew. `CUDA_VISIBLE_DEVICES= dvc repro` leaves the GPU out"
        )
    told = nccl_failure(text) or cuda_failure(text, device)
    return UserError(told) if told else None


def _is_of_lost_peer(error: Exception) -> bool:
    if isinstance(error, torch.distributed.DistNetworkError) or _PEER_LOST.search(str(error)):
        return True
    return isinstance(error, torch.distributed.DistError) and bool(_TIMED_OUT.search(str(error)))


def _two_devices(text: str) -> str | None:
    """The line that tells of them; tensors of two precisions are refused in almost the same words."""
    if found := _TWO_DEVICES.search(text):
        return line_around(text, found)
    types = _TWO_TYPES.search(text)
    if types is None:
        return None
    one, other = (kind.rpartition(".")[0] for kind in types.groups())  # torch.cuda of torch.cuda.FloatTensor
    return line_around(text, types) if one != other else None


def _on_two_devices(name: str, experiment: Experiment, device: torch.device, told: str) -> str:
    return (
        f"one step had tensors on two devices ({told}). The trainer puts the network, the images and the "
        f"labels of experiments.{name} all on {device} before the first step (devices.gpu in params.yaml chooses it), "
        f"so a part of model {experiment.model.name} makes or keeps a tensor elsewhere: make it on `images.device`, "
        f"and keep constants with `register_buffer`"
    )


def _first_line(text: str) -> str:
    return shortened(text.strip().partition("\n")[0])
