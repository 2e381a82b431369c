"""Base classes and types that all settings share."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    model_validator,
)

from photofinish.custom.reference import CodeReference, is_reference
from photofinish.errors import SettingError

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(ge=1, lt=2**31)]
NonNegativeInt = Annotated[int, Field(ge=0, lt=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # NumPy's limit
Name = Annotated[str, Field(pattern=NAME_PATTERN)]

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def _check_duration(value: Any) -> float:
    """Return the seconds of `90 s`, `10 min` or `1.5 h`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *(s|min|h)", value) if isinstance(value, str) else None
    if match is None or not float(match[1]):
        raise SettingError("duration")
    return float(match[1]) * _SECONDS[match[2]]


Duration = Annotated[float, BeforeValidator(_check_duration)]
"""Seconds, written as a number with s, min or h."""

BUILT_IN, OWN = "built-in", "own"
"""Tags of built-in and custom settings in pydantic's error locations."""


def spelled_out(block: Any) -> Any:
    """Expand a name into a mapping with that name."""
    return {"name": block} if isinstance(block, str) else block


def is_name(name: object) -> bool:
    """Return True if the name is valid for a folder and a stage."""
    return isinstance(name, str) and re.fullmatch(NAME_PATTERN, name) is not None


class Record(BaseModel):
    """Frozen pydantic model that converts no types and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Settings(Record):
    """Settings that a user may write."""

    # Most settings are parts of others: building a validator for each would slow `plan` down.
    model_config = ConfigDict(defer_build=True)


class CallsCode(Settings):
    """Custom code, or a class or function of a package. Unknown keys are its arguments."""

    model_config = ConfigDict(extra="allow")
    named_by: ClassVar[str] = "name"
    """Key that holds the code's name."""
    positional_arguments: ClassVar[int] = 2
    """Number of positional arguments that a function gets, such as outputs and targets."""

    @property
    def reference(self) -> CodeReference:
        return CodeReference.of(getattr(self, self.named_by))

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def is_custom(self) -> bool:
        """Return True unless the code is a part of PyTorch."""
        return True

    @model_validator(mode="after")
    def _check_arguments(self) -> Self:
        try:
            json.dumps(self.arguments, allow_nan=False)
        except ValueError:
            raise SettingError("arguments", names=", ".join(self.arguments)) from None
        return self


CodeName = Annotated[str, AfterValidator(lambda name: CodeReference.of(name) and name)]
"""`file.py:Name` or `package.module:Name`."""


class CustomCode(CallsCode):
    """Custom code whose name is under `name`."""

    name: CodeName


def built_in_or_own(key: str) -> Discriminator:
    """Return a discriminator of built-in and custom settings by the name under `key`."""

    def tag(settings: Any) -> str:
        name = settings.get(key) if isinstance(settings, dict) else getattr(settings, key, None)
        return OWN if is_reference(name) else BUILT_IN

    return Discriminator(tag)


_ModelT = TypeVar("_ModelT", bound=BaseModel)


def read_plan(path: Path, schema: type[_ModelT]) -> _ModelT:
    return schema.model_validate_json(path.read_bytes())
