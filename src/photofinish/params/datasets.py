"""The settings of data sets: where the images come from, and how they are prepared and divided."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, Tag, ValidationInfo, field_validator, model_validator

from photofinish.files import in_project
from photofinish.params.base import (
    BUILT_IN,
    OWN,
    CallsCode,
    CodeName,
    Name,
    PositiveFloat,
    PositiveInt,
    Seed,
    Settings,
    built_in_or_own,
    is_whole_number,
    list_of,
    refusal,
)
from photofinish.params.catalogue import CHANNELS_AND_SIDES, DATASETS, EMNIST_VARIANTS, IMAGES_TO_DIVIDE

if TYPE_CHECKING:
    from photofinish.data import PartName


LONGEST_CLASS_NAME = 100
"""in characters; pictures and tables have room for few, and take long to draw thousands"""
SIZES = "a fraction between 0 and 1, or a count of at least 1"


def _check_part_size(value: Any) -> Any:
    if value is None or (is_whole_number(value) and value >= 1) or (isinstance(value, float) and 0 < value < 1):
        return value
    raise refusal(value, SIZES)


def _check_side_lengths(value: Any) -> Any:
    sides = value if isinstance(value, list | tuple) else [value, value]
    if len(sides) != 2 or not all(is_whole_number(side) and 1 <= side <= 4096 for side in sides):
        raise refusal(value, "a side length from 1 to 4096, or a list of height and width")
    return tuple(sides)


def _check_channels(value: Any) -> Any:
    if value is None or (is_whole_number(value) and value in (1, 3)):
        return value
    raise refusal(value, "1 (grey) or 3 (colours)")


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _on_the_scale_of_pixels(least: float) -> AfterValidator:
    """Of 58.4 for 0.229, or 1e308, normalising makes images that all look the same."""

    def check(value: float) -> float:
        if not least <= value <= 1:
            raise ValueError(f"must be from {least:g} to 1: pixels are on the scale from 0 to 1")
        return value

    return AfterValidator(check)


PartSize = Annotated[float | int | None, BeforeValidator(_check_part_size)]
SideLengths = Annotated[tuple[int, int], BeforeValidator(_check_side_lengths)]
Channels = Annotated[Literal[1, 3] | None, BeforeValidator(_check_channels)]
Means = Annotated[tuple[Annotated[float, _on_the_scale_of_pixels(0)], ...], Field(min_length=1)]
Deviations = Annotated[tuple[Annotated[float, _on_the_scale_of_pixels(0.001)], ...], Field(min_length=1)]


class _DatasetSettings(Settings):
    """`validation` and `test` are sizes of the parts to be drawn; a part that the source itself has needs none."""

    names_its_parts: ClassVar[bool] = True
    """whether the source's name tells which parts it has itself"""
    source: str  # first, because the checks of the others read it
    validation: PartSize = Field(default=None, validate_default=True)
    test: PartSize = Field(default=None, validate_default=True)
    seed: Seed = 0
    """decides which items go into which part"""
    mean: tuple[float, ...] | None = None
    """to normalise with, a channel each; by default that of the training part, of images"""
    std: tuple[float, ...] | None = None

    @field_validator("validation", "test")
    @classmethod
    def _sized_where_the_source_has_none(cls, value: float | int | None, info: ValidationInfo) -> float | int | None:
        if not cls.names_its_parts:
            return value
        own = DATASETS.get(info.data.get("source", ""), ())
        if value is None and info.field_name not in own:
            raise ValueError(f"this key is required: {SIZES}")
        if value is not None and info.field_name in own:
            raise ValueError(f"this source has its own {info.field_name} part: leave this key out")
        return value

    @model_validator(mode="after")
    def _something_is_left_to_train_on(self) -> _DatasetSettings:
        if isinstance(self.validation, float) and isinstance(self.test, float) and self.validation + self.test >= 1:
            raise ValueError("validation and test together must be less than 1: the rest is what is trained on")
        if (self.mean is None) != (self.std is None) or len(self.mean or ()) != len(self.std or ()):
            raise ValueError("mean and std go together: a number each for every channel")
        to_divide = known_images(self).to_divide
        if to_divide is not None:
            drawn_counts(self, to_divide)
        return self


