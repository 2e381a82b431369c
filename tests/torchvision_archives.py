"""Small archives in the real formats, laid out as below torchvision's root folder."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
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


def idx(array: np.ndarray[Any, Any]) -> bytes:
    """MNIST's format: the kind of number, the count of axes, their lengths, the numbers."""
    kind = {"uint8": 8, "int32": 12}[array.dtype.name]
    lengths = b"".join(length.to_bytes(4, "big") for length in array.shape)
    return (
        bytes([0, 0, kind, array.ndim])
        + lengths
        + array.astype(array.dtype.newbyteorder(">")).tobytes()
    )


def mat(**arrays: Any) -> bytes:
    file = io.BytesIO()
    savemat(file, arrays)
    return file.getvalue()


def jpeg(
    height: int = 6, width: int = 8, *, shade: int = 0, kind: str = "JPEG", mode: str = "RGB"
) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height), (shade,) * 3 if mode == "RGB" else shade).save(file, kind)
    return file.getvalue()


def tar(files: Mapping[str, bytes], compression: str = "gz") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=f"w:{compression}") as archive:
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


def emnist(_: Patch) -> Files:
    packed = {}
    for variant, labels in (("letters", np.arange(1, 27)), ("digits", np.arange(10))):
        for part in ("train", "test"):
            prefix = f"gzip/emnist-{variant}-{part}"
            packed[f"{prefix}-images-idx3-ubyte.gz"] = gzip.compress(
                idx(noise(len(labels), 28, 28))
            )
            packed[f"{prefix}-labels-idx1-ubyte.gz"] = gzip.compress(idx(labels.astype(np.uint8)))
    return {"EMNIST/raw/gzip.zip": zipped(packed)}


def as_numpy_1_pickled(batch: dict[str, Any]) -> bytes:
    """Pickle like the published files: integers where NumPy now writes booleans."""
    pickled = pickle.dumps(batch, protocol=2)
    old = pickled.replace(b"\x89\x88\x87", b"K\x00K\x01\x87")
    assert old != pickled
    return old


def cifar10(patch: Patch) -> Files:
    kind = datasets.CIFAR10
    names = {kind.meta["key"]: [f"kind {number}" for number in range(10)]}
    files = {kind.meta["filename"]: pickle.dumps(names)}
    for file, _ in kind.train_list + kind.test_list:
        batch = {"data": noise(10, 3 * 32 * 32), "labels": list(range(10))}
        files[file] = as_numpy_1_pickled(batch)
    for key in ("train_list", "test_list"):
        patch.setattr(kind, key, [[file, md5_of(files[file])] for file, _ in getattr(kind, key)])
    patch.setattr(kind, "meta", kind.meta | {"md5": md5_of(files[kind.meta["filename"]])})
    packed = {f"{kind.base_folder}/{file}": data for file, data in files.items()}
    return {kind.filename: tar(packed)}


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


def oxford_pets(_: Patch) -> Files:
    names = [
        f"{breed}_{number}" for breed in ("Abyssinian", "yorkshire_terrier") for number in (1, 2)
    ]
    images = {f"images/{name}.jpg": jpeg(shade=index) for index, name in enumerate(names)}
    listing = "\n".join(
        f"{name} {1 + (index > 1)} 1 1" for index, name in enumerate(names)
    ).encode()
    archives = {
        "images.tar.gz": tar(images),
        "annotations.tar.gz": tar(
            {"annotations/trainval.txt": listing, "annotations/test.txt": listing}
        ),
    }
    return {f"oxford-iiit-pet/{name}": data for name, data in archives.items()}


def imagenette(_: Patch) -> Files:
    kinds = list(datasets.Imagenette._WNID_TO_CLASS)
    files = {
        f"imagenette2/{part}/{kind}/{kind}_1.JPEG": jpeg()
        for part in ("train", "val")
        for kind in kinds
    }
    return {"imagenette2.tgz": tar(files)}


def sun397(_: Patch) -> Files:
    files = {
        f"SUN397/{name[0]}/{name}/sun_{n}.jpg": jpeg(shade=n)
        for name in ("abbey", "zoo/cage")
        for n in (2, 1)
    }
    return {"SUN397.tar.gz": tar({"SUN397/ClassName.txt": b"/a/abbey\n/z/zoo/cage\n", **files})}


MAKERS: dict[str, Callable[[Patch], Files]] = {
    "CIFAR10": cifar10,
    "Caltech101": caltech101,
    "EMNIST": emnist,
    "Imagenette": imagenette,
    "MNIST": mnist,
    "OxfordIIITPet": oxford_pets,
    "SUN397": sun397,
    "SVHN": svhn,
}
"""Each makes the files, and sets the md5s that torchvision's class checks when it reads them."""


def accept(patch: Patch, made: Files) -> None:
    """Make torchvision take these files for the published ones when it checks their md5s."""
    checked = {name.rsplit("/", 1)[-1]: md5_of(data) for name, data in made.items()}

    def check_md5(path: str | Path, md5: str) -> bool:
        return md5_of(Path(path).read_bytes()) == checked.get(Path(path).name, md5)

    patch.setattr("torchvision.datasets.utils.check_md5", check_md5)
