"""What all settings have in common, and how a plan file of them is read back."""

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
    ValidationError,
    model_validator,
)

from photofinish.errors import UserError
from photofinish.files import read_summed
from photofinish.own_code import Reference, is_reference

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"  # it names folders and stages

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(ge=1, lt=2**31)]
NonNegativeInt = Annotated[int, Field(ge=0, lt=2**31)]
MOST_SEEDS = 2**32
"""that NumPy takes"""
Seed = Annotated[int, Field(ge=0, lt=MOST_SEEDS)]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]


def is_name(name: object) -> bool:
    """Whether it can name a folder and a stage."""
    return isinstance(name, str) and re.fullmatch(NAME_PATTERN, name) is not None


class Record(BaseModel):
    """Frozen, strict, and closed: nothing is converted when it is read, and an unknown key is a mistake."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Settings(Record):
    """What a user may write."""

    # Most are parts of others: a checker of its own is built only for what is read or written by itself.
    model_config = ConfigDict(defer_build=True)


BUILT_IN, OWN = "built-in", "own"
"""which of the two, as a part of pydantic's paths"""


class CallsCode(Settings):
    """A class or function of the user's own, or of an installed package, called with keys that lie beside its name."""

    model_config = ConfigDict(extra="allow")
    named_by: ClassVar[str] = "name"
    """the key that its name is under"""

    @property
    def reference(self) -> Reference:
        """Where it is written."""
        return Reference.of(getattr(self, self.named_by))

    @property
    def arguments(self) -> dict[str, Any]:
        """What it is called with."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _plan_files_can_hold_arguments(self) -> Self:
        for name, value in self.arguments.items():
            try:
                json.dumps(value, allow_nan=False)
            except ValueError:
                why = (
                    "plan files are JSON, which has no such numbers; write null, say, and take it for that in the code"
                )
                raise ValueError(f"{name}: .inf and .nan can't be handed over: {why}") from None
        return self


def _names_code(name: str) -> str:
    """What a validator gives; raises ValueError where it names none."""
    Reference.of(name)
    return name


CodeName = Annotated[str, AfterValidator(_names_code)]
"""file.py:Name, or package.module:Name"""


class OwnCode(CallsCode):
    """One whose name is under `name`."""

    name: CodeName


def built_in_or_own(key: str) -> Discriminator:
    """Tells settings apart by whether this key of theirs names code."""

    def tag(given: Any) -> str:
        name = given.get(key) if isinstance(given, dict) else getattr(given, key, None)
        return OWN if is_reference(name) else BUILT_IN

    return Discriminator(tag)


def is_whole_number(value: object) -> bool:
    """Whether it is written as one: Python holds 1, 1.0 and true to be equal; a user doesn't."""
    return type(value) is int


def is_number_in_quotes(value: object) -> bool:
    """Whether it would be a number without the quotes."""
    return isinstance(value, str) and re.fullmatch(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?", value) is not None


def refusal(value: object, what: str) -> ValueError:
    """That it must be something else, for a validator to raise."""
    return ValueError(f"must be {what}{', without quotes' if is_number_in_quotes(value) else ''}")


def list_of(count: int, what: str) -> BeforeValidator:
    """A list of exactly so many items, as the tuple that strict pydantic wants."""

    def check(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != count:
            raise ValueError(f"must be a list of {count} {what}")
        return tuple(value)

    return BeforeValidator(check)


_ModelT = TypeVar("_ModelT", bound=BaseModel)


def read_plan(path: Path, schema: type[_ModelT]) -> _ModelT:
    """One of the files under data/plan, as the settings that `plan` wrote."""
    try:
        return schema.model_validate_json(read_summed(path))
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} is not a plan that can be read: run `dvc repro plan` ({error})") from error
