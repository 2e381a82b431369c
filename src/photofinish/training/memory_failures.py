"""Memory that ran out, in words: what is known of it, and which lines of params.yaml need less."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from photofinish.hardware.devices import device_name, memory_bytes, peak_memory_bytes
from photofinish.wording import byte_size

if TYPE_CHECKING:
    from photofinish.params.training import Experiment
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
