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


def mnist(patch: Patch, name: str = "MNIST") -> Files:
    files, resources = {}, []
    for part, count in (("train", 20), ("t10k", 10)):
        images, labels = noise(count, 28, 28), np.arange(count, dtype=np.uint8) % 10
        for file, array in (("images-idx3", images), ("labels-idx1", labels)):
            data = gzip.compress(idx(array))
            resources.append((f"{part}-{file}-ubyte.gz", md5_of(data)))
            files[f"{name}/raw/{resources[-1][0]}"] = data
    patch.setattr(getattr(datasets, name), "resources", resources)
    return files


def qmnist(patch: Patch) -> Files:
    files, resources = {}, {}
    for part, count in (("train", 20), ("test", 10)):
        labels = np.stack([np.arange(count) % 10, *[np.full(count, 99)] * 7], axis=1).astype(np.int32)
        of_part = {"images-idx3-ubyte": idx(noise(count, 28, 28)), "labels-idx2-int": idx(labels)}
        packed = {f"qmnist-{part}-{name}.gz": gzip.compress(data) for name, data in of_part.items()}
        resources[part] = [(f"http://localhost:1/{name}", md5_of(data)) for name, data in packed.items()]
        files |= {f"QMNIST/raw/{name}": data for name, data in packed.items()}
    patch.setattr(datasets.QMNIST, "resources", resources)
    return files


def emnist(patch: Patch) -> Files:
    packed = {}
    for variant, labels in (("letters", np.arange(1, 27)), ("digits", np.arange(10)), ("balanced", np.arange(47))):
        for part in ("train", "test"):
            prefix = f"gzip/emnist-{variant}-{part}"
            packed[f"{prefix}-images-idx3-ubyte.gz"] = gzip.compress(idx(noise(len(labels), 28, 28)))
            packed[f"{prefix}-labels-idx1-ubyte.gz"] = gzip.compress(idx(labels.astype(np.uint8)))
    archive = zipped(packed)
    patch.setattr(datasets.EMNIST, "md5", md5_of(archive))
    return {"EMNIST/raw/gzip.zip": archive}


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
    archive = tar({f"{of_class.base_folder}/{file}": data for file, data in files.items()})
    patch.setattr(of_class, "tgz_md5", md5_of(archive))
    return {of_class.filename: archive}


def svhn(patch: Patch) -> Files:
    files, split_list = {}, {}
    for part, count in (("train", 20), ("test", 10)):
        name = f"{part}_32x32.mat"
        labels = (np.arange(count, dtype=np.uint8) % 10 + 1)[:, np.newaxis]
        files[name] = mat(X=noise(32, 32, 3, count), y=labels)
        split_list[part] = [f"http://localhost:1/{name}", name, md5_of(files[name])]
    patch.setattr(datasets.SVHN, "split_list", split_list)
    return files


def usps(patch: Patch) -> Files:
    files, split_list = {}, {}
    for part, name in (("train", "usps.bz2"), ("test", "usps.t.bz2")):
        rows = [" ".join([str(label), *(f"{pixel}:{label / 10}" for pixel in range(1, 257))]) for label in range(1, 11)]
        files[name] = bz2.compress("\n".join(rows).encode())
        split_list[part] = [f"http://localhost:1/{name}", name, md5_of(files[name])]
    patch.setattr(datasets.USPS, "split_list", split_list)
    return files


def stl10(patch: Patch) -> Files:
    files = {"class_names.txt": "\n".join(f"kind {i}" for i in range(10)).encode()}
    for name, _ in datasets.STL10.train_list + datasets.STL10.test_list:
        files[name] = (noise(10, 3, 96, 96) if "_X" in name else np.arange(1, 11, dtype=np.uint8)).tobytes()
    for key in ("train_list", "test_list"):
        of_part = [[name, md5_of(files[name])] for name, _ in getattr(datasets.STL10, key)]
        patch.setattr(datasets.STL10, key, of_part)
    archive = tar({f"stl10_binary/{name}": data for name, data in files.items()})
    patch.setattr(datasets.STL10, "tgz_md5", md5_of(archive))
    return {"stl10_binary.tar.gz": archive}


def semeion(patch: Patch) -> Files:
    data = "\n".join(
        " ".join([*["1.0000"] * 256, *("1" if label == digit else "0" for digit in range(10))]) for label in range(10)
    ).encode()
    patch.setattr(datasets.SEMEION, "md5_checksum", md5_of(data))
    return {"semeion.data": data}


