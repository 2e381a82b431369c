"""A damaged params file is loaded, or refused in a message that names it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_imports import ROOT

from photofinish.config.loader import read_params
from photofinish.errors import ConfigError

GOOD: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
WORDS = st.sampled_from(["sgd", "linear", "mlp", "digits", "auto", "name", "lr", "betas", "hidden"])
KEYS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats()),
    *(st.text(max_size=8), WORDS, st.dates()),
)
VALUES = st.recursive(
    KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths_in(inner, (*path, key))


def edit(document: Any, path: tuple[Any, ...], how: str, key: Any, value: Any) -> None:
    """Replace, remove or rename the value at `path`, or add another one next to it."""
    try:
        parent = document
        for part in path[:-1]:
            parent = parent[part]
        if how == "replace":
            parent[path[-1]] = value
        elif how == "add":
            parent[key] = value
        elif how == "rename":
            parent[key] = parent.pop(path[-1])
        else:
            del parent[path[-1]]
    except (KeyError, IndexError, TypeError):
        return  # an earlier edit removed that place


KINDS = st.sampled_from(["replace", "remove", "rename", "add"])
EDITS = st.tuples(st.sampled_from([*paths_in(GOOD)]), KINDS, KEYS, VALUES)


@settings(
    max_examples=100, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(edits=st.lists(EDITS, min_size=1, max_size=3))
def test_a_document_with_some_edits_is_loaded_or_refused(
    params_file: Path, edits: list[Any]
) -> None:
    document = copy.deepcopy(GOOD)
    for path, how, key, value in edits:
        edit(document, path, how, key, copy.deepcopy(value))
    text = yaml.safe_dump(document)
    params_file.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        params = read_params(params_file)
    except ConfigError as error:
        message = str(error)
    else:
        message = str(params_file)
        used = {experiment.dataset for experiment in params.experiments.values()}
        assert used <= set(params.datasets)
    assert message.startswith(str(params_file))
