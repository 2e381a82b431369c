"""Expressions of a running script: their values, without effects, and what they name."""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FrameType, FunctionType
from typing import Any

import torch

_WRAPPERS = ("tqdm", "enumerate", "reversed", "sorted", "list", "iter", "track", "progress_bar")
"""Functions with as many items as their first argument."""
_FUNCTIONS = (int, len, range, min, max, round, abs, getattr, math.ceil, math.floor)
_METHODS = ("get", "size")
"""Methods of dictionaries and tensors, which are not Python code."""
STEADY = {*(known.__name__ for known in _FUNCTIONS), *_METHODS, *_WRAPPERS}
STEADY |= {"isinstance", "hasattr", "is_available", "is_initialized", "get_rank"}
"""Functions that answer alike in each iteration, if they are given the same."""
_VARIABLES = ast.Name | ast.Attribute | ast.Subscript
_PLAIN = _VARIABLES | ast.Constant | ast.List | ast.Tuple | ast.Dict
_PLAIN |= ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare
"""Expressions without effects, if their parts have none."""
_OWN_REFERENCES = 3
"""References to a frame's snapshot of variables if the script itself has none."""


def names_of(frame: FrameType) -> Mapping[str, Any]:
    """Return the variables of a frame."""
    names: dict[str, Any] = {}
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        values = frame.f_locals
        names = dict(values)
        # Before Python 3.13, this snapshot keeps all local variables alive until it is cleared.
        if isinstance(values, dict) and sys.getrefcount(values) == _OWN_REFERENCES:
            values.clear()
    return ChainMap(names, frame.f_globals, vars(builtins))


def unwrapped(node: Any) -> Any:
    """Return what a call of a function with as many items takes."""
    while called(node) in _WRAPPERS and node.args:
        node = node.args[0]
    return node


def count_of(node: Any, names: Mapping[str, Any]) -> int | None:
    """Return the number of items, or None if that is not known, or of data."""
    function = called(node)
    try:
        if function == "split":  # of folds
            return int(value_of(node.func.value, names).n_splits)
        is_view = function in ("items", "keys", "values")
        value = value_of(node.func.value if is_view else node, names)
        if type(value).__module__.startswith("tqdm"):
            value = value.iterable
        is_loader = any(kind.__name__ == "DataLoader" for kind in type(value).__mro__)
        return None if is_loader or (is_view and not isinstance(value, dict)) else len(value)
    except Exception:  # noqa: BLE001  # of the user's code, whose training goes on
        return None


def value_of(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression, which the script has just evaluated itself.

    Raise LookupError if that calls more than known functions without effects.
    """
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            function = value_of(each.func, names)
            is_method = isinstance(function, BuiltinFunctionType) and function.__name__ in _METHODS
            is_method = is_method and isinstance(function.__self__, (dict, torch.Tensor))
            if not is_method and not any(function is known for known in _FUNCTIONS):
                raise LookupError(ast.unparse(each))
        elif isinstance(each, ast.Attribute):
            # A property may have effects. Without __getattr__, a missing one raises AttributeError.
            attribute = inspect.getattr_static(value_of(each.value, names), each.attr)
            getter = getattr(type(attribute), "__get__", None)
            if isinstance(attribute, property) or isinstance(getter, FunctionType):
                raise LookupError(ast.unparse(each))
        elif isinstance(each, ast.Subscript):
            if type(value_of(each.value, names)) not in (list, tuple, dict, torch.Size):
                raise LookupError(ast.unparse(each))
        elif isinstance(each, ast.expr) and not isinstance(each, _PLAIN):
            raise LookupError(ast.unparse(each))
    return eval(ast.unparse(node), {}, names)  # noqa: S307  # the script has it


def inside(node: ast.AST, without: Any) -> Iterator[Any]:
    """Yield the nodes in a node, without those of some kinds and what is in them."""
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, without):
            yield each
            yield from inside(each, without)


def all_of(node: ast.AST, kinds: Any) -> list[Any]:
    return [each for each in ast.walk(node) if isinstance(each, kinds)]


def texts_of(*nodes: ast.AST) -> set[str]:
    """Return the variables that code names, with their attributes and items."""
    return {ast.unparse(each) for node in nodes for each in all_of(node, _VARIABLES)}


def called(node: Any) -> str:
    """Return the last part of the name of a called function, or "" if nothing is called."""
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
