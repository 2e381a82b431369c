"""The names of torchvision's classifiers, written out, are those torchvision has."""

from __future__ import annotations

import torchvision

from photofinish.model_names import TORCHVISION_CLASSIFIERS


def test_the_names_are_those_of_the_installed_torchvision() -> None:
    assert list(TORCHVISION_CLASSIFIERS) == sorted(torchvision.models.list_models(module=torchvision.models))
