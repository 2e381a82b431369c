"""torchvision's data sets: its real code that loads them, on small archives in the real formats from a mirror."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import ROOT
from faulty_server import FileServer, serving
from PIL import Image
from pydantic import TypeAdapter
from torchvision_archives import MAKERS, md5_of, tar

from photofinish.data import torchvision_source
from photofinish.data.images import LabelledImages
from photofinish.data.sources import download, read_raw
from photofinish.data.split import divide
from photofinish.data.torchvision_source import FILES
from photofinish.errors import MistakeError, UserError
from photofinish.params.catalogue import DATASETS
from photofinish.params.datasets import Dataset, DatasetPlan

REAL = ROOT.parent / "shared" / "datasets"
SHAPES = {
    "CIFAR10": (3, 32, 32), "CIFAR100": (3, 32, 32), "EuroSAT": (3, 64, 64), "SEMEION": (1, 16, 16),
    "STL10": (3, 96, 96), "SVHN": (3, 32, 32), "USPS": (1, 16, 16),
    **dict.fromkeys(["EMNIST", "FashionMNIST", "KMNIST", "MNIST", "QMNIST"], (1, 28, 28)),
}  # fmt: skip
COUNTS = {
    "CIFAR10": (50, 0, 10), "CIFAR100": (100, 0, 100), "Country211": (2, 2, 2), "DTD": (2, 2, 2),
    "FGVCAircraft": (1, 1, 1), "Flowers102": (4, 4, 4), "Food101": (2, 0, 2), "GTSRB": (3, 0, 3),
    "Imagenette": (10, 10, 0), "OxfordIIITPet": (4, 0, 4), "RenderedSST2": (2, 2, 2), "STL10": (10, 0, 10),
    "SVHN": (20, 0, 10), "USPS": (10, 0, 10), "EMNIST": (26, 0, 26),
    **dict.fromkeys(["FashionMNIST", "KMNIST", "MNIST", "QMNIST"], (20, 0, 10)),
}  # fmt: skip


def plan_of(source: str, mirror: Path | str | None, **settings: Any) -> DatasetPlan:
    variant = {"variant": "letters"} if source == "EMNIST" else {}
    own = DATASETS.get(source, ())
    drawn = {part: 0.2 for part in ("validation", "test") if part not in own}
    dataset: Dataset = TypeAdapter(Dataset).validate_python({"source": source, **variant, **drawn, **settings})
    return DatasetPlan(name="mine", dataset=dataset, mirror=None if mirror is None else str(mirror), local_files=None)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)


def make_mirror(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = MAKERS[source](monkeypatch)
    for name, data in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    files = FILES[source]
    checked = {Path(name).name: md5_of(data) for name, data in made.items()}
    md5_of_file = {name: md5 and checked[name] for name, md5 in files.md5_of.items()}
    monkeypatch.setitem(FILES, source, replace(files, md5_of=md5_of_file))
    return folder


def fetched(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> LabelledImages:
    plan = plan_of(source, make_mirror(source, tmp_path / "mirror", monkeypatch), **settings)
    download(plan, tmp_path / "raw")
    return read_raw(plan, tmp_path / "raw")


@pytest.mark.parametrize("source", MAKERS)
def test_each_is_fetched_from_a_mirror_and_read_with_its_own_parts(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = fetched(source, tmp_path, monkeypatch, **({} if source in SHAPES else {"size": 5}))
    rows = np.arange(len(raw.labels))
    images = raw.read(rows)
    assert images.dtype == np.uint8
    assert images.shape == (len(rows), *SHAPES.get(source, (3, 5, 5)))
    assert raw.shape == images.shape[1:]
    assert tuple(len(raw.own_parts.get(part, ())) for part in ("train", "validation", "test")) == COUNTS.get(
        source, (0, 0, 0)
    )
    assert tuple(raw.own_parts) == tuple(DATASETS[source])
    if raw.own_parts:
        assert np.array_equal(np.concatenate(list(raw.own_parts.values())), rows)
    assert raw.labels.dtype == np.int64
    assert raw.labels.min() == 0 or source == "FGVCAircraft"
    assert raw.labels.max() < len(raw.class_names)
    assert np.array_equal(raw.read(rows), images)


@pytest.mark.parametrize("source", ["CIFAR10", "MNIST", "STL10", "SVHN", "OxfordIIITPet", "GTSRB", "DTD"])
def test_the_images_are_those_that_torchvision_shows(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision import datasets

    raw = fetched(source, tmp_path, monkeypatch)
    arguments = {"train": True} if source in ("CIFAR10", "MNIST") else {}
    shown = getattr(datasets, source)(root=str(tmp_path / "raw"), **arguments)
    for row, image in enumerate(raw.read(raw.own_parts["train"])):
        expected, label = shown[row]
        assert np.array_equal(image.transpose(1, 2, 0).squeeze(), np.asarray(expected))
        assert raw.labels[row] == label


def test_every_source_is_tested_here() -> None:
    assert set(MAKERS) == set(DATASETS)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("CIFAR10", tuple(f"kind {index}" for index in range(10))),
        ("Caltech101", ("anchor", "barrel")),
        ("EMNIST", tuple("abcdefghijklmnopqrstuvwxyz")),
        ("EuroSAT", ("AnnualCrop", "Forest", "River")),
        ("GTSRB", ("0", "1", "2")),
        ("OxfordIIITPet", ("Abyssinian", "Yorkshire Terrier")),
        ("SVHN", tuple("0123456789")),
        ("SUN397", ("abbey", "zoo/cage")),
    ],
)
def test_classes_have_the_names_that_torchvision_knows_else_their_numbers(
    source: str, names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fetched(source, tmp_path, monkeypatch, size=4).class_names == names


def test_imagenettes_classes_have_the_first_of_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetched("Imagenette", tmp_path, monkeypatch).class_names[:2] == ("tench", "English springer")


@pytest.mark.parametrize(
    ("source", "labels"),
    [
        ("EMNIST", range(26)),  # 1 to 26 in the file
        ("SVHN", [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]),  # 1 to 10 in the file, of which 10 is the digit 0
        ("USPS", range(10)),  # 1 to 10 in the file
        ("Flowers102", [1, 2, 101, 0]),  # 2, 3, 102 and 1 in the file, of images 2, 3, 4 and 9
        ("QMNIST", range(10)),
    ],
)
def test_labels_begin_at_0_whatever_the_files_say(
    source: str, labels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = fetched(source, tmp_path, monkeypatch)
    assert raw.labels[: len(labels)].tolist() == list(labels)


def test_only_the_variant_asked_for_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = fetched("EMNIST", tmp_path, monkeypatch, variant="balanced")
    assert len(raw.class_names) == 47
    kept = {path.name for path in (tmp_path / "raw" / "EMNIST" / "raw").iterdir()}
    assert len(kept) == 4
    assert all(name.startswith("emnist-balanced-") for name in kept)


@pytest.mark.parametrize("source", ["MNIST", "CIFAR10", "Caltech101", "EuroSAT"])
def test_archives_are_not_kept_once_they_are_unpacked(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched(source, tmp_path, monkeypatch, size=4)
    assert not [path for path in (tmp_path / "raw").rglob("*") if path.suffix in (".gz", ".zip", ".tgz")]


@pytest.mark.parametrize("source", ["MNIST", "SVHN", "EuroSAT"])
@pytest.mark.parametrize(("size", "channels"), [(None, 1), (None, 3), ((9, 7), 1), ((9, 7), 3), ((9, 7), None)])
def test_size_and_channels_are_as_the_settings_say(
    source: str,
    size: tuple[int, int] | None,
    channels: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = fetched(source, tmp_path, monkeypatch, size=size, channels=channels)
    own = SHAPES[source]
    assert raw.shape == (channels or own[0], *(size or own[1:]))
    assert raw.read(np.array([2, 0])).shape == (2, *raw.shape)


def test_colours_stay_apart_when_images_are_made_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror, row = make_mirror("CIFAR10", tmp_path / "mirror", monkeypatch), np.array([3])
    download(plan_of("CIFAR10", mirror), tmp_path / "raw")
    (whole,), (small,) = (
        read_raw(plan_of("CIFAR10", mirror, **size), tmp_path / "raw").read(row) for size in ({}, {"size": [16, 16]})
    )
    by_pillow = Image.fromarray(whole.transpose(1, 2, 0)).resize((16, 16), Image.Resampling.BILINEAR)
    assert np.array_equal(small, np.asarray(by_pillow).transpose(2, 0, 1))


def test_a_grey_image_in_three_channels_has_its_shades_in_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.array([5, 3])
    plain, coloured = (
        fetched("MNIST", tmp_path / str(channels), monkeypatch, channels=channels).read(rows) for channels in (1, 3)
    )
    assert coloured.shape == (2, 3, 28, 28)
    assert (np.ptp(coloured, axis=1) == 0).all()
    assert plain.shape == (2, 1, 28, 28)


def test_images_of_several_sizes_ask_for_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MistakeError, match=r"3 sizes .*7x8, 8x8, 9x8.* datasets\.mine\.size"):
        fetched("Caltech101", tmp_path, monkeypatch)


@pytest.mark.parametrize("source", ["MNIST", "CIFAR10", "SVHN", "EMNIST", "Flowers102"])
def test_a_file_with_another_md5_is_refused_and_leaves_nothing(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = make_mirror(source, tmp_path / "mirror", monkeypatch)
    damaged = max(mirror.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(UserError, match="its md5 should be") as caught:
        download(plan_of(source, mirror), tmp_path / "raw")
    assert damaged.name in str(caught.value)
    assert not (tmp_path / "raw").exists()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as running:
        yield running


def serve(server: FileServer, mirror: Path, below: str = "") -> None:
    files = {path.relative_to(mirror): path.read_bytes() for path in mirror.rglob("*") if path.is_file()}
    server.files |= {below + (path.name if below else path.as_posix()): data for path, data in files.items()}


def test_without_a_mirror_each_of_a_data_sets_addresses_is_tried(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(server, make_mirror("MNIST", tmp_path / "made", monkeypatch), "there/")
    files = replace(FILES["MNIST"], address=server.url("gone/"), also_at=(server.url("there/"),))
    monkeypatch.setitem(FILES, "MNIST", files)
    plan = plan_of("MNIST", None)
    download(plan, tmp_path / "raw")
    assert len(read_raw(plan, tmp_path / "raw").labels) == 30


def test_where_no_address_has_the_file_the_error_names_each_and_advises_once(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = (server.url("one/"), server.url("two/"))
    files = replace(FILES["MNIST"], address=addresses[0], also_at=addresses[1:])
    monkeypatch.setitem(FILES, "MNIST", files)
    with pytest.raises(UserError) as caught:
        download(plan_of("MNIST", None), tmp_path / "raw")
    for address in addresses:
        assert f"{address}train-images-idx3-ubyte.gz" in str(caught.value)
    assert str(caught.value).count("PHOTOFINISH_MIRROR") == 1
    assert not (tmp_path / "raw").exists()


def test_an_address_may_be_the_mirror(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(server, make_mirror("Flowers102", tmp_path / "made", monkeypatch))
    plan = plan_of("Flowers102", server.address, size=4)
    download(plan, tmp_path / "raw")
    assert len(read_raw(plan, tmp_path / "raw").labels) == 12


@pytest.mark.parametrize("labels", [[0, 2], [-1, 0]])
def test_labels_without_a_class_are_refused(labels: list[int]) -> None:
    with pytest.raises(UserError, match=rf"^labels go from {labels[0]} to {labels[1]}, but there are 2 classes$"):
        torchvision_source._from_zero(np.array(labels), SimpleNamespace(classes=["a", "b"]))


def test_files_that_torchvision_does_not_find_are_told_with_what_brings_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched("MNIST", tmp_path, monkeypatch)
    monkeypatch.setattr(torchvision_source, "_parts", Mock(side_effect=RuntimeError("Dataset not found.")))
    with pytest.raises(UserError, match=r"/raw can't be read: Dataset not found\.; run `dvc repro --force download`$"):
        read_raw(plan_of("MNIST", None), tmp_path / "raw")


def test_an_archive_of_other_files_than_torchvision_expects_is_told_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = make_mirror("FGVCAircraft", tmp_path / "mirror", monkeypatch)  # no checksum of it is known
    (mirror / "fgvc-aircraft-2013b.tar.gz").write_bytes(tar({"other.txt": b"something else"}))
    told = (
        r"aircraft-2013b.tar.gz of .* expects \(Dataset not found.*\): delete it .* run again; if that changes nothing"
    )
    with pytest.raises(UserError, match=rf"{told}, get a good copy and let `mirror:` in params\.yaml name its folder$"):
        download(plan_of("FGVCAircraft", mirror), tmp_path / "raw")
    assert not (tmp_path / "raw").exists()


@pytest.mark.parametrize("source", ["MNIST", "FashionMNIST"])
def test_the_real_files_give_60_000_and_10_000_images_and_are_read_fast(source: str, tmp_path: Path) -> None:
    if not (REAL / source).is_dir():
        pytest.skip(f"{REAL / source} isn't there")
    plan = plan_of(source, REAL, validation=10_000)
    download(plan, tmp_path / "raw")
    started_seconds = time.process_time()
    raw = read_raw(plan, tmp_path / "raw")
    assert raw.read(np.arange(70_000)).shape == (70_000, 1, 28, 28)
    assert time.process_time() - started_seconds < 10  # an image at a time takes longer
    assert {part: len(rows) for part, rows in divide(raw, plan).items()} == {
        "train": 50_000,
        "validation": 10_000,
        "test": 10_000,
    }
    assert np.bincount(raw.labels[60_000:], minlength=10).sum() == 10_000
