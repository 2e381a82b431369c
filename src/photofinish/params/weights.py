"""Which published weights experiments start from, between `plan` and the training stages."""

from __future__ import annotations

from photofinish.params.base import Name, Settings


class PublishedWeights(Settings):
    model: str
    weights: str
    """a name of torchvision's, such as IMAGENET1K_V1"""


class WeightsPlan(Settings):
    """data/plan/weights.json: what `download-weights` goes by."""

    mirror: str | None
    """a folder or an address that has the files under weights/"""
    experiments: dict[Name, PublishedWeights | None]


class FetchedWeights(PublishedWeights):
    file: str
    sha256: str


class InitialWeights(Settings):
    """data/weights/<experiment>/weights.json, which every experiment has."""

    published: FetchedWeights | None
