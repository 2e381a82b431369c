"""torchvision's data sets: their files fetched and unpacked, their images as arrays or decoded when asked for.

torchvision reads the files, but doesn't fetch them: its downloads start anew where they broke off, write to the final
name, and unpack whatever an archive says wherever it says. Nor can it be asked which files it would fetch, hence the
list of them here; a test compares it with torchvision's own.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from photofinish.data.archives import unpack
from photofinish.data.fetching import Fetcher
from photofinish.data.images import (
    Int64Array,
    LabelledImages,
    Shape,
    UInt8Array,
    common_shape,
    decode_all,
    prepared,
    shape_in_file,
)
from photofinish.errors import UserError
from photofinish.params.catalogue import DATASETS
from photofinish.params.datasets import DatasetPlan, EmnistDataset, TorchvisionDataset

_Arguments = Mapping[str, Any]
_ReadRows = Callable[[Int64Array], UInt8Array]
_ARCHIVES = (".gz", ".tar", ".tgz", ".zip")  # USPS's .bz2 is read as it is
_NO_CLASS = "N/A"  # EMNIST's letters begin at 1, and torchvision calls the class before them so


@dataclass(frozen=True)
class Files:
    """What one data set is downloaded as."""

    address: str
    """of the folder that has all its files"""
    md5_of: Mapping[str, str | None]
    """each file's"""
    folder: str = "."
    """below the data set's own folder, and in a mirror; archives are unpacked where they lie"""
    archives_within: str | None = None
    """a folder of archives, where the archive itself holds one"""
    also_at: tuple[str, ...] = ()
    """asked where the first address fails"""


def fetch(plan: DatasetPlan, folder: Path) -> None:
    """Fetch the files into `folder`, as torchvision keeps them; archives go once they are unpacked."""
    files = FILES[plan.dataset.source]
    fetcher = Fetcher(plan.mirror)
    place = folder / files.folder
    for name, md5 in files.md5_of.items():
        urls = [f"{address}{name}" for address in (files.address, *files.also_at)]
        fetcher.fetch(urls, place / name, where=str(PurePosixPath(files.folder, name)), md5=md5)
        if name.endswith(_ARCHIVES):
            unpack(place / name, place)
            (place / name).unlink()
    if files.archives_within:
        for archive in sorted((place / files.archives_within).glob("*.gz")):
            if not isinstance(plan.dataset, EmnistDataset) or f"-{plan.dataset.variant}-" in archive.name:
                unpack(archive, place)
        shutil.rmtree(place / files.archives_within)
    try:
        for _, _ in _parts(plan, folder):
            pass
    except (RuntimeError, OSError) as error:
        raise UserError(
            f"{' and '.join(files.md5_of)} of {plan.dataset.source}: not what torchvision expects"
            f" ({' '.join(str(error).split())}): delete it where downloads are kept ({fetcher.cache}) and run again; if"
            " that changes nothing, get a good copy and let `mirror:` in params.yaml name its folder"
        ) from error


def read(plan: DatasetPlan, folder: Path) -> LabelledImages:
    """The images of all parts together, in an order that doesn't depend on the file system."""
    assert isinstance(plan.dataset, TorchvisionDataset)
    try:
        parts = list(_parts(plan, folder))
    except RuntimeError as error:  # what torchvision raises where a file is missing, or another than it should be
        raise UserError(f"{folder} can't be read: {error}; run `dvc repro --force download`") from error
    first, _ = parts[0]
    if hasattr(first, "data"):
        labels = [np.asarray(_labels(part), dtype=np.int64) for part, _ in parts]
        shape, read_rows = _images_in_memory([part for part, _ in parts], plan.dataset)
    else:
        files = [_labelled_files(part, arguments) for part, arguments in parts]
        labels = [np.array([label for _, label in part], dtype=np.int64) for part in files]
        shape, read_rows = _images_in_files([path for part in files for path, _ in part], plan.name, plan.dataset)
    together, class_names = _from_zero(np.concatenate(labels), first)
    rows = np.split(np.arange(len(together)), np.cumsum([len(part) for part in labels]))
    own_parts = dict(zip(DATASETS[plan.dataset.source], rows, strict=False))  # an undivided one has no parts
    return LabelledImages(shape, together, class_names, read_rows, own_parts)


def _parts(plan: DatasetPlan, folder: Path) -> Iterator[tuple[Any, _Arguments]]:
    """torchvision's data set of each part, of all images where it isn't divided; and what asked for it."""
    from torchvision import datasets

    variant = {"split": plan.dataset.variant} if isinstance(plan.dataset, EmnistDataset) else {}
    of_source = getattr(datasets, plan.dataset.source)
    for arguments in list(DATASETS[plan.dataset.source].values()) or [{}]:
        yield of_source(root=str(folder), **variant, **arguments), arguments


def _labels(part: Any) -> Any:
    labels = part.targets if hasattr(part, "targets") else part.labels
    return labels[:, 0] if getattr(labels, "ndim", 1) == 2 else labels  # QMNIST has more to say of each image


