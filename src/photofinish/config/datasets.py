"""Settings of data sets: sources, preparation and division."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field, Tag, ValidationInfo, field_validator, model_validator

from photofinish.config.base import (
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
)
from photofinish.config.catalogue import DATASETS
from photofinish.errors import SettingError
from photofinish.files import in_project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from photofinish.data import PartName

PART = "part"
"""Argument of custom data sets that have parts: train, validation or test."""
GIVEN_TO_DATASETS = frozenset({PART, "seed"})
"""Arguments that custom data sets get if their signature has them."""


def _check_part_size(value: Any) -> Any:
    is_count = type(value) is int and value >= 0
    if value is None or is_count or (isinstance(value, float) and 0 < value < 1):
        return value
    raise SettingError("part size")


def _check_side_lengths(value: Any) -> Any:
    sides = value if isinstance(value, list | tuple) else [value, value]
    if len(sides) != 2 or not all(type(side) is int and 1 <= side <= 4096 for side in sides):
        raise SettingError("side lengths")
    return tuple(sides)


Decode = Literal["once", "each_epoch"]
"""When samples are read: by `split`, or by the loader in each epoch."""
PartSize = Annotated[float | int | None, BeforeValidator(_check_part_size)]
SideLengths = Annotated[tuple[int, int], BeforeValidator(_check_side_lengths)]
# Pixels are scaled to 0..1: with 58.4 instead of 0.229, all images would be almost equal.
Means = Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1)]
Deviations = Annotated[tuple[Annotated[float, Field(ge=0.001, le=1)], ...], Field(min_length=1)]
_FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


class LocalPath(NamedTuple):
    key: tuple[str | int, ...]
    """Key in params.yaml below the data set."""
    given: str
    """Path as the user wrote it."""
    kind: Literal["file or folder", "folder", "CSV file"] = "file or folder"
    part: PartName | None = None
    """Part of the images there. None if parts are drawn, or if a column names them."""
    listing_column: str | None = None
    """Column of a CSV with the paths of further files, relative to its folder."""

    @property
    def path(self) -> Path:
        """Return the path from the project's folder."""
        return in_project(self.given)


class _DatasetSettings(Settings):
    """Settings of a source, and facts about sources of its class."""

    opens: ClassVar[str]
    """Module and function that open the source, such as `built_in_source.open_digits`."""
    is_downloaded: ClassVar[bool] = False
    """True if opening the source downloads it, which the stage `download` does."""
    has_one_shape: ClassVar[bool] = True
    """True if all samples must have one shape."""
    names_its_parts: ClassVar[bool] = True
    """True if the name of the source determines which parts it is already divided into."""
    source: str  # first, because the checks of later fields read it
    validation: PartSize = Field(default=None, validate_default=True)
    """Size of the part to draw. None if the source already has this part, 0 for no validation."""
    test: PartSize = Field(default=None, validate_default=True)
    seed: Seed = 0
    """Decides which samples go into which part."""
    mean: Means | Literal["auto"] | None = None
    """Mean for normalisation, one number per channel. By default, the training images' mean.

    `auto` also normalises other numbers, such as a table's columns, by the training part's mean.
    """
    std: Deviations | None = None
    decode: Decode = "once"

    def paths(self) -> Iterator[LocalPath]:
        """Yield the files and folders that the data set reads, which must exist."""
        yield from ()

    @field_validator("validation", "test")
    @classmethod
    def _sized_unless_the_source_has_it(
        cls, value: float | int | None, info: ValidationInfo
    ) -> float | int | None:
        if value == 0 and info.field_name == "test":
            raise SettingError("part size")
        if not cls.names_its_parts:
            return value
        own = DATASETS.get(info.data.get("source", ""), ())
        if value is None and info.field_name not in own:
            raise SettingError("no part")
        if value is not None and info.field_name in own:
            raise SettingError("own part", part=info.field_name)
        return value

    @model_validator(mode="after")
    def _check_mean_and_std(self) -> _DatasetSettings:
        numbers = () if self.mean == "auto" else self.mean or ()
        if len(numbers) != len(self.std or ()):
            raise SettingError("mean without std")
        return self


class _ImageSettings(_DatasetSettings):
    size: SideLengths | None = None
    """Height and width to resize images to. By default, images are not resized."""
    channels: Literal[1, 3] | None = None
    """1 for grey, 3 for colours. By default, the source's channels."""


class DigitsDataset(_DatasetSettings):
    """Dataset of scikit-learn's 1,797 handwritten digits of 8x8 pixels."""

    opens = "built_in_source.open_digits"
    source: Literal["digits"]


