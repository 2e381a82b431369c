"""Whether a split fits where it is to lie with `input: resident`: in the main memory, or in each GPU's."""

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
            facts = dict(
                line.split() for line in read_or_empty(folder / "memory.stat").splitlines()
            )
            used_bytes = int(facts.get("anon", 0))  # the page cache can be given back
            available_bytes = min(available_bytes, max(0, int(limit) - used_bytes))
    return available_bytes


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


def check_memory_needed(
    name: str, experiment: Experiment, split: SplitSize, rooms: list[Room]
) -> None:
    """Raise ConfigError if images that are to lie on the device don't fit into one of the rooms."""
    if experiment.input.name != "resident":
        return
    padding = experiment.augmentation.crop_padding
    border = (
        f", a border of {padding} pixels added for training (augmentation.crop_padding),"
        if padding
        else ""
    )
    for room in rooms:
        needed_bytes = bytes_needed(experiment, split, room)
        if needed_bytes <= room.available_bytes:
            continue
        extra = f", once in each of {room.copies} processes" if room.copies > 1 else ""
        raise ConfigError(
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


def room_now(host: CpuTarget | GpuTarget, processes: int) -> list[Room]:
    """Return the memory that is free when the training starts: each GPU's, and the main memory if images lie there."""
    if isinstance(host, CpuTarget):
        return [Room("the main memory now", available_memory_bytes(), processes)]
    rooms = [
        Room(f"the GPU ({gpu.name})", gpu.memory_bytes)
        for gpu in host.accelerators
        if gpu.memory_bytes
    ]
    if len(rooms) < len(host.accelerators):  # a GPU that shares the CPU's memory
        rooms.append(Room("the main memory now", available_memory_bytes(), processes))
    return rooms
