"""Check that a split fits into the memory that `input: resident` needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import psutil

from photofinish.config.experiment import Experiment
from photofinish.errors import ConfigError
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.machine.host import read_or_empty
from photofinish.wording import byte_size

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def available_memory_bytes() -> int:
    """Return the free memory, within the limits of this process's control groups (version 2).

    In a container, the listed group may be the host's: then the outermost folder has the limit.
    """
    available_bytes = psutil.virtual_memory().available
    own = Path(read_or_empty(_OWN_CGROUP).strip().rpartition("::/")[2])
    for folder in (_CGROUPS / part for part in (own, *own.parents)):
        limit = read_or_empty(folder / "memory.max").strip()
        if limit.isdecimal():
            lines = read_or_empty(folder / "memory.stat").splitlines()
            used_bytes = int(dict(line.split() for line in lines).get("anon", 0))
            available_bytes = min(available_bytes, max(0, int(limit) - used_bytes))
    return available_bytes


@dataclass(frozen=True)
class SplitSize:
    """Size of a split."""

    shape: tuple[int, ...]
    """Shape of a sample: channels, height, width."""
    train: int
    """Number of samples."""
    validation: int
    dtype: str = "uint8"
    """Type in the packed file."""

    @property
    def placed_dtype(self) -> str:
        """Type on the device, in every precision."""
        return "int64" if self.dtype == "int64" else "float32"


@dataclass(frozen=True)
class Room:
    """Memory of a device."""

    what: str
    """Name of the device, for messages."""
    available_bytes: int
    copies: int = 1
    """Number of processes that each hold all samples."""


def check_memory_needed(
    name: str, experiment: Experiment, split: SplitSize, rooms: list[Room]
) -> None:
    """Raise ConfigError if resident samples don't fit into one of the rooms."""
    if experiment.input.name != "resident":
        return
    for room in rooms:
        needed_bytes = bytes_needed(experiment, split, room)
        if needed_bytes <= room.available_bytes:
            continue
        copies = f", once in each of {room.copies} processes" if room.copies > 1 else ""
        padding = experiment.augmentation.crop_padding
        border = f" and augmentation.crop_padding {padding}" if padding else ""
        shape = "x".join(map(str, split.shape))
        raise ConfigError(
            f"experiments.{name}.input is resident, and the samples don't fit: "
            f"{split.train:,} for training and {split.validation:,} for validation "
            f"of {shape}{border} take {byte_size(needed_bytes)} as {split.placed_dtype}{copies}; "
            f"{room.what} has {byte_size(room.available_bytes)}. "
            f"`input: loader` reads them from disk and gives the same result"
        )


def bytes_needed(experiment: Experiment, split: SplitSize, room: Room) -> int:
    """Return the size of all samples in the room. Batches come on top, and are small."""
    return room.copies * resident_bytes(experiment, split)


def resident_bytes(experiment: Experiment, split: SplitSize) -> int:
    """Return the size of all samples, with the border of those that are cropped at random."""
    border = 2 * experiment.augmentation.crop_padding
    with_border = [*split.shape[:1], *(side + border for side in split.shape[1:])]
    values = split.train * math.prod(with_border) + split.validation * math.prod(split.shape)
    return values * (8 if split.placed_dtype == "int64" else 4)


def room_now(host: CpuTarget | GpuTarget, processes: int) -> list[Room]:
    """Return the free memory of each place that samples would be in."""
    main_memory = "the main memory now"
    if isinstance(host, CpuTarget):
        return [Room(main_memory, available_memory_bytes(), processes)]
    gpus = [gpu for gpu in host.accelerators if gpu.memory_bytes]
    rooms = [Room(f"the GPU ({gpu.name})", gpu.memory_bytes or 0) for gpu in gpus]
    if len(gpus) < len(host.accelerators):  # a GPU that shares the CPU's memory
        rooms.append(Room(main_memory, available_memory_bytes(), processes))
    return rooms
