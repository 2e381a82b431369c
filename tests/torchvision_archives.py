"""Small archives in the real formats, laid out as below torchvision's root folder."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from torchvision import datasets

SHADES = np.random.default_rng(0)


def noise(*shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return SHADES.integers(0, 256, shape, dtype=np.uint8)


def idx(array: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """MNIST's format: the kind of number, the count of axes, their lengths, the numbers."""
    lengths = b"".join(length.to_bytes(4, "big") for length in array.shape)
    return bytes([0, 0, 8, array.ndim]) + lengths + array.tobytes()


def mat(**arrays: Any) -> bytes:
    file = io.BytesIO()
    savemat(file, arrays)
    return file.getvalue()


def jpeg(height: int = 6, width: int = 8, *, shade: int = 0, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height), (shade,) * 3 if mode == "RGB" else shade).save(file, "JPEG")
    return file.getvalue()


def tar(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def zipped(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return packed.getvalue()


def md5_of(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


Files = dict[str, bytes]
"""Content of files, by their path below torchvision's root."""
Patch = pytest.MonkeyPatch


def mnist(_: Patch) -> Files:
    files = {}
    for part, count in (("train", 20), ("t10k", 10)):
        images, labels = noise(count, 28, 28), np.arange(count, dtype=np.uint8) % 10
        for file, array in (("images-idx3", images), ("labels-idx1", labels)):
            files[f"MNIST/raw/{part}-{file}-ubyte.gz"] = gzip.compress(idx(array))
    return files


def svhn(patch: Patch) -> Files:
    files, split_list = {}, {}
    for part, count in (("train", 20), ("test", 10)):
        name = f"{part}_32x32.mat"
        labels = (np.arange(count, dtype=np.uint8) % 10 + 1)[:, np.newaxis]
        files[name] = mat(X=noise(32, 32, 3, count), y=labels)
        split_list[part] = [f"http://localhost:1/{name}", name, md5_of(files[name])]
    patch.setattr(datasets.SVHN, "split_list", split_list)
    return files


def caltech101(_: Patch) -> Files:
    classes = {"BACKGROUND_Google": 2, "anchor": 3, "barrel": 2}
    images = {
        f"101_ObjectCategories/{name}/image_{number:04d}.jpg": jpeg(
            6 + number, 8, shade=number, mode="L" if number == 2 else "RGB"
        )
        for name, count in classes.items()
        for number in range(1, count + 1)
    }
    return {
        "caltech101/caltech-101.zip": zipped(
            {"caltech-101/101_ObjectCategories.tar.gz": tar(images)}
        )
    }


def imagenette(_: Patch) -> Files:
    kinds = list(datasets.Imagenette._WNID_TO_CLASS)
    files = {
        f"imagenette2/{part}/{kind}/{kind}_1.JPEG": jpeg()
        for part in ("train", "val")
        for kind in kinds
    }
    return {"imagenette2.tgz": tar(files)}


MAKERS: dict[str, Callable[[Patch], Files]] = {
    "Caltech101": caltech101,
    "Imagenette": imagenette,
    "MNIST": mnist,
    "SVHN": svhn,
}
"""Each makes the files, and sets the md5s that torchvision's class checks when it reads them."""


def accept(patch: Patch, made: Files) -> None:
    """Make torchvision take these files for the published ones when it checks their md5s."""
    checked = {name.rsplit("/", 1)[-1]: md5_of(data) for name, data in made.items()}

    def check_md5(path: str | Path, md5: str) -> bool:
        return md5_of(Path(path).read_bytes()) == checked.get(Path(path).name, md5)

    patch.setattr("torchvision.datasets.utils.check_md5", check_md5)
