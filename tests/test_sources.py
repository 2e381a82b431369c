"""Data sets: torchvision's, scikit-learn's, made from a seed; and their parts."""

from __future__ import annotations

import gzip
import hashlib
import inspect
import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision
from conftest import PARTS, digits_plan, from_array, learnable_images
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import plan_of
from numpy.typing import ArrayLike
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from torchvision import datasets
from torchvision.models import get_model_weights

from photofinish.config.catalogue import CLASSIFIERS, DATASETS
from photofinish.config.datasets import DatasetPlan
from photofinish.data import PartName
from photofinish.data.images import Int64Array
from photofinish.data.packed import PackedSplit, part_file
from photofinish.data.sources import download
from photofinish.data.split import RawData, divide, read_raw, split
from photofinish.errors import ConfigError, UserError
from photofinish.files import sha256_of_file

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


def of_torchvision(source: str, root: Path | None, **settings: Any) -> DatasetPlan:
    drawn = {part: 0.2 for part in ("validation", "test") if part not in DATASETS[source]}
    return plan_of(source=source, root=root, **drawn | settings)


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
    plan = of_torchvision(source, make_root(source, tmp_path / "root", monkeypatch), **size)
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
        UserError, match=r"(?s)^data set 'birds': .*MNIST.*datasets\.birds\.root in params\.yaml"
    ):
        download(of_torchvision("MNIST", root and tmp_path / root), tmp_path / "raw")
    assert not (tmp_path / "raw").exists()


def test_downloads_are_kept_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_root("MNIST", tmp_path / ".photofinish/downloads", monkeypatch)
    download(of_torchvision("MNIST", None), tmp_path / "raw")
    for archive in (tmp_path / ".photofinish/downloads").rglob("*.gz"):
        archive.unlink()
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    assert len(read_raw(of_torchvision("MNIST", None, validation=3), tmp_path / "raw").labels) == 30


DIGITS = digits_plan()


def make(folder: Path, **changes: Any) -> RawData:
    settings = {"images": 500, "shape": [3, 9, 7], "classes": 5, "validation": 0.1, "test": 0.1}
    return read_raw(plan_of(source="synthetic", **settings | changes), folder)


