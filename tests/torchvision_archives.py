"""Small archives in the formats of the real data sets, laid out as torchvision keeps them below its root folder."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
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
    return bytes([0, 0, kind, array.ndim]) + lengths + array.astype(array.dtype.newbyteorder(">")).tobytes()


def mat(**arrays: Any) -> bytes:
    file = io.BytesIO()
    savemat(file, arrays)
    return file.getvalue()


def jpeg(height: int = 6, width: int = 8, *, shade: int = 0, kind: str = "JPEG", mode: str = "RGB") -> bytes:
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
"""By their place below torchvision's root."""
Patch = pytest.MonkeyPatch


def mnist(name: str) -> Files:
    files = {}
    for part, count in (("train", 20), ("t10k", 10)):
        images, labels = noise(count, 28, 28), np.arange(count, dtype=np.uint8) % 10
        for file, array in (("images-idx3", images), ("labels-idx1", labels)):
            files[f"{name}/raw/{part}-{file}-ubyte.gz"] = gzip.compress(idx(array))
    return files


def qmnist(_: Patch) -> Files:
    files = {}
    for part, count in (("train", 20), ("test", 10)):
        labels = np.stack([np.arange(count) % 10, *[np.full(count, 99)] * 7], axis=1).astype(np.int32)
        of_part = {"images-idx3-ubyte": idx(noise(count, 28, 28)), "labels-idx2-int": idx(labels)}
        files |= {f"QMNIST/raw/qmnist-{part}-{name}.gz": gzip.compress(data) for name, data in of_part.items()}
    return files


def emnist(_: Patch) -> Files:
    packed = {}
    for variant, labels in (("letters", np.arange(1, 27)), ("digits", np.arange(10)), ("balanced", np.arange(47))):
        for part in ("train", "test"):
            prefix = f"gzip/emnist-{variant}-{part}"
            packed[f"{prefix}-images-idx3-ubyte.gz"] = gzip.compress(idx(noise(len(labels), 28, 28)))
            packed[f"{prefix}-labels-idx1-ubyte.gz"] = gzip.compress(idx(labels.astype(np.uint8)))
    return {"EMNIST/raw/gzip.zip": zipped(packed)}


def as_numpy_1_pickled(batch: dict[str, Any]) -> bytes:
    """As the published files are: numbers where NumPy wants booleans by now."""
    pickled = pickle.dumps(batch, protocol=2)
    old = pickled.replace(b"\x89\x88\x87", b"K\x00K\x01\x87")
    assert old != pickled
    return old


def cifar(patch: Patch, name: str) -> Files:
    of_class = getattr(datasets, name)
    labels = "labels" if name == "CIFAR10" else "fine_labels"
    classes = 10 if name == "CIFAR10" else 100
    files = {of_class.meta["filename"]: pickle.dumps({of_class.meta["key"]: [f"kind {i}" for i in range(classes)]})}
    for file, _ in of_class.train_list + of_class.test_list:
        batch = {"data": noise(classes, 3 * 32 * 32), labels: list(range(classes))}
        files[file] = as_numpy_1_pickled(batch)
    for key in ("train_list", "test_list"):
        patch.setattr(of_class, key, [[file, md5_of(files[file])] for file, _ in getattr(of_class, key)])
    patch.setattr(of_class, "meta", of_class.meta | {"md5": md5_of(files[of_class.meta["filename"]])})
    return {of_class.filename: tar({f"{of_class.base_folder}/{file}": data for file, data in files.items()})}


def svhn(patch: Patch) -> Files:
    files, split_list = {}, {}
    for part, count in (("train", 20), ("test", 10)):
        name = f"{part}_32x32.mat"
        labels = (np.arange(count, dtype=np.uint8) % 10 + 1)[:, np.newaxis]
        files[name] = mat(X=noise(32, 32, 3, count), y=labels)
        split_list[part] = [f"http://localhost:1/{name}", name, md5_of(files[name])]
    patch.setattr(datasets.SVHN, "split_list", split_list)
    return files


def usps(_: Patch) -> Files:
    rows = [" ".join([str(label), *(f"{pixel}:{label / 10}" for pixel in range(1, 257))]) for label in range(1, 11)]
    return dict.fromkeys(("usps.bz2", "usps.t.bz2"), bz2.compress("\n".join(rows).encode()))