def _from_zero(labels: Int64Array, part: Any) -> tuple[Int64Array, tuple[str, ...]]:
    listed = getattr(part, "classes", None) or getattr(part, "categories", None) or ()
    names = tuple(name if isinstance(name, str) else name[0] for name in listed)  # Imagenette has several for each
    if names and names[0] == _NO_CLASS:
        labels, names = labels - 1, names[1:]
    names = names or tuple(str(number) for number in range(int(labels.max()) + 1))
    if labels.min() < 0 or labels.max() >= len(names):
        raise UserError(f"labels go from {labels.min()} to {labels.max()}, but there are {len(names)} classes")
    return labels, names


def _images_in_memory(parts: list[Any], dataset: TorchvisionDataset) -> tuple[Shape, _ReadRows]:
    images = np.concatenate([np.asarray(part.data) for part in parts])
    # torchvision holds grey images without channels, CIFAR's with theirs last, the others' with theirs first.
    if images.ndim == 3:
        images = images[:, np.newaxis]
    elif images.shape[1] != 3:
        images = images.transpose(0, 3, 1, 2)
    channels, height, width = images.shape[1:]
    shape = dataset.channels or channels, *(dataset.size or (height, width))
    if shape == (channels, height, width):
        return shape, lambda rows: images[rows]
    if shape[1:] == (height, width) and channels == 1:
        return shape, lambda rows: np.repeat(images[rows], shape[0], axis=1)

    def as_pil(image: UInt8Array) -> Image.Image:
        return Image.fromarray(image[0] if channels == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))

    return shape, lambda rows: np.stack([prepared(as_pil(image), shape[1:], shape[0]) for image in images[rows]])


def _images_in_files(paths: list[Path], name: str, dataset: TorchvisionDataset) -> tuple[Shape, _ReadRows]:
    """Of 3 channels unless the settings say otherwise, as torchvision has them all."""
    size, channels = dataset.size, dataset.channels or 3
    if size is None:
        with ThreadPoolExecutor() as pool:
            size = common_shape(name, pool.map(shape_in_file, paths), None, channels)[1:]
    return (channels, *size), lambda rows: decode_all([paths[row] for row in rows], size, channels)


def _labelled_files(part: Any, arguments: _Arguments) -> list[tuple[Path, int]]:
    """Each image's file and its label, sorted; a class that takes a loader is given one that hands back the path."""
    if hasattr(part, "loader"):
        part.loader = Path
        return sorted(part[row] for row in range(len(part)))
    return sorted(_IMAGE_FILES[type(part).__name__](part, arguments))


def _of_caltech(folder: str, name: str, part: Any, _: _Arguments) -> Iterator[tuple[Path, int]]:
    for number, label in zip(part.index, part.y, strict=True):
        file = name.format(number=number, category=label + 1)
        yield Path(part.root, folder, part.categories[label], file), label


def _of_gtsrb(part: Any, arguments: _Arguments) -> Iterator[tuple[Path, int]]:
    folder = Path(part.root, "gtsrb")
    if arguments["split"] == "train":
        for path in folder.glob("GTSRB/Training/*/*.ppm"):
            yield path, int(path.parent.name)
    else:
        with (folder / "GT-final_test.csv").open(encoding="utf-8") as listing:
            for row in csv.DictReader(listing, delimiter=";", skipinitialspace=True):
                yield folder / "GTSRB/Final_Test/Images" / row["Filename"], int(row["ClassId"])


def _of_oxford_pets(part: Any, arguments: _Arguments) -> Iterator[tuple[Path, int]]:
    folder = Path(part.root, "oxford-iiit-pet")
    listing = folder / "annotations" / f"{arguments['split']}.txt"
    for line in listing.read_text(encoding="utf-8").splitlines():
        name, number, *_ = line.split()
        yield folder / "images" / f"{name}.jpg", int(number) - 1


_IMAGE_FILES: dict[str, Callable[[Any, _Arguments], Iterator[tuple[Path, int]]]] = {
    "Caltech101": partial(_of_caltech, "101_ObjectCategories", "image_{number:04d}.jpg"),
    "Caltech256": partial(_of_caltech, "256_ObjectCategories", "{category:03d}_{number:04d}.jpg"),
    "GTSRB": _of_gtsrb,
    "OxfordIIITPet": _of_oxford_pets,
}
"""Of the classes that open files themselves, and don't say which: how each finds an image's file."""


def _mnist(*md5s: str) -> dict[str, str]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return {f"{name}-ubyte.gz": md5 for name, md5 in zip(names, md5s, strict=True)}


