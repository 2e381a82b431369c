"""The names of torchvision's classifiers and data sets are those that torchvision has."""

from __future__ import annotations

import inspect
import re

import pytest
import torchvision
from torchvision import datasets
from torchvision.models import get_model_weights

from photofinish.config.catalogue import CLASSIFIERS, DATASETS

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


def test_the_classifiers_are_those_of_the_installed_torchvision() -> None:
    assert set(CLASSIFIERS) == set(torchvision.models.list_models(module=torchvision.models))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_weights_are_published_in_files_named_by_their_sha256(name: str) -> None:
    published = {weights.name: weights.url for weights in get_model_weights(name)}
    left_out = {weights for model, weights in WITHOUT_CLASSIFYING_LAYERS if model == name}
    assert set(CLASSIFIERS[name]) == published.keys() - left_out
    assert all(re.search(r"-[0-9a-f]{8,}\.pth$", published[one]) for one in CLASSIFIERS[name])


def test_every_data_set_of_torchvision_is_a_source_or_left_out_for_a_reason() -> None:
    left_out = set(" ".join(LEFT_OUT.values()).split())
    classes = {name for name in datasets.__all__ if inspect.isclass(getattr(datasets, name))}
    assert classes - left_out == set(DATASETS)


@pytest.mark.parametrize("name", DATASETS)
def test_the_class_accepts_the_arguments_of_each_part(name: str) -> None:
    parameters = inspect.signature(getattr(datasets, name)).parameters
    for arguments in DATASETS[name].values():
        assert set(arguments) < set(parameters) or "kwargs" in parameters
    assert ("train" in parameters or "split" in parameters) == bool(DATASETS[name])
