"""The names of torchvision's classifiers and data sets, written out, are those torchvision has."""

from __future__ import annotations

import inspect
import re

import pytest
import torchvision
from torchvision import datasets
from torchvision.models import get_model_weights

from photofinish.config.catalogue import (
    CLASSIFIERS,
    DATASETS,
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
    assert set(CLASSIFIERS) == set(torchvision.models.list_models(module=torchvision.models))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_weights_are_those_that_are_published_for_classifying_in_files_named_by_their_sha256(name: str) -> None:
    published = {weights.name: weights.url for weights in get_model_weights(name)}
    assert set(CLASSIFIERS[name]) == published.keys() - {weights for model, weights in FEATURES_ALONE if model == name}
    assert all(re.search(r"-[0-9a-f]{8,}\.pth$", published[weights]) for weights in CLASSIFIERS[name])


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