def test_digits_are_scikit_learns_with_their_shades_spread_over_a_byte(tmp_path: Path) -> None:
    download(DIGITS, tmp_path)
    digits, raw = load_digits(), read_raw(DIGITS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["source.json"]
    images = raw.inputs[np.arange(1797)]
    assert (images.shape, images.dtype) == ((1797, 1, 8, 8), np.uint8)
    assert np.array_equal(images[:, 0], np.round(digits.images * 255 / 16))
    assert np.array_equal(raw.labels, digits.target)
    assert raw.class_names == tuple("0123456789")


@pytest.mark.parametrize(
    ("seed", "sha256"),
    [
        (0, "45edaa8288a18a1045a1879883ad01f68df513b017295b964294bbde941aa7c2"),
        (3, "0eb0e498ed6bdfd8c9c9f53bec15364d5f7b9c136265a636137d6e11de0c0c80"),
    ],
)
def test_images_have_these_bytes_on_every_machine(tmp_path: Path, seed: int, sha256: str) -> None:
    images = make(tmp_path, seed=seed)
    assert hashlib.sha256(images.inputs[np.array([0, 1, 499])].tobytes()).hexdigest() == sha256
    assert images.class_names == ("0", "1", "2", "3", "4")
    assert np.bincount(images.labels).tolist() == [100] * 5
    assert len({image.tobytes() for image in images.inputs[np.arange(500)]}) == 500
    more = make(tmp_path, seed=seed, images=1000)
    assert np.array_equal(more.inputs[np.arange(500)], images.inputs[np.arange(500)])


@pytest.mark.parametrize(("shape", "classes"), [([3, 32, 32], 10), ([1, 1, 300], 3)])
def test_a_linear_classifier_learns_synthetic_images(
    tmp_path: Path, shape: list[int], classes: int
) -> None:
    images = make(tmp_path, shape=shape, images=3000, classes=classes)
    assert images.inputs[np.array([19, 3])].shape == (2, *shape)
    pixels = images.inputs[np.arange(3000)].reshape(3000, -1) / 255 - 0.5
    classifier = SGDClassifier(max_iter=5, tol=None, random_state=0)
    classifier.fit(pixels[:2000], images.labels[:2000])
    assert classifier.score(pixels[2000:], images.labels[2000:]) > 0.95


LEFT_OUT = {
    "no longer downloaded": "FER2013 ImageNet LFWPeople PCAM StanfordCars",
    "no labelled test images": "CLEVRClassification INaturalist Places365",
    "other classes in each part": "Omniglot",
    "variants, or an order of the file system": "EMNIST SUN397",
    "no images of their own": "DatasetFolder FakeData ImageFolder VisionDataset",
    "not for classification": """
        CREStereo CarlaStereo CelebA Cityscapes CocoCaptions CocoDetection ETH3DStereo
        FallingThingsStereo Flickr30k Flickr8k FlyingChairs FlyingThings3D HD1K HMDB51 InStereo2k
        Kinetics Kitti Kitti2012Stereo Kitti2015Stereo KittiFlow LFWPairs LSUN LSUNClass
        Middlebury2014Stereo MovingMNIST PhotoTour SBDataset SBU SceneFlowStereo Sintel
        SintelStereo UCF101 VOCDetection VOCSegmentation WIDERFace
    """,
}
WITHOUT_CLASSIFYING_LAYERS = {("vgg16", "IMAGENET1K_FEATURES")}


def test_the_classifiers_are_torchvisions_with_weights_in_files_named_by_their_sha256() -> None:
    assert set(CLASSIFIERS) == set(torchvision.models.list_models(module=torchvision.models))
    for name, known in CLASSIFIERS.items():
        published = {weights.name: weights.url for weights in get_model_weights(name)}
        left_out = {weights for model, weights in WITHOUT_CLASSIFYING_LAYERS if model == name}
        assert set(known) == published.keys() - left_out, name
        assert all(re.search(r"-[0-9a-f]{8,}\.pth$", published[one]) for one in known), name


def test_every_data_set_of_torchvision_is_a_source_or_left_out_for_a_reason() -> None:
    left_out = set(" ".join(LEFT_OUT.values()).split())
    classes = {name for name in datasets.__all__ if inspect.isclass(getattr(datasets, name))}
    assert classes - left_out == set(DATASETS)
    for name, parts in DATASETS.items():
        parameters = inspect.signature(getattr(datasets, name)).parameters
        for arguments in parts.values():
            assert set(arguments) < set(parameters) or "kwargs" in parameters, name
        assert ("train" in parameters or "split" in parameters) == bool(parts), name


LABELS: Int64Array = np.arange(120, dtype=np.int64) % 3


def divide_labels(labels: ArrayLike, **settings: float) -> dict[PartName, Int64Array]:
    values = np.array(labels, dtype=np.int64)
    images = np.zeros((len(values), 1, 1, 1), dtype=np.uint8)
    return divide(from_array(images, values, ()), digits_plan(**settings))


def local_plan(**settings: Any) -> DatasetPlan:
    parts = {"train": "a", "validation": "b", "test": "c"}
    return plan_of(source="folder", parts=parts, **settings)


def with_duplicates(own_parts: bool = True) -> RawData:
    """Return data whose test part, images 100 to 119, has two training images."""
    images = learnable_images().inputs[np.arange(120)].copy()
    images[[105, 109]] = images[[6, 8]]
    parts: dict[PartName, Int64Array] = {}
    if own_parts:
        parts = {"train": np.arange(90), "validation": np.arange(90, 100)}
        parts["test"] = np.arange(100, 120)
    raw = from_array(images, LABELS, ("cat", "dog", "owl"), parts)
    return replace(raw, name_of="photos/{}.png".format)


@pytest.mark.parametrize(
    ("validation", "test", "expected"),
    [
        (0.2, 0.1, (84, 24, 12)),
        (30, 9, (81, 30, 9)),
        (0.129, 0.121, (90, 15, 15)),  # rounded
    ],
)
def test_sizes_are_fractions_or_counts(
    validation: float | int, test: float | int, expected: tuple[int, int, int]
) -> None:
    rows = divide_labels(LABELS, validation=validation, test=test)
    assert tuple(len(rows[part]) for part in PARTS) == expected


@settings(max_examples=60)
@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    validation=st.one_of(st.integers(1, 30), st.floats(0.01, 0.99)),
    test=st.one_of(st.integers(1, 30), st.floats(0.01, 0.99)),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_image_is_in_exactly_one_part_or_the_split_is_refused(
    labels: list[int], validation: float | int, test: float | int, seed: int
) -> None:
    try:
        rows = divide_labels(labels, validation=validation, test=test, seed=seed)
    except ConfigError:
        return
    assert sorted(np.concatenate([*rows.values()]).tolist()) == [*range(len(labels))]
    assert all(len(part) for part in rows.values())


def test_each_part_holds_the_classes_in_their_proportions_and_the_seed_decides_which() -> None:
    labels = np.array([0] * 200 + [1] * 100 + [2] * 20)
    rows, again, other = (divide_labels(labels, test=0.1, seed=seed) for seed in (3, 3, 4))
    assert all(np.array_equal(rows[part], again[part]) for part in PARTS)
    assert not any(np.array_equal(rows[part], other[part]) for part in PARTS)
    counts = {part: np.bincount(labels[rows[part]]).tolist() for part in PARTS}
    assert counts == {"train": [140, 70, 14], "validation": [40, 20, 4], "test": [20, 10, 2]}


@pytest.mark.parametrize(
    ("labels", "test", "part"),
    [
        ([0] * 30 + [1], 6, "test"),  # a class of one image
        ([0, 1, 2] * 10, 2, "test"),  # fewer images than classes
        ([0, 1, 2] * 10, 24, "validation"),  # nothing is left to train on
    ],
)
def test_a_part_that_cant_be_drawn_evenly_is_named(labels: list[int], test: int, part: str) -> None:
    message = rf"a {part} part of \d+ samples can't be drawn evenly for datasets\.small .*: "
    with pytest.raises(ConfigError, match=message):
        divide_labels(labels, validation=6, test=test)
    with pytest.raises(ConfigError, match=r"^datasets\.small\.test .* must be removed"):
        divide(with_duplicates(), digits_plan())
    with pytest.raises(ConfigError, match=r"^datasets\.birds\.test in params.yaml is required"):
        divide(with_duplicates(own_parts=False), local_plan())


def test_the_manifest_describes_the_files(tmp_path: Path) -> None:
    grey = learnable_images()
    shades = grey.inputs[np.arange(len(grey.labels))]
    # Three channels, the last of a single value.
    images = np.concatenate([shades, shades // 2, np.full_like(shades, 7)], axis=1)
    raw = from_array(images, grey.labels, grey.class_names)
    manifest = split(digits_plan(test=0.1), raw, tmp_path)
    assert manifest == PackedSplit(tmp_path).manifest
    assert manifest.counts == {"train": 84, "validation": 24, "test": 12}
    assert manifest.shape == (3, 8, 8)
    assert manifest.class_names == ("class 0", "class 1", "class 2")
    names = [f"{part}-{content}.npy" for part in PARTS for content in ("images", "labels", "rows")]
    assert manifest.sha256 == {name: sha256_of_file(tmp_path / name) for name in names}
    for part in PARTS:
        packed, rows = PackedSplit(tmp_path), np.load(tmp_path / part_file(part, "rows"))
        assert isinstance(packed.images(part), np.memmap)
        assert np.array_equal(packed.images(part), raw.inputs[rows])
        assert np.array_equal(packed.labels(part), raw.labels[rows])
    training = PackedSplit(tmp_path).images("train") / 255.0
    assert manifest.mean == pytest.approx(training.mean(axis=(0, 2, 3)).tolist(), rel=1e-12)
    deviations = training.std(axis=(0, 2, 3)).tolist()[:2]
    assert manifest.std == pytest.approx([*deviations, 1.0], rel=1e-12)


def test_an_image_in_two_parts_of_the_user_is_refused_unless_it_is_allowed_or_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warning = "2 of 20 test images are also train images, such as photos/6.png and photos/105.png"
    allowing = r"datasets\.birds\.allow_duplicates: true"
    with pytest.raises(ConfigError, match=f"{warning}.*{allowing}"):
        split(local_plan(), with_duplicates(), tmp_path / "refused")
    assert not (tmp_path / "refused/manifest.json").exists()
    split(local_plan(allow_duplicates=True), with_duplicates(), tmp_path)
    assert f"note: {warning}" in capsys.readouterr().out.splitlines()
    plan = plan_of(source="folder", path="photos", test=0.5, validation=0.4)
    split(plan, with_duplicates(own_parts=False), tmp_path / "drawn")
    noted = capsys.readouterr().out
    assert re.match(r"note: [12] of \d+ \w+ images are also \w+ images, such as", noted)
