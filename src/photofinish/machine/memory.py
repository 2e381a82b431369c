"""How much memory there is, and whether a split that is to lie on the device (`input: resident`) fits there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from photofinish.errors import MistakeError
from photofinish.machine import most_steps_at_once
from photofinish.machine.fingerprint import CpuHost, GpuHost
from photofinish.machine.host import read_or_empty
from photofinish.params.datasets import Dataset, SyntheticDataset, drawn_counts
from photofinish.params.experiment import Experiment
from photofinish.wording import byte_size

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
"""of control groups version 2 and 1"""
_USED_KEYS = ("anon", "total_rss")
"""what can't be given back: files in the page cache can"""


def available_memory_bytes() -> int:
    """How much memory is free now, within the tightest of all limits."""
    left_bytes = (max(0, limit_bytes - _used_bytes(folder)) for folder, limit_bytes in _limits())
    return min([psutil.virtual_memory().available, *left_bytes])


def total_memory_bytes() -> int:
    """How much memory there is, within the tightest limit."""
    return min([psutil.virtual_memory().total, *(limit_bytes for _, limit_bytes in _limits())])


def _limits() -> Iterator[tuple[Path, int]]:
    """This process's control groups that limit memory, and those around them.

    Inside a container, where the listed path may be one of the host's, it is the outermost folder that counts.
    """
    for line in read_or_empty(_OWN_CGROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            root = _CGROUPS / "memory" if controllers else _CGROUPS
            own = Path(path.lstrip("/"))
            for folder in (root / part for part in (own, *own.parents)):
                texts = [read_or_empty(folder / name).strip() for name in _LIMIT_FILES]
                limits_bytes = [int(text) for text in texts if text.isdecimal()]
                if limits_bytes:
                    yield folder, limits_bytes[0]


def _used_bytes(folder: Path) -> int:
    facts = dict(line.split() for line in read_or_empty(folder / "memory.stat").splitlines())
    return next((int(facts[key]) for key in _USED_KEYS if key in facts), 0)


@dataclass(frozen=True)
class SplitSize:
    """How many images of which size a split has."""

    shape: tuple[int, ...]
    """of an image: channels, height, width"""
    train: int
    """images, like the next"""
    validation: int
    dtype: str = "uint8"
    """what they are packed in: images become float32, whole numbers stay"""

    @property
    def placed_dtype(self) -> str:
        """What they are on the device, whatever the network computes in."""
        return "int64" if self.dtype == "int64" else "float32"


@dataclass(frozen=True)
class Room:
    """Memory that the images of a training may take."""

    what: str
    """of which device, in words"""
    available_bytes: int
    copies: int = 1
    """processes that hold all images each"""
    has_graphs: bool = False
    """a training's steps may be handed out at once there, whose batches lie beside the images"""


def refuse_too_large(name: str, experiment: Experiment, split: SplitSize, rooms: list[Room]) -> None:
    """Tell the user where images that are to lie on the device don't fit into one of the rooms."""
    if experiment.input.name != "resident":
        return
    padding = experiment.augmentation.crop_padding
    border = f", a border of {padding} pixels added for training (augmentation.crop_padding)," if padding else ""
    for room in rooms:
        needed_bytes = bytes_needed(experiment, split, room)
        if needed_bytes > room.available_bytes:
            each = f", once in each of {room.copies} processes" if room.copies > 1 else ""
            if room.has_graphs and (batches_bytes := window_bytes(experiment, split)):
                each = (
                    f", with up to {byte_size(batches_bytes)} for batches of steps in a graph (`steps: eager` has none)"
                )
            raise MistakeError(
                f"experiments.{name}.input is resident in params.yaml, and the images don't fit: {split.train:,} for "
                f"training and {split.validation:,} for validation of {'x'.join(map(str, split.shape))}{border} take "
                f"{byte_size(needed_bytes)} as {split.placed_dtype}{each}; {room.what} has "
                f"{byte_size(room.available_bytes)}. "
                f"`input: loader` reads them from disk batch by batch and gives the same result"
            )


def bytes_needed(experiment: Experiment, split: SplitSize, room: Room) -> int:
    """How much images that are to lie there take, with the batches that are gathered of them."""
    at_once_bytes = window_bytes(experiment, split) if room.has_graphs else 0
    return room.copies * resident_bytes(experiment, split) + at_once_bytes


def resident_bytes(experiment: Experiment, split: SplitSize) -> int:
    """How much all images take; training images that are cropped at random lie there with their border."""
    border = 2 * experiment.augmentation.crop_padding
    bordered = [*split.shape[:1], *(side + border for side in split.shape[1:])]  # only images are augmented
    values = split.train * math.prod(bordered) + split.validation * math.prod(split.shape)
    return values * (8 if split.placed_dtype == "int64" else 4)


def window_bytes(experiment: Experiment, split: SplitSize) -> int:
    """The most that batches take that are gathered at once, whatever the network; cropped at random, they are first
    gathered as lines with their border."""
    if experiment.steps == "eager" or experiment.model.compile:
        return 0
    value_bytes, border = 8 if split.placed_dtype == "int64" else 4, 2 * experiment.augmentation.crop_padding
    image_bytes = value_bytes * math.prod(split.shape)
    images = experiment.batch_size * most_steps_at_once(split.train, experiment.batch_size, image_bytes)
    augments = border or experiment.augmentation.flip
    lines_bytes = value_bytes * math.prod(split.shape[:-1]) * (split.shape[-1] + border) if augments else 0
    return images * (image_bytes + lines_bytes) if images <= split.train else 0


def room_now(host: CpuHost | GpuHost, processes: int) -> list[Room]:
    """The memory left as the training starts, by other programs too."""
    main = [Room("the main memory now", available_memory_bytes(), processes)] if _is_in_main_memory(host) else []
    return main if isinstance(host, CpuHost) else [*_gpu_room(host), *main]


def room_ever(
    cpu_host: CpuHost, gpu_host: GpuHost, *, cpu_is_here: bool = True, gpu_is_here: bool = True
) -> list[Room]:
    """The memory of both devices when nothing else runs; of other machines' main memory nothing is known."""
    hosts = ((cpu_host, cpu_is_here), (gpu_host, gpu_is_here))
    here = [host.processes for host, is_here in hosts if is_here and _is_in_main_memory(host)]
    main = [Room("the main memory", total_memory_bytes(), max(here))] if here else []
    return [*main, *_gpu_room(gpu_host)]


def _is_in_main_memory(host: CpuHost | GpuHost) -> bool:
    """Whether what lies on its device does; to another GPU the images only pass through, some at a time."""
    return isinstance(host, CpuHost) or not all(gpu.memory_bytes for gpu in host.accelerators)


def _gpu_room(host: GpuHost) -> list[Room]:
    """Every GPU of a training holds all the images; one that has no memory of its own tells no size."""
    is_alone = len(host.accelerators) == 1
    return [
        Room(f"the GPU ({gpu.name})", gpu.memory_bytes, has_graphs=is_alone and gpu.kind == "cuda")
        for gpu in host.accelerators
        if gpu.memory_bytes
    ]


def planned_split_size(dataset: Dataset, plan_file: Path, plan_text: str, manifest: Path) -> SplitSize | None:
    """What is known of a split when the plan is made: all if it was made already from this very plan.

    Of another plan's split nothing can be told: the change may be what makes it fit.
    """
    try:
        is_current = plan_file.read_text(encoding="utf-8") == plan_text
        if is_current and manifest.stat().st_mtime >= plan_file.stat().st_mtime:
            facts = json.loads(manifest.read_bytes())
            counts = facts["counts"]
            return SplitSize(tuple(facts["shape"]), counts["train"], counts["validation"], facts.get("dtype", "uint8"))
    except FileNotFoundError:
        pass
    if not isinstance(dataset, SyntheticDataset):
        return None
    counts = drawn_counts(dataset, dataset.images)
    return SplitSize(dataset.shape, dataset.images - sum(counts.values()), counts["validation"])