def caltech101(patch: Patch) -> Files:
    classes = {"BACKGROUND_Google": 2, "anchor": 3, "barrel": 2}
    images = {
        f"101_ObjectCategories/{name}/image_{number:04d}.jpg": jpeg(
            6 + number, 8, shade=number, mode="L" if number == 2 else "RGB"
        )
        for name, count in classes.items()
        for number in range(1, count + 1)
    }
    packed = zipped({"caltech-101/101_ObjectCategories.tar.gz": tar(images)})
    known_md5(patch, "caltech.py", "caltech-101.zip", md5_of(packed))
    return {"caltech101/caltech-101.zip": packed}


def caltech256(patch: Patch) -> Files:
    images = {
        f"256_ObjectCategories/{label:03d}.{name}/{label:03d}_{number:04d}.jpg": jpeg(shade=10 * label + number)
        for label, name in ((1, "ak47"), (2, "american-flag"))
        for number in (1, 2)
    }
    packed = tar(images, "")
    known_md5(patch, "caltech.py", "256_ObjectCategories.tar", md5_of(packed))
    return {"caltech256/256_ObjectCategories.tar": packed}


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


def oxford_pets(patch: Patch) -> Files:
    names = [f"{breed}_{number}" for breed in ("Abyssinian", "yorkshire_terrier") for number in (1, 2)]
    images = {f"images/{name}.jpg": jpeg(shade=index) for index, name in enumerate(names)}
    listing = "\n".join(f"{name} {1 + (index > 1)} 1 1" for index, name in enumerate(names)).encode()
    archives = {
        "images.tar.gz": tar(images),
        "annotations.tar.gz": tar({"annotations/trainval.txt": listing, "annotations/test.txt": listing}),
    }
    resources = tuple((f"http://localhost:1/{name}", md5_of(data)) for name, data in archives.items())
    patch.setattr(datasets.OxfordIIITPet, "_RESOURCES", resources)
    return {f"oxford-iiit-pet/{name}": data for name, data in archives.items()}


def eurosat(patch: Patch) -> Files:
    archive = zipped({f"2750/{name}/{name}_1.jpg": jpeg(64, 64) for name in ("AnnualCrop", "Forest", "River")})
    known_md5(patch, "eurosat.py", "EuroSAT.zip", md5_of(archive))
    return {"eurosat/EuroSAT.zip": archive}


def dtd(patch: Patch) -> Files:
    names = {"banded": ["1", "2", "3"], "woven": ["1", "2", "3"]}
    files = {f"dtd/images/{kind}/{kind}_{n}.jpg": jpeg() for kind, numbers in names.items() for n in numbers}
    for number, part in enumerate(("train", "val", "test"), 1):
        listing = "\n".join(f"{kind}/{kind}_{number}.jpg" for kind in names)
        files[f"dtd/labels/{part}1.txt"] = listing.encode()
    archive = tar(files)
    patch.setattr(datasets.DTD, "_MD5", md5_of(archive))
    return {"dtd/dtd-r1.0.1.tar.gz": archive}


def gtsrb(patch: Patch) -> Files:
    training = {f"GTSRB/Training/{label:05d}/00000_0000{label}.ppm": jpeg(kind="PPM") for label in range(3)}
    test = {f"GTSRB/Final_Test/Images/0000{number}.ppm": jpeg(kind="PPM") for number in range(3)}
    rows = "\n".join(["Filename;Width;Height;ClassId", *(f"0000{number}.ppm;8;6;{number}" for number in range(3))])
    archives = {
        "GTSRB-Training_fixed.zip": zipped(training),
        "GTSRB_Final_Test_Images.zip": zipped(test),
        "GTSRB_Final_Test_GT.zip": zipped({"GT-final_test.csv": rows.encode()}),
    }
    for name, data in archives.items():
        known_md5(patch, "gtsrb.py", name, md5_of(data))
    return {f"gtsrb/{name}": data for name, data in archives.items()}


def food101(patch: Patch) -> Files:
    files = {f"food-101/images/{kind}/{number}.jpg": jpeg() for kind in ("apple_pie", "waffles") for number in (1, 2)}
    for number, part in enumerate(("train", "test"), 1):
        listing = {kind: [f"{kind}/{number}"] for kind in ("apple_pie", "waffles")}
        files[f"food-101/meta/{part}.json"] = json.dumps(listing).encode()
    archive = tar(files)
    patch.setattr(datasets.Food101, "_MD5", md5_of(archive))
    return {"food-101.tar.gz": archive}


