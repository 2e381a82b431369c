"""A user's mistakes in words: where, what was found, what is allowed, and the nearest valid name."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from photofinish.params.base import BUILT_IN, OWN, CallsCode, is_number_in_quotes
from photofinish.params.experiment import SHORTHAND_KEYS
from photofinish.wording import all_or_some, did_you_mean, printable, shortened

KeyPath = tuple[str | int, ...]
NO_VALUE: Any = object()

REQUIRED = "this key is required"
NAME_RULE = "a name is 1 to 64 letters, digits, '-' and '_', and starts with a letter or a digit (it names a folder)"
_KEY = "[key]"
"""what pydantic adds to where a key is that is wrong itself"""
_TYPES_IN_WORDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}


@dataclass(frozen=True)
class Mistake:
    """One thing that the user wrote, and what is wrong with it."""

    path: KeyPath
    problem: str
    value: Any = NO_VALUE
    line: int | None = None
    """where it isn't that of the last key of this path"""

    @property
    def has_value(self) -> bool:
        """Whether there is something at this place."""
        return self.value is not NO_VALUE

    def describe(self, file: str, line: int) -> str:
        """Two lines: where it is and what is there; what is wrong with it."""
        # A part is quoted where a dot or a space in it would mislead.
        parts = (text if re.fullmatch(r"[\w-]+", text) else _as_json(text) for text in map(str, self.path))
        key = ".".join(parts) or "(the whole file)"
        value = f" = {shortened(_as_json(self.value))}" if self.has_value else ""
        return f"{file}:{line}  {key}{value}\n    {printable(self.problem)}"


def unknown_name(what: str, name: object, allowed: Sequence[str]) -> str:
    """'unknown optimizer; did you mean adam? allowed: ...'"""
    return f"unknown {what};{did_you_mean(name, allowed)} allowed: {all_or_some(allowed)}"


def mistakes_of(error: ValidationError, schema: Any, where: KeyPath = ()) -> Iterator[Mistake]:
    """Pydantic's complaints in words, about what the user's file has at `where`."""
    for detail in error.errors():
        # Of a list with a bad item, pydantic counts only the good ones, and so calls it too short as well.
        if detail["type"] != "too_short" or len(detail["input"]) < detail["ctx"]["min_length"]:
            path, _ = _resolved(schema, detail["loc"])
            yield _in_words(detail, (*where, *path), schema)


def _in_words(error: ErrorDetails, path: KeyPath, schema: Any) -> Mistake:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        _, models = _resolved(schema, error["loc"][:-1])
        allowed = list(dict.fromkeys(name for model in models for name in model.model_fields))
        return Mistake(path, unknown_name("key", path[-1], allowed), value)
    if kind == "missing":
        return Mistake(path, REQUIRED)
    if kind == "union_tag_not_found":
        return Mistake((*path, _unquote(context["discriminator"])[0]), REQUIRED)
    if kind == "union_tag_invalid":
        tag = _unquote(context["discriminator"])[0]
        allowed, what = _unquote(context["expected_tags"]), str(path[-1]) if tag == "name" else tag
        return Mistake((*path, tag), unknown_name(what, value[tag], allowed), value[tag])
    if kind == "literal_error":
        allowed = _unquote(context["expected"].replace(" or ", ", "))
        return Mistake(path, unknown_name("value", value, allowed), value)
    if kind == "string_pattern_mismatch":
        return Mistake(path, NAME_RULE, value)
    if kind == "value_error":
        return Mistake(path, str(context["error"]), NO_VALUE if value is None else value)
    if kind == "too_short":
        least = context["min_length"]
        return Mistake(path, f"must have at least {least} item{'' if least == 1 else 's'}", value)
    if kind == "none_required":
        return Mistake(path, "this source's images are of one shape: leave this key out", value)
    if kind in _TYPES_IN_WORDS:
        return Mistake(path, f"must be {_type_in_words(kind, path[-1], value)}", value)
    problem = error["msg"].replace("Input should", "must").replace("greater than or equal to", "at least")
    return Mistake(path, problem.replace("less than or equal to", "at most"), value)


def _type_in_words(kind: str, key: str | int, value: Any) -> str:
    if key in SHORTHAND_KEYS:
        return "a name, or a mapping of its name and settings"
    words = _TYPES_IN_WORDS[kind]
    if "number" in words and is_number_in_quotes(value):
        return f"{words}, without quotes"
    if words == "a whole number" and isinstance(value, float) and value.is_integer():
        return f"{words}, without a point or an exponent"
    if words == "text" and isinstance(value, int | float):
        return f"{words}, so in quotes"
    if words == "a list" and isinstance(value, int | float | str):
        return f"{words}, in brackets"
    return words


def _resolved(schema: Any, location: tuple[int | str, ...]) -> tuple[KeyPath, list[type[BaseModel]]]:
    """Where the user's file has what pydantic names, without the tags of unions that pydantic puts between, and the
    settings that may be there."""
    path: KeyPath = ()
    models = _models_in(schema)
    for part in location:
        if len(models) > 1:
            models = [model for model in models if part in _tags_of(model)]
        elif part != _KEY:
            path = (*path, part)
            fields = [model.model_fields[str(part)] for model in models if part in model.model_fields]
            models = [member for field in fields for member in _models_in(field.annotation)]
    return path, models


def _tags_of(model: type[BaseModel]) -> tuple[Any, ...]:
    if issubclass(model, CallsCode):
        return (OWN,)
    named_by = model.model_fields.get("name") or model.model_fields["source"]
    return (BUILT_IN, *get_args(named_by.annotation))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if get_origin(annotation) is Annotated:
        return _models_in(get_args(annotation)[0])
    if get_origin(annotation) in (types.UnionType, Union):  # the second, of what is annotated
        return [member for option in get_args(annotation) for member in _models_in(option)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


def _unquote(names: str) -> list[str]:
    return [name.strip(" '") for name in names.split(",")]


def _as_json(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False, default=str))
