"""The names of torchvision's classifiers and data sets, written out, are those torchvision has."""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from pathlib import Path, PurePosixPath
from urllib.error import URLError

import pytest
import torchvision
from torchvision import datasets
from torchvision.models import get_model_weights

from photofinish.data.torchvision_source import FILES
from photofinish.models.weights_download import SHA256_PREFIX
from photofinish.params.catalogue import (
    CHANNELS_AND_SIDES,
    CLASSIFIERS,
    DATASETS,
    EMNIST_VARIANTS,
    IMAGES_TO_DIVIDE,
)

NO_LONGER_DOWNLOADED = {"FER2013", "ImageNet", "LFWPeople", "PCAM", "StanfordCars"}
WITHOUT_LABELLED_TEST_IMAGES = {"CLEVRClassification", "INaturalist", "Places365"}
WITH_OTHER_CLASSES_IN_EACH_PART = {"Omniglot"}
OF_NO_CERTAIN_IMAGES = {"DatasetFolder", "FakeData", "ImageFolder", "VisionDataset"}
NOT_FOR_CLASSIFICATION = {
    "CREStereo", "CarlaStereo", "CelebA", "Cityscapes", "CocoCaptions", "CocoDetection", "ETH3DStereo",
    "FallingThingsStereo", "Flickr30k", "Flickr8k", "FlyingChairs", "FlyingThings3D", "HD1K", "HMDB51", "InStereo2k",
    "Kinetics", "Kitti", "Kitti2012Stereo", "Kitti2015Stereo", "KittiFlow", "LFWPairs", "LSUN", "LSUNClass",
    "Middlebury2014Stereo", "MovingMNIST", "PhotoTour", "SBDataset", "SBU", "SceneFlowStereo", "Sintel",
    "SintelStereo", "UCF101", "VOCDetection", "VOCSegmentation", "WIDERFace",
}  # fmt: skip
FEATURES_ALONE = {("vgg16", "IMAGENET1K_FEATURES")}


def test_the_classifiers_are_those_of_the_installed_torchvision() -> None:
    assert list(CLASSIFIERS) == sorted(torchvision.models.list_models(module=torchvision.models))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_weights_are_those_that_are_published_for_classifying_in_files_named_by_their_sha256(name: str) -> None:
    published = {weights.name: weights.url for weights in get_model_weights(name)}
    assert set(CLASSIFIERS[name]) == published.keys() - {weights for model, weights in FEATURES_ALONE if model == name}
    assert all(SHA256_PREFIX.search(published[weights]) for weights in CLASSIFIERS[name])


def test_every_data_set_of_torchvision_is_a_source_or_left_out_for_a_reason() -> None:
    left_out = (
        NO_LONGER_DOWNLOADED
        | WITHOUT_LABELLED_TEST_IMAGES
        | WITH_OTHER_CLASSES_IN_EACH_PART
        | OF_NO_CERTAIN_IMAGES
        | NOT_FOR_CLASSIFICATION
    )
    classes = {name for name in datasets.__all__ if inspect.isclass(getattr(datasets, name))}
    assert classes - left_out == set(DATASETS)


@pytest.mark.parametrize("name", DATASETS)
def test_the_parts_are_those_that_can_be_asked_of_the_class(name: str) -> None:
    taken = inspect.signature(getattr(datasets, name)).parameters
    for arguments in DATASETS[name].values():
        assert set(arguments) < set(taken) or "kwargs" in taken
    assert ("train" in taken or "split" in taken) == bool(DATASETS[name])


@pytest.mark.parametrize("name", DATASETS)
def test_the_files_are_those_that_torchvision_would_fetch_and_keep_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: dict[Path, tuple[set[str], str | None]] = {}

    def record(url: str, root: Path, filename: str | None = None, md5: str | None = None) -> None:
        file = Path(root, filename or PurePosixPath(url).name)
        fetched.setdefault(file, (set(), md5))[0].add(url)
        if url not in last_addresses:
            raise URLError("let it try the next")

    def keep(*_: object, **__: object) -> None:
        """Unpack nothing."""

    files = FILES[name]
    addresses = (files.address, *files.also_at)
    last_addresses = {f"{addresses[-1]}{file}" for file in files.md5_of}
    for module in [module for key, module in sys.modules.items() if key.startswith("torchvision.datasets.")]:
        for function, replacement in (("download_url", record), ("extract_archive", keep)):
            if hasattr(module, function):
                monkeypatch.setattr(module, function, replacement)
    variant = {"split": "letters"} if name == "EMNIST" else {}
    for arguments in list(DATASETS[name].values()) or [{}]:
        with suppress(RuntimeError, OSError):  # it misses the files that weren't fetched
            getattr(datasets, name)(root=str(tmp_path), download=True, **variant, **arguments)
    assert fetched == {
        tmp_path / files.folder / file: ({f"{address}{file}" for address in addresses}, md5)
        for file, md5 in files.md5_of.items()
    }


def test_the_variants_of_emnist_are_torchvisions() -> None:
    assert sorted(datasets.EMNIST.splits) == sorted(EMNIST_VARIANTS)


def test_images_are_counted_where_parts_of_them_are_drawn() -> None:
    drawn_from = {name for name, parts in DATASETS.items() if len(parts) < 3}
    assert drawn_from == IMAGES_TO_DIVIDE.keys() | {"EMNIST"}
    assert CHANNELS_AND_SIDES.keys() <= DATASETS.keys()