def imagenette(patch: Patch) -> Files:
    kinds = list(datasets.Imagenette._WNID_TO_CLASS)
    files = {f"imagenette2/{part}/{kind}/{kind}_1.JPEG": jpeg() for part in ("train", "val") for kind in kinds}
    archive = tar(files)
    url, _ = datasets.Imagenette._ARCHIVES["full"]
    patch.setitem(datasets.Imagenette._ARCHIVES, "full", (url, md5_of(archive)))
    return {"imagenette2.tgz": archive}


def folders_a_part(patch: Patch, name: str, folder: str, kinds: tuple[str, str]) -> Files:
    """Country211 and RenderedSST2: a folder a part, and in it a folder a class."""
    parts = ("train", "valid", "test")
    files = {f"{folder}/{part}/{kind}/1.png": jpeg(kind="PNG") for part in parts for kind in kinds}
    archive = tar(files)
    patch.setattr(getattr(datasets, name), "_MD5", md5_of(archive))
    return {f"{folder}.tgz": archive}


def aircraft(patch: Patch) -> Files:  # noqa: ARG001  # torchvision knows no md5 of it
    folder = "fgvc-aircraft-2013b/data"
    files = {f"{folder}/images/{number}.jpg": jpeg() for number in (1, 2, 3)}
    files[f"{folder}/variants.txt"] = b"707-320\nMD 11\n"
    for number, part in enumerate(("train", "val", "test"), 1):
        files[f"{folder}/images_variant_{part}.txt"] = f"{number} MD 11\n".encode()
    return {"fgvc-aircraft-2013b.tar.gz": tar(files)}


def sun397(patch: Patch) -> Files:
    files = {f"SUN397/{name[1]}/{name}/sun_{n}.jpg": jpeg(shade=n) for name in ("abbey", "zoo/cage") for n in (2, 1)}
    archive = tar({"SUN397/ClassName.txt": b"/a/abbey\n/z/zoo/cage\n", **sun397_places(files)})
    patch.setattr(datasets.SUN397, "_DATASET_MD5", md5_of(archive))
    return {"SUN397.tar.gz": archive}


def sun397_places(files: Files) -> Files:
    """Below the letter that each name begins with."""
    return {f"SUN397/{path.split('/', 2)[2][0]}/{path.split('/', 2)[2]}": data for path, data in files.items()}


def known_md5(patch: Patch, module: str, file: str, md5: str) -> None:
    """For a class that has its archive's md5 in the middle of a function: give it ours for that file."""
    functions: dict[str, Any] = vars(__import__(f"torchvision.datasets.{module[:-3]}", fromlist=["x"]))
    original: Callable[..., None] = functions["download_and_extract_archive"]

    def download(url: str, *arguments: Any, **named: Any) -> None:
        original(url, *arguments, **(named | {"md5": md5} if url.endswith(file) else named))

    patch.setitem(functions, "download_and_extract_archive", download)


MAKERS: dict[str, Callable[[Patch], Files]] = {
    "CIFAR10": lambda patch: cifar(patch, "CIFAR10"),
    "CIFAR100": lambda patch: cifar(patch, "CIFAR100"),
    "Caltech101": caltech101,
    "Caltech256": caltech256,
    "Country211": lambda patch: folders_a_part(patch, "Country211", "country211", ("AD", "ZW")),
    "DTD": dtd,
    "EMNIST": emnist,
    "EuroSAT": eurosat,
    "FGVCAircraft": aircraft,
    "FashionMNIST": lambda patch: mnist(patch, "FashionMNIST"),
    "Flowers102": flowers102,
    "Food101": food101,
    "GTSRB": gtsrb,
    "Imagenette": imagenette,
    "KMNIST": lambda patch: mnist(patch, "KMNIST"),
    "MNIST": mnist,
    "OxfordIIITPet": oxford_pets,
    "QMNIST": qmnist,
    "RenderedSST2": lambda patch: folders_a_part(patch, "RenderedSST2", "rendered-sst2", ("negative", "positive")),
    "SEMEION": semeion,
    "STL10": stl10,
    "SUN397": sun397,
    "SVHN": svhn,
    "USPS": usps,
}
"""Each makes the files, and tells torchvision's class their md5s."""