FILES: dict[str, Files] = {
    "CIFAR10": Files(
        "https://www.cs.toronto.edu/~kriz/", {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"}
    ),
    "CIFAR100": Files(
        "https://www.cs.toronto.edu/~kriz/", {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"}
    ),
    "Caltech101": Files(
        "https://data.caltech.edu/records/mzrjq-6wc02/files/",
        {"caltech-101.zip": "3138e1922a9193bfa496528edbbc45d0"},
        "caltech101",
        archives_within="caltech-101",
    ),
    "Caltech256": Files(
        "https://data.caltech.edu/records/nyy15-4j048/files/",
        {"256_ObjectCategories.tar": "67b4f42ca05d46448c6bb8ecd2220f6d"},
        "caltech256",
    ),
    "Country211": Files(
        "https://openaipublic.azureedge.net/clip/data/", {"country211.tgz": "84988d7644798601126c29e9877aab6a"}
    ),
    "DTD": Files(
        "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/",
        {"dtd-r1.0.1.tar.gz": "fff73e5086ae6bdbea199a49dfb8a4c1"},
        "dtd",
    ),
    "EMNIST": Files(
        "https://biometrics.nist.gov/cs_links/EMNIST/",
        {"gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e"},
        "EMNIST/raw",
        archives_within="gzip",
    ),
    "EuroSAT": Files(
        "https://huggingface.co/datasets/torchgeo/eurosat/resolve/c877bcd43f099cd0196738f714544e355477f3fd/",
        {"EuroSAT.zip": "c8fa014336c82ac7804f0398fcb19387"},
        "eurosat",
    ),
    "FGVCAircraft": Files(
        "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/", {"fgvc-aircraft-2013b.tar.gz": None}
    ),
    "FashionMNIST": Files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        _mnist(
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        "FashionMNIST/raw",
    ),
    "Flowers102": Files(
        "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
        {
            "102flowers.tgz": "52808999861908f626f3c1f4e79d11fa",
            "imagelabels.mat": "e0620be6f572b9609742df49c70aed4d",
            "setid.mat": "a5357ecc9cb78c4bef273ce3793fc85c",
        },
        "flowers-102",
    ),
    "Food101": Files("http://data.vision.ee.ethz.ch/cvl/", {"food-101.tar.gz": "85eeb15f3717b99a5da872d97d918f87"}),
    "GTSRB": Files(
        "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370/",
        {
            "GTSRB-Training_fixed.zip": "513f3c79a4c5141765e10e952eaa2478",
            "GTSRB_Final_Test_Images.zip": "c7e4e6327067d32654124b0fe9e82185",
            "GTSRB_Final_Test_GT.zip": "fe31e9c9270bbcd7b84b7f21a9d9d9e5",
        },
        "gtsrb",
    ),
    "Imagenette": Files(
        "https://s3.amazonaws.com/fast-ai-imageclas/", {"imagenette2.tgz": "fe2fc210e6bb7c5664d602c3cd71e612"}
    ),
    "KMNIST": Files(
        "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        _mnist(
            "bdb82020997e1d708af4cf47b453dcf7",
            "e144d726b3acfaa3e44228e80efcd344",
            "5c965bf0a639b31b8f53240b1b52f4d7",
            "7320c461ea6c1c855c0b718fb2a4b134",
        ),
        "KMNIST/raw",
    ),
    "MNIST": Files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        _mnist(
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        "MNIST/raw",
        also_at=("http://yann.lecun.com/exdb/mnist/",),
    ),
    "OxfordIIITPet": Files(
        "https://www.robots.ox.ac.uk/~vgg/data/pets/data/",
        {"images.tar.gz": "5c4f3ee8e5d25df40f4fd59a7f44e54c", "annotations.tar.gz": "95a8c909bbe2e81eed6a22bccdf3f68f"},
        "oxford-iiit-pet",
    ),
    "QMNIST": Files(
        "https://raw.githubusercontent.com/facebookresearch/qmnist/master/",
        {
            "qmnist-train-images-idx3-ubyte.gz": "ed72d4157d28c017586c42bc6afe6370",
            "qmnist-train-labels-idx2-int.gz": "0058f8dd561b90ffdd0f734c6a30e5e4",
            "qmnist-test-images-idx3-ubyte.gz": "1394631089c404de565df7b7aeaf9412",
            "qmnist-test-labels-idx2-int.gz": "5b5b05890a5e13444e108efe57b788aa",
        },
        "QMNIST/raw",
    ),
    "RenderedSST2": Files(
        "https://openaipublic.azureedge.net/clip/data/", {"rendered-sst2.tgz": "2384d08e9dcfa4bd55b324e610496ee5"}
    ),
    "SEMEION": Files(
        "http://archive.ics.uci.edu/ml/machine-learning-databases/semeion/",
        {"semeion.data": "cb545d371d2ce14ec121470795a77432"},
    ),
    "STL10": Files(
        "http://ai.stanford.edu/~acoates/stl10/", {"stl10_binary.tar.gz": "91f7769df0f17e558f3565bffb0c7dfb"}
    ),
    "SUN397": Files(
        "http://vision.princeton.edu/projects/2010/SUN/", {"SUN397.tar.gz": "8ca2778205c41d23104230ba66911c7a"}
    ),
    "SVHN": Files(
        "http://ufldl.stanford.edu/housenumbers/",
        {"train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373", "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"},
    ),
    "USPS": Files(
        "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",
        {"usps.bz2": "ec16c51db3855ca6c91edd34d0e9b197", "usps.t.bz2": "8ea070ee2aca1ac39742fdd1ef5ed118"},
    ),
}
