"""Images for the benchmarks: real ones beside the project, or else noise of their shape."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from photofinish.data import PartName
from photofinish.data.images import decode
from photofinish.training.batches import Batches, Normaliser
from photofinish.training.batches import Part as PlacedPart
from photofinish.training.input_paths import make_batches

REAL_DATA = Path(__file__).parent.parent.parent / "shared" / "datasets"
UInt8Array = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    images: UInt8Array
    """(count, channels, height, width)"""
    labels: Int64Array
    csv_file: Path | None = None
    """List of the images as files, if the data set consists of files."""


@dataclass(frozen=True)
class Data:
    train: Part
    validation: Part
    classes: int
    is_real: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def batches(self, experiment: Any, device: torch.device) -> tuple[Batches, Batches | None]:
        """Return batches for training and for validation, as the training stage makes them."""

        def of(name: PartName, part: Part) -> Batches:
            normalised = PlacedPart(name, part.images, part.labels, Normaliser(self.mean, self.std))
            return make_batches(experiment, normalised, device)

        return of("train", self.train), of("validation", self.validation)


def idx(name: str, train: int, validation: int) -> Data:
    """MNIST or one like it: the first images of its training files, and the last for validation."""
    folder = REAL_DATA / name / "raw"
    if not folder.is_dir():
        return noise((1, 28, 28), train, validation)
    whole = idx_part(folder, "train")
    return _data(
        Part(whole.images[:train], whole.labels[:train]),
        Part(whole.images[-validation:], whole.labels[-validation:]),
        classes=10,
        is_real=True,
    )


def idx_part(folder: Path, prefix: str) -> Part:
    """Return the images of `train` or `t10k`."""
    images = _read_idx(folder / f"{prefix}-images-idx3-ubyte.gz", header=16)
    labels = _read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", header=8)
    return Part(images.reshape(-1, 1, 28, 28), labels.astype(np.int64))


def noise(shape: tuple[int, int, int], train: int, validation: int) -> Data:
    random = np.random.default_rng(0)

    def part(count: int) -> Part:
        return Part(
            random.integers(0, 256, (count, *shape), dtype=np.uint8), random.integers(0, 10, count)
        )

    return _data(part(train), part(validation), classes=10, is_real=False)


def jpegs(scratch: Path, side: int, most: int) -> Data:
    """Photographs in folders, one a class, listed in CSV files; every eighth is for validation."""
    folder = REAL_DATA / "caltech101-sample" / "101_ObjectCategories"
    is_real = folder.is_dir()
    if not is_real:
        folder = _write_jpegs(scratch / "photographs")
    files = sorted(folder.glob("*/*.jpg"))[:: max(1, len(list(folder.glob("*/*.jpg"))) // most)]
    classes = sorted({file.parent.name for file in files})
    chosen = {"train": [f for n, f in enumerate(files) if n % 8], "validation": files[::8]}

    def part(name: str) -> Part:
        labels = np.array(
            [classes.index(file.parent.name) for file in chosen[name]], dtype=np.int64
        )
        path = scratch / f"{name}.csv"
        with path.open("w", encoding="utf-8", newline="") as text:
            writer = csv.writer(text)
            writer.writerow(("path", "label"))
            writer.writerows(zip(map(str, chosen[name]), labels.tolist(), strict=True))
        return Part(
            np.stack([decode(path, (side, side), 3) for path in chosen[name]]), labels, path
        )

    return _data(part("train"), part("validation"), len(classes), is_real)


def _data(train: Part, validation: Part, classes: int, is_real: bool) -> Data:
    return Data(train, validation, classes, is_real, *mean_and_std(train))


def mean_and_std(part: Part) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of each channel, on the scale from 0 to 1."""
    scaled = part.images.astype(np.float32) / 255
    mean, std = scaled.mean((0, 2, 3)), scaled.std((0, 2, 3))
    return tuple(np.asarray(mean).tolist()), tuple(np.asarray(std).tolist())


def _read_idx(path: Path, header: int) -> UInt8Array:
    return np.frombuffer(gzip.decompress(path.read_bytes()), dtype=np.uint8, offset=header)


def _write_jpegs(folder: Path) -> Path:
    """Write JPEGs of the sizes of Caltech-101's."""
    random = np.random.default_rng(0)
    for number in range(200):
        path = folder / f"class-{number % 8}" / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(random.integers(0, 256, (20, 30, 3), dtype=np.uint8))
        small.resize((300, 200)).save(path, quality=90)
    return folder
