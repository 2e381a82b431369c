"""Small archives in the real formats are unpacked and loaded by torchvision's code."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import TypeAdapter
from torchvision import datasets

from photofinish.config.catalogue import DATASETS
from photofinish.config.datasets import Dataset, DatasetPlan
from photofinish.data.raw_data import read_raw
from photofinish.data.sources import download
from photofinish.errors import UserError

Files = dict[str, bytes]
"""Content of files, by their path below torchvision's root."""


def jpeg(height: int = 6, *, shade: int = 0, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (8, height), (shade,) * 3 if mode == "RGB" else shade).save(file, "JPEG")
    return file.getvalue()


def tar(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def mnist() -> Files:
    """The kind of number, the count of axes, their lengths, the numbers."""
    files = {}
    for part, count in (("train", 20), ("t10k", 10)):
        images = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        for file, array in (("images-idx3", images), ("labels-idx1", labels)):
            lengths = b"".join(length.to_bytes(4, "big") for length in array.shape)
            data = bytes([0, 0, 8, array.ndim]) + lengths + array.tobytes()
            files[f"MNIST/raw/{part}-{file}-ubyte.gz"] = gzip.compress(data)
    return files


def caltech101() -> Files:
    """Images of several sizes, of which some are grey, in an archive in an archive."""
    images = {
        f"101_ObjectCategories/{name}/image_{number:04d}.jpg": jpeg(
            6 + number, shade=number, mode="L" if number == 2 else "RGB"
        )
        for name, count in {"BACKGROUND_Google": 2, "anchor": 3, "barrel": 2}.items()
        for number in range(1, count + 1)
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("caltech-101/101_ObjectCategories.tar.gz", tar(images))
    return {"caltech101/caltech-101.zip": packed.getvalue()}


def imagenette() -> Files:
    kinds = list(datasets.Imagenette._WNID_TO_CLASS)
    folders = [f"imagenette2/{part}/{kind}" for part in ("train", "val") for kind in kinds]
    return {"imagenette2.tgz": tar({f"{folder}/1.JPEG": jpeg() for folder in folders})}


MAKERS: dict[str, Callable[[], Files]] = {
    "Caltech101": caltech101,
    "Imagenette": imagenette,
    "MNIST": mnist,
}


def md5_of(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def make_root(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the files, and make torchvision take them for those whose md5 it knows."""
    made = MAKERS[source]()
    for name, data in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    checked = {name.rsplit("/", 1)[-1]: md5_of(data) for name, data in made.items()}

    def check_md5(path: str | Path, md5: str) -> bool:
        return md5_of(Path(path).read_bytes()) == checked.get(Path(path).name, md5)

    monkeypatch.setattr("torchvision.datasets.utils.check_md5", check_md5)
    return folder


def plan_of(source: str, root: Path | None, **settings: Any) -> DatasetPlan:
    drawn = {part: 0.2 for part in ("validation", "test") if part not in DATASETS[source]}
    values = {"source": source, "root": root and str(root), **drawn, **settings}
    return DatasetPlan(
        name="mine", dataset=TypeAdapter(Dataset).validate_python(values), local_files=None
    )


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("source", "shape", "counts", "names"),
    [
        ("Caltech101", (3, 5, 5), (), ("anchor", "barrel")),
        ("Imagenette", (3, 5, 5), (10, 10), ("tench", "English springer")),
        ("MNIST", (1, 28, 28), (20, 10), ("0 - zero", "1 - one")),
    ],
)
def test_each_is_unpacked_from_its_root_and_read_with_its_parts(
    source: str,
    shape: tuple[int, ...],
    counts: tuple[int, ...],
    names: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = {"size": 5} if shape[1] == 5 else {}
    plan = plan_of(source, make_root(source, tmp_path / "root", monkeypatch), **size)
    raw = read_raw(plan, tmp_path / "raw")
    images = raw.inputs[np.arange(len(raw.labels))]
    assert (images.dtype, images.shape[1:], raw.labels.dtype) == (np.uint8, shape, np.int64)
    assert list(raw.own_parts) == list(DATASETS[source])
    parts = [rows.tolist() for rows in raw.own_parts.values()]
    assert tuple(map(len, parts)) == counts
    assert [*chain.from_iterable(parts)] == [*range(sum(counts))]
    assert set(raw.labels.tolist()) == set(range(len(raw.class_names)))
    assert raw.class_names[:2] == names
    if source == "MNIST":
        for row, (shown, label) in enumerate(datasets.MNIST(str(tmp_path / "root"), train=True)):
            assert np.array_equal(images[row][0], np.asarray(shown))
            assert raw.labels[row] == label


@pytest.mark.parametrize("root", [None, "root"])
def test_a_failed_download_names_the_key_for_machines_without_internet(
    root: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    with pytest.raises(
        UserError, match=r"(?s)^data set 'mine': .*MNIST.*datasets\.mine\.root in params\.yaml"
    ):
        download(plan_of("MNIST", root and tmp_path / root), tmp_path / "raw")
    assert not (tmp_path / "raw").exists()


def test_downloads_are_kept_for_other_data_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_root("MNIST", tmp_path / ".photofinish/downloads", monkeypatch)
    download(plan_of("MNIST", None), tmp_path / "raw")
    for archive in (tmp_path / ".photofinish/downloads").rglob("*.gz"):
        archive.unlink()
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    assert len(read_raw(plan_of("MNIST", None, validation=3), tmp_path / "raw").labels) == 30
