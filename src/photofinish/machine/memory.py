"""Whether a split fits where it is to lie with `input: resident`: in the main memory, or in each GPU's."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import psutil

from photofinish.errors import MistakeError
from photofinish.machine.fingerprint import CpuHost, GpuHost
from photofinish.machine.host import read_or_empty
from photofinish.params.datasets import Dataset, SyntheticDataset, drawn_counts
from photofinish.params.experiment import Experiment
from photofinish.wording import byte_size

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def available_memory_bytes() -> int:
    """Return the free memory, within the limits of all control groups of this process."""
    available = [psutil.virtual_memory().available]
    for folder, limit_bytes in _limits():
        facts = dict(line.split() for line in read_or_empty(folder / "memory.stat").splitlines())
        used_bytes = int(facts.get("anon", 0))  # the page cache can be given back
        available.append(max(0, limit_bytes - used_bytes))
    return min(available)


def total_memory_bytes() -> int:
    """Return the size of the memory, within the same limits."""
    return min([psutil.virtual_memory().total, *(limit_bytes for _, limit_bytes in _limits())])


def _limits() -> list[tuple[Path, int]]:
    """Return the control groups (version 2) of this process that limit its memory, and their limits in bytes.

    In a container, the listed path may be the host's: then the outermost folder has the limit.
    """
    own = Path(read_or_empty(_OWN_CGROUP).strip().rpartition("::/")[2])
    limits = []
    for folder in (own, *own.parents):
        text = read_or_empty(_CGROUPS / folder / "memory.max").strip()
        if text.isdecimal():
            limits.append((_CGROUPS / folder, int(text)))
    return limits


@dataclass(frozen=True)
class SplitSize:
    """Size of a split."""

    shape: tuple[int, ...]
    """of an image: channels, height, width"""
    train: int
    """number of images"""
    validation: int
    dtype: str = "uint8"
    """in the packed file: bytes become float32 on the device, int64 stays"""

    @property
    def placed_dtype(self) -> str:
        """Type on the device, in every precision."""
        return "int64" if self.dtype == "int64" else "float32"


@dataclass(frozen=True)
class Room:
    """Memory of a device."""

    what: str
    """the device, for messages"""
    available_bytes: int
    copies: int = 1
    """number of processes that each hold all images"""


def refuse_too_large(name: str, experiment: Experiment, split: SplitSize, rooms: list[Room]) -> None:
    """Raise MistakeError if images that are to lie on the device don't fit into one of the rooms."""
    if experiment.input.name != "resident":
        return
    padding = experiment.augmentation.crop_padding
    border = f", a border of {padding} pixels added for training (augmentation.crop_padding)," if padding else ""
    for room in rooms:
        needed_bytes = bytes_needed(experiment, split, room)
        if needed_bytes <= room.available_bytes:
            continue
        extra = f", once in each of {room.copies} processes" if room.copies > 1 else ""
        raise MistakeError(
            f"experiments.{name}.input is resident in params.yaml, and the images don't fit: {split.train:,} for "
            f"training and {split.validation:,} for validation of {'x'.join(map(str, split.shape))}{border} take "
            f"{byte_size(needed_bytes)} as {split.placed_dtype}{extra}; {room.what} has "
            f"{byte_size(room.available_bytes)}. "
            f"`input: loader` reads them from disk batch by batch and gives the same result"
        )


def bytes_needed(experiment: Experiment, split: SplitSize, room: Room) -> int:
    """Return the size of all images in the room. Batches come on top, and are small beside them."""
    return room.copies * resident_bytes(experiment, split)


def resident_bytes(experiment: Experiment, split: SplitSize) -> int:
    """Return the size of all images. Training images that are cropped at random have their border there."""
    border = 2 * experiment.augmentation.crop_padding
    with_border = [*split.shape[:1], *(side + border for side in split.shape[1:])]
    values = split.train * math.prod(with_border) + split.validation * math.prod(split.shape)
    return values * (8 if split.placed_dtype == "int64" else 4)


def room_now(host: CpuHost | GpuHost, processes: int) -> list[Room]:
    """Return the memory that is free when the training starts."""
    main = [Room("the main memory now", available_memory_bytes(), processes)] if _is_in_main_memory(host) else []
    return main if isinstance(host, CpuHost) else [*_gpu_rooms(host), *main]


def room_ever(
    cpu_host: CpuHost, gpu_host: GpuHost, *, cpu_is_here: bool = True, gpu_is_here: bool = True
) -> list[Room]:
    """Return the memory of both devices when nothing else runs. The main memory of other machines is unknown."""
    hosts = ((cpu_host, cpu_is_here), (gpu_host, gpu_is_here))
    here = [host.processes for host, is_here in hosts if is_here and _is_in_main_memory(host)]
    main = [Room("the main memory", total_memory_bytes(), max(here))] if here else []
    return [*main, *_gpu_rooms(gpu_host)]


def _is_in_main_memory(host: CpuHost | GpuHost) -> bool:
    """Return True for a CPU, and for GPUs that share its memory."""
    return isinstance(host, CpuHost) or not all(gpu.memory_bytes for gpu in host.accelerators)


def _gpu_rooms(host: GpuHost) -> list[Room]:
    """Return the memory of each GPU that has its own: each holds all the images."""
    return [Room(f"the GPU ({gpu.name})", gpu.memory_bytes) for gpu in host.accelerators if gpu.memory_bytes]


def planned_split_size(dataset: Dataset, plan_file: Path, plan_text: str, manifest: Path) -> SplitSize | None:
    """Return the size of a split as the plan is made: known if it was made from this very plan, or is synthetic."""
    is_current = plan_file.is_file() and plan_file.read_text(encoding="utf-8") == plan_text
    if is_current and manifest.is_file() and manifest.stat().st_mtime >= plan_file.stat().st_mtime:
        facts = json.loads(manifest.read_bytes())
        counts, dtype = facts["counts"], facts.get("dtype", "uint8")
        return SplitSize(tuple(facts["shape"]), counts["train"], counts["validation"], dtype)
    if not isinstance(dataset, SyntheticDataset):
        return None
    drawn = drawn_counts(dataset, dataset.images)
    return SplitSize(dataset.shape, dataset.images - sum(drawn.values()), drawn["validation"])
