"""Mistakes in params.yaml: where they are, what is wrong, and the nearest valid name."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from photofinish.config.base import BUILT_IN, OWN, CallsCode
from photofinish.wording import all_or_some, did_you_mean, shortened

KeyPath = tuple[str | int, ...]
NO_VALUE: Any = object()

REQUIRED = "this key is required"
NAME_RULE = "a name is 1 to 64 letters, digits, '-' and '_', and starts with a letter or a digit (it names a folder)"


@dataclass(frozen=True)
class ConfigProblem:
    """One mistake in params.yaml."""

    path: KeyPath
    problem: str
    value: Any = NO_VALUE
    line: int | None = None
    """Line, if it differs from the line of the last key of `path`."""

    @property
    def has_value(self) -> bool:
        """Return True if the file has a value at this place."""
        return self.value is not NO_VALUE

    def describe(self, file: str, line: int) -> str:
        """Return two lines: the place and its value, and the problem."""
        key = ".".join(map(str, self.path)) or "(the whole file)"
        value = ""
        if self.has_value:
            value = " = " + shortened(json.dumps(self.value, ensure_ascii=False, default=str))
        return f"{file}:{line}  {key}{value}\n    {self.problem}"


def unknown_name(what: str, name: object, allowed: Sequence[str]) -> str:
    """Return 'unknown optimizer; did you mean adam? allowed: ...'."""
    return f"unknown {what};{did_you_mean(name, allowed)} allowed: {all_or_some(allowed)}"


def mistakes_of(error: ValidationError, schema: Any, where: KeyPath = ()) -> Iterator[ConfigProblem]:
    """Yield pydantic's errors as mistakes in the part of the file at `where`."""
    for detail in error.errors():
        # Pydantic counts only the valid items of a list: with a faulty one, it also calls the list too short.
        if detail["type"] != "too_short" or not detail["input"]:
            yield _mistake_of(detail, schema, where)


def _mistake_of(error: ErrorDetails, schema: Any, where: KeyPath) -> ConfigProblem:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    inner_path, _ = _resolve(schema, error["loc"])
    path = (*where, *inner_path)
    if kind == "extra_forbidden":
        _, models = _resolve(schema, error["loc"][:-1])
        allowed = list(dict.fromkeys(name for model in models for name in model.model_fields))
        return ConfigProblem(path, unknown_name("key", path[-1], allowed), value)
    if kind == "missing":
        return ConfigProblem(path, REQUIRED)
    if kind == "union_tag_not_found":
        return ConfigProblem((*path, context["discriminator"].strip("'")), REQUIRED)
    if kind == "union_tag_invalid":
        tag = context["discriminator"].strip("'")
        what = str(path[-1]) if tag == "name" else tag
        problem = unknown_name(what, value[tag], _names_in(context["expected_tags"]))
        return ConfigProblem((*path, tag), problem, value[tag])
    if kind == "literal_error":
        allowed = _names_in(context["expected"].replace(" or ", ", "))
        return ConfigProblem(path, unknown_name("value", value, allowed), value)
    if kind == "value_error":
        return ConfigProblem(path, str(context["error"]), NO_VALUE if value is None else value)
    return ConfigProblem(path, error["msg"], value)


def _names_in(quoted: str) -> list[str]:
    return [name.strip(" '") for name in quoted.split(",")]


def _resolve(schema: Any, location: tuple[int | str, ...]) -> tuple[KeyPath, list[type[BaseModel]]]:
    """Return the place in the user's file, and the models allowed there.

    Pydantic's location also has the tag of each union.
    """
    path: KeyPath = ()
    models = _models_in(schema)
    for part in location:
        if len(models) > 1:
            models = [model for model in models if part in _tags_of(model)]
        elif part != "[key]":  # follows a faulty key of a dict
            path = (*path, part)
            fields = [model.model_fields[str(part)] for model in models if part in model.model_fields]
            models = [inner for field in fields for inner in _models_in(field.annotation)]
    return path, models


def _tags_of(model: type[BaseModel]) -> tuple[Any, ...]:
    if issubclass(model, CallsCode):
        return (OWN,)
    named_by = model.model_fields.get("name") or model.model_fields["source"]
    return (BUILT_IN, *get_args(named_by.annotation))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if get_origin(annotation) is Annotated:
        return _models_in(get_args(annotation)[0])
    if get_origin(annotation) in (types.UnionType, Union):
        return [model for option in get_args(annotation) for model in _models_in(option)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []
