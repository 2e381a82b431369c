"""Images of the five systems: real ones in torchvision's layout, or made up in the same number.

`python -m benchmarks.systems.images FOLDER` writes Caltech-101's made-up files for the example.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks import data
from benchmarks.systems.jobs import FILES, PICTURES
from photofinish.data import PART_NAMES, PartName
from photofinish.data.images import decode, to_pixels
from photofinish.training.batches import Batches, Normaliser, Part
from photofinish.training.input_paths import make_batches

CALTECH_CLASSES, CALTECH_IMAGES, SIDE = 101, 8677, 32
CIFAR_IMAGES = 50_000, 10_000
MEAN_AND_STD = {
    "MNIST": ((0.1307,), (0.3081,)),
    PICTURES: ((0.1307,), (0.3081,)),
    "MNIST, plain": ((0.0,), (1.0,)),
}


@dataclass(frozen=True)
class Images(data.Data):
    """Images of one data set. Those for validation are the test images, seen at the end only."""

    read: Callable[[int], tuple[Any, Any]] | None = None
    """Function that decodes a training image from its file, if the loader does so."""

    def batches(self, experiment: Any, device: torch.device) -> tuple[Batches, None]:
        """Return batches for training, as the training stage makes them."""
        images = None if self.read else self.train.images
        normalise = Normaliser(self.mean, self.std)
        part = Part("train", images, self.train.labels, normalise, self.read)
        return make_batches(experiment, part, device), None

    def test_batches(self, experiment: Any, device: torch.device) -> Batches:
        part = Part(
            "test", self.validation.images, self.validation.labels, Normaliser(self.mean, self.std)
        )
        return make_batches(experiment, part, device)


def images_of(name: str, folder: Path | None, scratch: Path, *, small: bool = False) -> Images:
    """Return a data set, with 60 images of each part if `small`."""
    if name in ("caltech101", FILES):
        return _caltech(scratch, 1010 if small else CALTECH_IMAGES, reads_files=name == FILES)
    if name == "CIFAR10":
        return _made((3, 32, 32), (60, 60) if small else CIFAR_IMAGES)
    source = folder / name.partition(",")[0] / "raw" if folder else None
    if small or source is None or not source.is_dir():
        images = _made((1, 28, 28), (60, 60) if small else (60_000, 10_000))
    else:
        train, test = (data.idx_part(source, prefix) for prefix in ("train", "t10k"))
        mean, std = MEAN_AND_STD.get(name) or data.mean_and_std(train)
        images = Images(train, test, 10, True, mean, std)
    return replace(images, read=partial(_picture, images.train)) if name == PICTURES else images


def _picture(part: data.Part, row: int) -> tuple[Any, Any]:
    """Return a grey image by way of PIL, as torchvision's data sets do."""
    return to_pixels(Image.fromarray(part.images[row, 0]), None, 1), part.labels[row]


def _made(shape: tuple[int, int, int], counts: tuple[int, int]) -> Images:
    made = data.noise(shape, *counts)
    return Images(made.train, made.validation, made.classes, False, made.mean, made.std)


def _caltech(scratch: Path, count: int, *, reads_files: bool) -> Images:
    parts = write_caltech(scratch / "caltech101", count)

    def decoded(path: Path) -> data.UInt8Array:
        return decode(path, (SIDE, SIDE), 3)

    def part(name: PartName) -> data.Part:
        paths, labels = zip(*parts[name], strict=True)
        with ThreadPoolExecutor() as pool:
            return data.Part(np.stack([*pool.map(decoded, paths)]), np.array(labels))

    train = part("train")

    def read(row: int) -> tuple[Any, Any]:
        path, label = parts["train"][row]
        return decoded(path), np.int64(label)

    mean, std = data.mean_and_std(train)
    classes = CALTECH_CLASSES
    return Images(train, part("test"), classes, False, mean, std, read if reads_files else None)


def write_caltech(
    folder: Path, count: int = CALTECH_IMAGES
) -> dict[PartName, list[tuple[Path, int]]]:
    """Write JPEGs of about 300x200 and three CSVs, as the example expects them.

    Return the files and classes of each part.
    """
    parts: dict[PartName, list[tuple[Path, int]]] = {part: [] for part in PART_NAMES}
    for number in range(count):
        label = number * CALTECH_CLASSES // count
        tenth = {0: PART_NAMES[2], 5: PART_NAMES[1]}.get(number % 10, PART_NAMES[0])
        path = folder / "101_ObjectCategories" / f"class_{label:03}" / f"image_{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        parts[tenth].append((path, label))
    with ThreadPoolExecutor() as pool:
        for rows in parts.values():
            list(pool.map(_write_photograph, rows))
    for part, rows in parts.items():
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(("path", "label"))
        writer.writerows(
            (path.relative_to(folder).as_posix(), path.parent.name) for path, _ in rows
        )
        (folder / f"{part}.csv").write_text(text.getvalue(), encoding="utf-8", newline="")
    return parts


def _write_photograph(row: tuple[Path, int]) -> None:
    """Write noise with the colours of the class, unless the file is there already."""
    path, label = row
    if path.is_file():
        return
    random = np.random.default_rng(int(path.stem[-4:]))
    colours = np.random.default_rng(label).integers(0, 156, (4, 6, 3)).repeat(5, 0).repeat(5, 1)
    pixels = (colours + random.integers(0, 100, colours.shape)).astype(np.uint8)
    Image.fromarray(pixels).resize((300, 200)).save(path, quality=90)


if __name__ == "__main__":
    write_caltech(Path(sys.argv[1]))