class _ImageSettings(_DatasetSettings):
    size: SideLengths | None = None
    """height and width that images are resized to; by default they stay as they are"""
    channels: Channels = None
    """1 for grey, 3 for colours; by default as the source has them"""
    mean: Means | None = None
    std: Deviations | None = None

    @model_validator(mode="after")
    def _a_mean_for_each_channel(self) -> _ImageSettings:
        if self.mean is not None and self.channels is not None and len(self.mean) != self.channels:
            raise ValueError(f"mean and std have {len(self.mean)} numbers for {self.channels} channels")
        return self


class _OfOneShape(_ImageSettings):
    """Images that are all of one size and number of channels, and stay so."""

    size: None = None
    channels: None = None


class DigitsDataset(_OfOneShape):
    """The 1,797 handwritten digits of 8x8 pixels that come with scikit-learn."""

    source: Literal["digits"]


class TorchvisionDataset(_ImageSettings):
    """A classification data set of torchvision, by the name of its class there."""

    source: Literal[tuple(name for name in DATASETS if name != "EMNIST")]  # type: ignore[valid-type]  # names are one


class EmnistDataset(TorchvisionDataset):
    """EMNIST comes in several variants, each a data set of its own."""

    source: Literal["EMNIST"]
    variant: Literal[tuple(EMNIST_VARIANTS)]  # type: ignore[valid-type]


class Parts(Settings):
    """A path for each part that the source itself has; `validation` and `test` may be drawn instead."""

    train: str
    validation: str | None = None
    test: str | None = None


class _LocalDataset(_ImageSettings):
    """Images on this machine: all in one place, or in one place a part. Paths start at the project's folder."""

    names_its_parts = False
    path: str | None = None
    parts: Parts | None = None
    allow_duplicates: bool = False
    """whether parts that are given apart may have the same images"""

    @model_validator(mode="after")
    def _each_part_is_given_or_drawn(self) -> _LocalDataset:
        if (self.path is None) == (self.parts is None):
            raise ValueError("give either path, or parts with a path each for train, validation and test")
        for part, size in (("validation", self.validation), ("test", self.test)):
            given = self.parts is not None and getattr(self.parts, part) is not None
            if given and size is not None:
                raise ValueError(f"both parts.{part} and {part}: is it given, or to be drawn?")
            if not given and size is None and not self._is_divided_within():
                raise ValueError(f"{part} is required: {SIZES}")
        return self

    def _is_divided_within(self) -> bool:
        """Whether the files themselves may tell which image belongs to which part."""
        return False


class CsvDataset(_LocalDataset):
    """A CSV that lists an image and its label a row; the images' paths start at the CSV's folder."""

    source: Literal["csv"]
    path_column: str = "path"
    label_column: str = "label"
    split_column: str | None = None
    """the column that says train, validation or test; without it the parts are drawn"""
    classes: tuple[str, ...] | None = None
    """the labels there may be, in this order; by default those that the training rows have, sorted"""

    def _is_divided_within(self) -> bool:
        return self.split_column is not None

    @model_validator(mode="after")
    def _parts_are_told_once(self) -> CsvDataset:
        if self.split_column is not None and self.parts is not None:
            raise ValueError("split_column goes with path: where parts has a CSV each, they tell the parts")
        return self

    @field_validator("classes")
    @classmethod
    def _each_class_once(cls, classes: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if classes is not None and (len(set(classes)) != len(classes) or "" in classes or not classes):
            raise ValueError("must name each class once")
        if classes is not None and max(map(len, classes)) > LONGEST_CLASS_NAME:
            raise ValueError(f"a class may have {LONGEST_CLASS_NAME} characters at most")
        return classes


class FolderDataset(_LocalDataset):
    """A folder a class, as torchvision's ImageFolder reads them."""

    source: Literal["folder"]


class SyntheticDataset(_OfOneShape):
    """Images made from the seed, of any shape, that can be learned."""

    source: Literal["synthetic"]
    images: PositiveInt
    shape: Annotated[tuple[PositiveInt, PositiveInt, PositiveInt], list_of(3, "numbers: channels, height, width")]
    classes: Annotated[int, Field(ge=2, le=65536)]


class OwnDataset(CallsCode, _DatasetSettings):
    """A map-style data set of the user's own, or a function that gives one, called with the keys beside ours."""

    model_config = CallsCode.model_config  # of two classes, pydantic takes the last one's

    named_by = "source"
    names_its_parts = False
    mean: Annotated[tuple[Annotated[float, Field(allow_inf_nan=False)], ...], Field(min_length=1)] | None = None
    std: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] | None = None
    source: CodeName
    files: Annotated[tuple[str, ...], BeforeValidator(_one_or_more)] = ()
    """files and folders that it reads: `split` begins anew when the name, size or time of one of them changes"""
    allow_duplicates: bool = False
    """whether parts that it makes apart may have the same items"""
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """processes that read it for `split`"""

    @property
    def makes_parts(self) -> bool:
        """Whether it is made once for each part, which its argument `part` then tells."""
        takes = self.reference.takes()
        return takes is not None and PART in takes.names and PART not in self.arguments