class SyntheticDataset(_DatasetSettings):
    """Learnable images of any shape, generated from the seed."""

    opens = "built_in_source.open_synthetic"
    source: Literal["synthetic"]
    images: PositiveInt
    shape: tuple[PositiveInt, PositiveInt, PositiveInt]
    """Channels, height, width."""
    classes: Annotated[int, Field(ge=2, le=65536)]


class TorchvisionDataset(_ImageSettings):
    """A classification data set of torchvision, by the name of its class there."""

    opens = "built_in_source.open_torchvision"
    is_downloaded = True
    source: Literal[tuple(DATASETS)]  # type: ignore[valid-type]  # mypy sees no names here
    root: str | None = None
    """Folder with the files in torchvision's layout. By default they are downloaded."""

    def paths(self) -> Iterator[LocalPath]:
        """Yield the folder only: torchvision checks the files in it."""
        if self.root is not None:
            yield LocalPath(("root",), self.root, "folder")


class Parts(Settings):
    """Paths of the parts that the user divided. Others are drawn from the training part."""

    train: str
    validation: str | None = None
    test: str | None = None


class _LocalDataset(_ImageSettings):
    """Images on this machine, in one place, or in a place for each part."""

    names_its_parts = False
    path: str | None = None
    parts: Parts | None = None
    allow_duplicates: bool = False
    """True if parts that the user divided may share images."""

    @model_validator(mode="after")
    def _check_place(self) -> _LocalDataset:
        if (self.path is None) == (self.parts is None):
            raise SettingError("place")
        return self

    def _places(self, listing_column: str | None = None) -> Iterator[LocalPath]:
        """Yield where the images are, in the order of the parts."""
        kind: Literal["folder", "CSV file"] = "folder" if listing_column is None else "CSV file"
        if self.path is not None:
            yield LocalPath(("path",), self.path, kind, None, listing_column)
        parts: dict[Any, str | None] = self.parts.model_dump() if self.parts else {}
        for part, given in parts.items():
            if given is not None:
                yield LocalPath(("parts", part), given, kind, part, listing_column)


class CsvDataset(_LocalDataset):
    """CSV with an image and a label per row. Image paths are relative to the CSV's folder."""

    opens = "local_source.open_csv"
    source: Literal["csv"]
    path_column: str = "path"
    label_column: str = "label"
    split_column: str | None = None
    """Column with train, validation or test. Without a column, the parts are drawn."""

    def paths(self) -> Iterator[LocalPath]:
        return self._places(self.path_column)


class FolderDataset(_LocalDataset):
    """Folder of images in the layout of torchvision's ImageFolder."""

    opens = "local_source.open_folder"
    source: Literal["folder"]

    def paths(self) -> Iterator[LocalPath]:
        return self._places()


class CustomDataset(CallsCode, _DatasetSettings):
    """Custom map-style data set, or function that returns it. Unknown keys are arguments."""

    model_config = CallsCode.model_config  # pydantic would take the config of the last base class

    named_by = "source"
    opens = "sources.open_custom"
    has_one_shape = False
    names_its_parts = False
    mean: Annotated[tuple[_FiniteFloat, ...], Field(min_length=1)] | Literal["auto"] | None = None
    std: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] | None = None
    source: CodeName
    files: Annotated[
        tuple[str, ...],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
        Field(strict=False),
    ] = ()
    """Files and folders that the code reads. `split` runs again if one of them changes."""
    deps: tuple[str, ...] = ()
    """Small files that the code reads, such as a vocabulary. They count with their content."""
    allow_duplicates: bool = False
    """True if the data set's own parts may share samples."""
    task: Literal["classes", "values", "labels"] | None = None
    """Task of the targets. By default, derived from them."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Number of processes that read the data set for `split`."""

    def paths(self) -> Iterator[LocalPath]:
        for number, file in enumerate(self.files):
            yield LocalPath(("files", number), file)


LocalDataset = CsvDataset | FolderDataset
_BuiltIn = Annotated[
    DigitsDataset | TorchvisionDataset | CsvDataset | FolderDataset | SyntheticDataset,
    Field(discriminator="source"),
]
Dataset = Annotated[
    Annotated[_BuiltIn, Tag(BUILT_IN)] | Annotated[CustomDataset, Tag(OWN)],
    built_in_or_own("source"),
]


class DatasetPlan(Settings):
    """Plan of `download` and `split`: data/plan/datasets/<name>.json."""

    name: Name
    dataset: Dataset
    local_files: str | None
    """Hash of the names, sizes and times of the local files in the data set."""
    custom_code: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each file of custom code, and versions of the packages that it imports."""
