"""Inputs and targets of a network: one array or tensor, or a tuple or dict of them.

Also `dotted`, for settings and records of any depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, Union

_Leaf = TypeVar("_Leaf")
Nested = Union[_Leaf, tuple[_Leaf, ...], dict[str, _Leaf]]  # noqa: UP007  # it takes a parameter
"""A value, or a tuple or dict of values."""


def map_nested(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Apply a function to each leaf of `value` and the matching leaves of `others`."""
    if isinstance(value, dict):
        return {key: function(leaf, *(one[key] for one in others)) for key, leaf in value.items()}
    if isinstance(value, tuple):
        return tuple(function(*items) for items in zip(value, *others, strict=True))
    return function(value, *others)


def leaves(value: Any) -> list[Any]:
    """Return the leaves, in order."""
    if isinstance(value, dict):
        return [*value.values()]
    return [*value] if isinstance(value, tuple) else [value]


def leaf_names(value: Any) -> list[str]:
    """Return the key or number of each leaf, or an empty name for a value that is no collection."""
    if isinstance(value, dict):
        return [*value]
    return [*map(str, range(len(value)))] if isinstance(value, tuple) else [""]


def as_nested(values: list[Any], like: Any) -> Any:
    """Return `values` in the structure of `like`: a tuple, a dict, or a single leaf."""
    remaining = iter(values)
    return map_nested(lambda _: next(remaining), like)


def samples_in(value: Any) -> int:
    """Return the number of samples in a batch's inputs or targets."""
    return len(leaves(value)[0])


def call_with(function: Callable[..., Any], inputs: Any) -> Any:
    """Call a function. A tuple becomes its arguments, a dict its keyword arguments."""
    if isinstance(inputs, tuple):
        return function(*inputs)
    if isinstance(inputs, dict):
        return function(**inputs)
    return function(inputs)


def dotted(
    value: Any, name: str = "", may_be_name: Callable[[str], object] = lambda _: True
) -> Iterator[tuple[str, Any]]:
    """Yield `optimizer.lr`, 0.1 for `{"optimizer": {"lr": 0.1}}`.

    A dict is not split if `may_be_name` refuses one of its dotted names.
    """
    if isinstance(value, dict):
        children = {f"{name}.{key}" if name else str(key): child for key, child in value.items()}
        if all(map(may_be_name, children)):
            for key, child in children.items():
                yield from dotted(child, key, may_be_name)
            return
    yield name, value
