"""Problems in params.yaml: where they are, what is wrong, and the nearest valid name."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from photofinish.config.base import BUILT_IN, OWN, CallsCode
from photofinish.config.messages import message_of
from photofinish.config.other_names import hint
from photofinish.wording import printable, shortened, unknown_name

KeyPath = tuple[str | int, ...]
NO_VALUE: Any = object()
MOST_PROBLEMS = 100
"""Number of problems after which the search for more ends."""
REQUIRED, NO_MAPPING, UNKNOWN_KEY = "this key is required", "must be a mapping", "unknown key"


@dataclass(frozen=True)
class ConfigProblem:
    """One problem in params.yaml."""

    path: KeyPath
    problem: str
    value: Any = NO_VALUE

    def describe(self, place: str) -> str:
        """Return two lines: the place and its value, and the problem."""
        key = ".".join(map(str, self.path)) or "(the whole file)"
        value = ""
        if self.value is not NO_VALUE:
            text = json.dumps(self.value, ensure_ascii=False)
            value = f" = {shortened(text)}"
        return printable(f"{place}  {key}{value}\n    {self.problem}")


def problems_in(error: ValidationError, schema: Any) -> Iterator[ConfigProblem]:
    """Yield pydantic's first errors as problems. Paths start at the validated part."""
    for detail in error.errors()[:MOST_PROBLEMS]:
        # Pydantic also calls a list too short if it has faulty items.
        if detail["type"] != "too_short" or not detail["input"]:
            yield _problem_in(detail, schema)


def _problem_in(error: ErrorDetails, schema: Any) -> ConfigProblem:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    path, _ = _resolve(schema, error["loc"])
    if kind == "extra_forbidden":
        _, models = _resolve(schema, error["loc"][:-1])
        names = list(dict.fromkeys(name for model in models for name in model.model_fields))
        if "optimizer" in names and (instead := hint(str(path[-1]))):
            return ConfigProblem(path, instead, value)
        return ConfigProblem(path, unknown_name("key", path[-1], names), value)
    if kind == "missing":
        return ConfigProblem(path, REQUIRED)
    if kind == "missing_key":
        return ConfigProblem((*path, context["key"]), REQUIRED)
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        key = context["discriminator"].strip("'")
        if kind == "union_tag_not_found":
            return ConfigProblem((*path, key), REQUIRED)
        what = str(path[-1]) if path and key == "name" else key
        problem = unknown_name(what, value[key], _names_in(context["expected_tags"]))
        return ConfigProblem((*path, key), problem, value[key])
    if kind == "literal_error":
        names = _names_in(context["expected"].replace(" or ", ", "))
        return ConfigProblem(path, unknown_name("value", value, names), value)
    if kind == "value_error":
        return ConfigProblem(
            path, message_of(context["error"]), NO_VALUE if value is None else value
        )
    return ConfigProblem(path, error["msg"], value)


def _names_in(quoted: str) -> list[str]:
    return [name.strip(" '") for name in quoted.split(",")]


def _resolve(schema: Any, location: tuple[int | str, ...]) -> tuple[KeyPath, list[type[BaseModel]]]:
    """Return the key path in the user's file, and the models allowed there.

    Unlike a key path, pydantic's location contains the tag of each union.
    """
    path: KeyPath = ()
    models = _models_in(schema)
    for part in location:
        if len(models) > 1:
            models = [model for model in models if part in _tags_of(model)]
        elif part != "[key]":  # follows a faulty key of a dict
            path = (*path, part)
            fields = [model.model_fields.get(str(part)) for model in models]
            models = [inner for field in fields if field for inner in _models_in(field.annotation)]
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
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return [annotation] if is_model else []