def stl10(patch: Patch) -> Files:
    files = {"class_names.txt": "\n".join(f"kind {i}" for i in range(10)).encode()}
    for name, _ in datasets.STL10.train_list + datasets.STL10.test_list:
        files[name] = (noise(10, 3, 96, 96) if "_X" in name else np.arange(1, 11, dtype=np.uint8)).tobytes()
    for key in ("train_list", "test_list"):
        of_part = [[name, md5_of(files[name])] for name, _ in getattr(datasets.STL10, key)]
        patch.setattr(datasets.STL10, key, of_part)
    return {"stl10_binary.tar.gz": tar({f"stl10_binary/{name}": data for name, data in files.items()})}


def semeion(patch: Patch) -> Files:
    data = "\n".join(
        " ".join([*["1.0000"] * 256, *("1" if label == digit else "0" for digit in range(10))]) for label in range(10)
    ).encode()
    patch.setattr(datasets.SEMEION, "md5_checksum", md5_of(data))
    return {"semeion.data": data}


def caltech101(_: Patch) -> Files:
    classes = {"BACKGROUND_Google": 2, "anchor": 3, "barrel": 2}
    images = {
        f"101_ObjectCategories/{name}/image_{number:04d}.jpg": jpeg(
            6 + number, 8, shade=number, mode="L" if number == 2 else "RGB"
        )
        for name, count in classes.items()
        for number in range(1, count + 1)
    }
    return {"caltech101/caltech-101.zip": zipped({"caltech-101/101_ObjectCategories.tar.gz": tar(images)})}


def caltech256(_: Patch) -> Files:
    images = {
        f"256_ObjectCategories/{label:03d}.{name}/{label:03d}_{number:04d}.jpg": jpeg(shade=10 * label + number)
        for label, name in ((1, "ak47"), (2, "american-flag"))
        for number in (1, 2)
    }
    return {"caltech256/256_ObjectCategories.tar": tar(images, "")}


def flowers102(patch: Patch) -> Files:
    images = {f"jpg/image_{number:05d}.jpg": jpeg(shade=number) for number in range(1, 13)}
    ids = {"trnid": [9, 2, 3, 4], "valid": [5, 6, 7, 8], "tstid": [1, 10, 11, 12]}
    contents = {
        "image": ("102flowers.tgz", tar(images)),
        "label": ("imagelabels.mat", mat(labels=np.array([[1, 2, 3, 102] * 3]))),
        "setid": ("setid.mat", mat(**ids)),
    }
    checked = {key: (name, md5_of(data)) for key, (name, data) in contents.items()}
    patch.setattr(datasets.Flowers102, "_file_dict", checked)
    return {f"flowers-102/{name}": data for name, data in contents.values()}


def oxford_pets(_: Patch) -> Files:
    names = [f"{breed}_{number}" for breed in ("Abyssinian", "yorkshire_terrier") for number in (1, 2)]
    images = {f"images/{name}.jpg": jpeg(shade=index) for index, name in enumerate(names)}
    listing = "\n".join(f"{name} {1 + (index > 1)} 1 1" for index, name in enumerate(names)).encode()
    archives = {
        "images.tar.gz": tar(images),
        "annotations.tar.gz": tar({"annotations/trainval.txt": listing, "annotations/test.txt": listing}),
    }
    return {f"oxford-iiit-pet/{name}": data for name, data in archives.items()}


def eurosat(_: Patch) -> Files:
    names = ("AnnualCrop", "Forest", "River")
    return {"eurosat/EuroSAT.zip": zipped({f"2750/{name}/{name}_1.jpg": jpeg(64, 64) for name in names})}


def dtd(_: Patch) -> Files:
    names = {"banded": ["1", "2", "3"], "woven": ["1", "2", "3"]}
    files = {f"dtd/images/{kind}/{kind}_{n}.jpg": jpeg() for kind, numbers in names.items() for n in numbers}
    for number, part in enumerate(("train", "val", "test"), 1):
        listing = "\n".join(f"{kind}/{kind}_{number}.jpg" for kind in names)
        files[f"dtd/labels/{part}1.txt"] = listing.encode()
    return {"dtd/dtd-r1.0.1.tar.gz": tar(files)}


def gtsrb(_: Patch) -> Files:
    training = {
        f"GTSRB/Training/{label:05d}/00000_0000{label}.ppm": jpeg(shade=20 * label, kind="PPM") for label in range(3)
    }
    test = {
        f"GTSRB/Final_Test/Images/0000{number}.ppm": jpeg(shade=100 + 20 * number, kind="PPM") for number in range(3)
    }
    rows = "\n".join(["Filename;Width;Height;ClassId", *(f"0000{number}.ppm;8;6;{number}" for number in range(3))])
    archives = {
        "GTSRB-Training_fixed.zip": zipped(training),
        "GTSRB_Final_Test_Images.zip": zipped(test),
        "GTSRB_Final_Test_GT.zip": zipped({"GT-final_test.csv": rows.encode()}),
    }
    return {f"gtsrb/{name}": data for name, data in archives.items()}


def food101(_: Patch) -> Files:
    files = {f"food-101/images/{kind}/{number}.jpg": jpeg() for kind in ("apple_pie", "waffles") for number in (1, 2)}
    for number, part in enumerate(("train", "test"), 1):
        listing = {kind: [f"{kind}/{number}"] for kind in ("apple_pie", "waffles")}
        files[f"food-101/meta/{part}.json"] = json.dumps(listing).encode()
    return {"food-101.tar.gz": tar(files)}


def imagenette(_: Patch) -> Files:
    kinds = list(datasets.Imagenette._WNID_TO_CLASS)
    files = {f"imagenette2/{part}/{kind}/{kind}_1.JPEG": jpeg() for part in ("train", "val") for kind in kinds}
    return {"imagenette2.tgz": tar(files)}


def folders_a_part(folder: str, kinds: tuple[str, str]) -> Files:
    """Country211 and RenderedSST2: a folder a part, and in it a folder a class."""
    parts = ("train", "valid", "test")
    files = {f"{folder}/{part}/{kind}/1.png": jpeg(kind="PNG") for part in parts for kind in kinds}
    return {f"{folder}.tgz": tar(files)}


def aircraft(_: Patch) -> Files:
    folder = "fgvc-aircraft-2013b/data"
    files = {f"{folder}/images/{number}.jpg": jpeg() for number in (1, 2, 3)}
    files[f"{folder}/variants.txt"] = b"707-320\nMD 11\n"
    for number, part in enumerate(("train", "val", "test"), 1):
        files[f"{folder}/images_variant_{part}.txt"] = f"{number} MD 11\n".encode()
    return {"fgvc-aircraft-2013b.tar.gz": tar(files)}


def sun397(_: Patch) -> Files:
    files = {f"SUN397/{name[0]}/{name}/sun_{n}.jpg": jpeg(shade=n) for name in ("abbey", "zoo/cage") for n in (2, 1)}
    return {"SUN397.tar.gz": tar({"SUN397/ClassName.txt": b"/a/abbey\n/z/zoo/cage\n", **files})}


MAKERS: dict[str, Callable[[Patch], Files]] = {
    "CIFAR10": lambda patch: cifar(patch, "CIFAR10"),
    "CIFAR100": lambda patch: cifar(patch, "CIFAR100"),
    "Caltech101": caltech101,
    "Caltech256": caltech256,
    "Country211": lambda _: folders_a_part("country211", ("AD", "ZW")),
    "DTD": dtd,
    "EMNIST": emnist,
    "EuroSAT": eurosat,
    "FGVCAircraft": aircraft,
    "FashionMNIST": lambda _: mnist("FashionMNIST"),
    "Flowers102": flowers102,
    "Food101": food101,
    "GTSRB": gtsrb,
    "Imagenette": imagenette,
    "KMNIST": lambda _: mnist("KMNIST"),
    "MNIST": lambda _: mnist("MNIST"),
    "OxfordIIITPet": oxford_pets,
    "QMNIST": qmnist,
    "RenderedSST2": lambda _: folders_a_part("rendered-sst2", ("negative", "positive")),
    "SEMEION": semeion,
    "STL10": stl10,
    "SUN397": sun397,
    "SVHN": svhn,
    "USPS": usps,
}
"""Each makes the files, and tells torchvision's class the md5s of those that it checks when it reads them."""


def accept(patch: Patch, made: Files) -> None:
    """Make torchvision take these files for the published ones when it checks their md5s."""
    checked = {name.rsplit("/", 1)[-1]: md5_of(data) for name, data in made.items()}

    def check_md5(path: str | Path, md5: str) -> bool:
        found = md5_of(Path(path).read_bytes())
        return found == checked.get(Path(path).name, md5)

    patch.setattr("torchvision.datasets.utils.check_md5", check_md5)