PART = "part"
"""what a data set of one's own that has parts is called with: train, validation or test"""
GIVEN_TO_DATASETS = frozenset({PART, "seed"})
"""where it takes them"""
_BuiltIn = Annotated[
    DigitsDataset | TorchvisionDataset | EmnistDataset | CsvDataset | FolderDataset | SyntheticDataset,
    Field(discriminator="source"),
]
Dataset = Annotated[Annotated[_BuiltIn, Tag(BUILT_IN)] | Annotated[OwnDataset, Tag(OWN)], built_in_or_own("source")]


class KnownImages(NamedTuple):
    """What is known of a data set's images before they are fetched; None for what only the files tell."""

    to_divide: int | None
    """how many there are that parts are drawn from"""
    channels: int | None
    sides: tuple[int, int] | None
    """height and width"""


def known_images(dataset: _DatasetSettings) -> KnownImages:
    """As its source has them, or as its settings make them."""
    if isinstance(dataset, DigitsDataset):
        return KnownImages(1797, 1, (8, 8))
    if isinstance(dataset, SyntheticDataset):
        return KnownImages(dataset.images, dataset.shape[0], dataset.shape[1:])
    if isinstance(dataset, OwnDataset):
        return KnownImages(None, None, None)
    if not isinstance(dataset, TorchvisionDataset):
        assert isinstance(dataset, _ImageSettings)
        return KnownImages(None, dataset.channels, dataset.size)
    to_divide = IMAGES_TO_DIVIDE.get(dataset.source)
    if isinstance(dataset, EmnistDataset):
        to_divide = EMNIST_VARIANTS[dataset.variant]
    channels, sides = CHANNELS_AND_SIDES.get(dataset.source, (3, None))  # torchvision makes all files coloured
    return KnownImages(to_divide, dataset.channels or channels, dataset.size or sides)


def drawn_counts(dataset: _DatasetSettings, images: int) -> dict[PartName, int]:
    """How many of so many images each part that is drawn has; raises where that leaves none to train on."""
    sizes: dict[PartName, float | int | None] = {"test": dataset.test, "validation": dataset.validation}
    counts = {
        part: size if isinstance(size, int) else max(1, round(size * images))
        for part, size in sizes.items()
        if size is not None
    }
    if sum(counts.values()) >= images:
        told = " and ".join(f"{part} ({count})" for part, count in reversed(counts.items()))
        raise ValueError(f"{told} leave nothing to train on: there are {images} images to divide")
    return counts


class DatasetPlan(Settings):
    """data/plan/datasets/<name>.json: what `download` and `split` go by."""

    name: Name
    dataset: Dataset
    mirror: str | None = None
    """a folder or an address that has the files in torchvision's layout, for machines without internet"""
    local_files: str | None
    """sha256 of the names, sizes and times of the files on this machine that the data set is made of"""
    own_code: dict[str, str] = Field(default_factory=dict)
    """the sha256 of each of the user's own files that make it, and the versions of packages they name"""


LocalDataset = CsvDataset | FolderDataset


@dataclass(frozen=True)
class Place:
    """Where images of a local data set are."""

    part: PartName | None
    """None where the parts are drawn, or where a column tells them"""
    given: str
    """the path as the user wrote it"""
    path: Path

    @property
    def key(self) -> str:
        """Of params.yaml, below the data set: path, parts.train, ..."""
        return f"parts.{self.part}" if self.part else "path"


def places(dataset: LocalDataset) -> list[Place]:
    """Where a local data set's images are, in the order of the parts."""
    by_part: list[tuple[PartName | None, str | None]] = [(None, dataset.path)]
    if parts := dataset.parts:
        by_part += [("train", parts.train), ("validation", parts.validation), ("test", parts.test)]
    return [Place(part, given, in_project(given)) for part, given in by_part if given is not None]
