"""A damaged params file is read, or refused in a message that names it; nothing else is ever raised."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_imports import ROOT

from photofinish.config.loader import Params, read_params
from photofinish.errors import ConfigError

GOOD: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
WORDS = st.sampled_from(["sgd", "adam", "linear", "mlp", "digits", "auto", "name", "lr", "betas", "hidden", "epochs"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS | st.dates()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3),
    max_leaves=8,
)

quickly = settings(max_examples=100, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read_or_refuse(params_file: Path, text: str) -> Params | None:
    """Return the settings, or None if the file is refused. Any other error fails the test."""
    params_file.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        return read_params(params_file)
    except ConfigError as error:
        message = str(error)
    assert message.startswith(str(params_file))
    return None


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a document."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places_in(inner, (*path, key))


PLACES = st.sampled_from(list(places_in(GOOD)))


def edited(document: Any, path: tuple[Any, ...], edit: str, new_key: Any, new_value: Any) -> Any:
    """Return the document with the value at `path` replaced, removed, renamed or given a sibling."""
    document = copy.deepcopy(document)
    try:
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        if edit == "replace":
            parent[path[-1]] = new_value
        elif edit == "add":
            parent[new_key] = new_value
        elif edit == "rename":
            parent[new_key] = parent.pop(path[-1])
        else:
            del parent[path[-1]]
    except (KeyError, IndexError, TypeError):
        return document  # an edit before took that place away
    return document


@quickly
@given(at=st.integers(0, 900), length=st.integers(0, 30), text=st.text("{}[]:,-#&*!|>'\"%@` \n\t0e.~xé", max_size=6))
def test_a_good_file_with_a_slip_of_the_keyboard_is_read_or_refused(
    params_file: Path, at: int, length: int, text: str
) -> None:
    good = yaml.safe_dump(GOOD)
    params = read_or_refuse(params_file, good[:at] + text + good[at + length :])
    assert params is None or params.experiments


@quickly
@given(
    edits=st.lists(
        st.tuples(PLACES, st.sampled_from(["replace", "remove", "rename", "add"]), SCALARS, VALUES),
        min_size=1,
        max_size=3,
    )
)
def test_a_good_document_with_some_edits_is_read_or_refused(
    params_file: Path, edits: list[tuple[tuple[Any, ...], str, Any, Any]]
) -> None:
    document = GOOD
    for edit in edits:
        document = edited(document, *edit)
    params = read_or_refuse(params_file, yaml.safe_dump(document))
    assert params is None or {one.dataset for one in params.experiments.values()} <= params.datasets.keys()
