"""Source of a running script: its functions, its expressions and their values, without effects."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import itertools
import linecache
import math
import re
import sys
import sysconfig
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import torch

_WRAPPERS = ("tqdm", "enumerate", "reversed", "sorted", "list", "iter", "track", "progress_bar")
"""Functions with as many items as their first argument."""
_FUNCTIONS = (int, len, range, min, max, round, abs, math.ceil, math.floor)
_METHODS = ("get", "size")
"""Methods of dictionaries and tensors, which are not Python code."""
_STEADY = {*(known.__name__ for known in _FUNCTIONS), *_METHODS, *_WRAPPERS}
_STEADY |= {"isinstance", "getattr", "hasattr", "is_available", "is_initialized", "get_rank"}
"""Functions that answer alike in each iteration, if they are given the same."""
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
LOOPS = ast.For | ast.While | COMPREHENSIONS
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
_BRANCHES = ast.If | ast.match_case | ast.ExceptHandler
_VARIABLES = ast.Name | ast.Attribute | ast.Subscript
_PLAIN = _VARIABLES | ast.Constant | ast.Slice | ast.List | ast.Tuple | ast.Dict
_PLAIN |= ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare
"""Expressions without effects, if their parts have none."""
_OPERATIONS = ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare | ast.Call
"""Expressions that may run methods of their operands."""
_LIBRARIES = (
    *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)
_OF_TRAINING = re.compile("epoch|step|stop|train")
"""Words of files whose functions may train, or set what a length depends on."""
_OWN_REFERENCES = 3
"""References to a frame's snapshot of variables if the script itself has none."""


def names_of(frame: FrameType) -> Mapping[str, Any]:
    """Return the variables of a frame."""
    names = values = frame.f_locals
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
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


def count_of(node: Any, names: Mapping[str, Any]) -> tuple[float, bool]:
    """Return the number of items, or NaN if that is not known, and whether they are batches."""
    function = called(node)
    try:
        if function == "split":  # of folds
            return int(value_of(node.func.value, names).n_splits), False
        is_view = function in ("items", "keys", "values")
        value = value_of(node.func.value if is_view else node, names)
        if type(value).__module__.startswith("tqdm"):
            value = value.iterable
        is_loader = any(kind.__name__ == "DataLoader" for kind in type(value).__mro__)
        is_known = _is_plain(value) and (not is_view or isinstance(value, dict))
        return len(value) if is_known else math.nan, is_loader
    except Exception:  # noqa: BLE001  # of the user's code, whose training goes on
        return math.nan, False


def _is_plain(value: Any) -> bool:
    """Return whether operators and functions run none of the user's code for a value."""
    parts = value, inspect.getattr_static(value, "batch_sampler", value)
    packages = {type(part).__module__.partition(".")[0] for part in parts if part is not None}
    return packages <= {"builtins", "torch", "numpy"} and not hasattr(value, "__next__")


def value_of(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression, which the script has just evaluated itself.

    Raise LookupError if that calls more than known functions without effects.
    """
    for part in ast.walk(node):
        is_safe = isinstance(part, _PLAIN) or not isinstance(part, ast.expr)
        if isinstance(part, ast.Call):
            function = value_of(part.func, names)
            is_method = isinstance(function, BuiltinFunctionType) and function.__name__ in _METHODS
            is_method = is_method and isinstance(function.__self__, (dict, torch.Tensor))
            is_safe = is_method or any(function is known for known in _FUNCTIONS)
        elif isinstance(part, ast.Attribute):
            # A property may have effects. Items of a mapping may be attributes.
            value = value_of(part.value, names)
            missing = (None,) if isinstance(value, Mapping) else ()
            attribute = inspect.getattr_static(value, part.attr, *missing)
            getter = getattr(type(attribute), "__get__", None)
            is_safe = not isinstance(attribute, property) and not isinstance(getter, FunctionType)
        elif isinstance(part, ast.Subscript):
            value = value_of(part.value, names)
            is_safe = isinstance(value, (list, tuple, Mapping))
            is_safe = is_safe and not hasattr(type(value), "__missing__")
        is_identity = isinstance(getattr(part, "ops", [None])[0], ast.Is | ast.IsNot)
        if isinstance(part, _OPERATIONS) and not is_identity:
            operands = [each for each in ast.iter_child_nodes(part) if isinstance(each, _VARIABLES)]
            is_safe = is_safe and all(_is_plain(value_of(each, names)) for each in operands)
        if not is_safe:
            raise LookupError(ast.unparse(part))
    return eval(ast.unparse(node), {}, names)  # noqa: S307  # the script has it


def inside(node: ast.AST, without: Any) -> Iterator[Any]:
    """Yield the nodes in a node, without those of some kinds and what is in them."""
    for part in ast.iter_child_nodes(node):
        if not isinstance(part, without):
            yield part
            yield from inside(part, without)


def all_of(node: ast.AST, kinds: Any) -> list[Any]:
    return [part for part in ast.walk(node) if isinstance(part, kinds)]


def texts_of(*nodes: ast.AST) -> set[str]:
    """Return the variables that code names, with their attributes and items."""
    return {ast.unparse(part) for node in nodes for part in all_of(node, _VARIABLES)}


def called(node: Any) -> str:
    """Return the last part of the name of a called function, or "" if nothing is called."""
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def stores_of(parts: Iterable[ast.AST]) -> list[Any]:
    """Return the variables, attributes and items among parts of code that it sets."""
    variables = [part for part in parts if isinstance(part, _VARIABLES)]
    return [part for part in variables if isinstance(part.ctx, ast.Store)]


def words_of(parts: Iterable[Any], unclear: Set[str] = frozenset()) -> set[str]:
    """Return the names among parts of code. Those of `unclear` count unless they are attributes."""
    parts = [*parts]
    attributes = {part.attr for part in parts if isinstance(part, ast.Attribute)}
    return attributes - unclear | {part.id for part in parts if isinstance(part, ast.Name)}


def is_unclear(node: ast.AST) -> bool:
    """Return whether code calls a function that may answer differently each time."""
    return any(called(call) not in _STEADY for call in all_of(node, ast.Call))


def ends_of(loop: ast.AST) -> Iterator[tuple[list[ast.expr], Any]]:
    """Yield each statement that may end a loop, after the conditions that lead to it."""
    own = [*inside(loop, DEFINITIONS)]
    direct = [*inside(loop, LOOPS | DEFINITIONS)]
    if isinstance(loop, ast.While):
        for test in _parts_of(loop.test):
            yield [ast.UnaryOp(ast.Not(), test)], loop
    for end in own:
        is_exit = isinstance(end, ast.Expr) and called(end.value) in ("exit", "_exit")
        is_break = isinstance(end, ast.Break) and end in direct
        if not (is_exit or is_break or isinstance(end, ast.Return | ast.Raise)):
            continue
        tests: list[ast.expr] = []
        for part in (part for part in own if isinstance(part, _BRANCHES) if end in ast.walk(part)):
            if isinstance(part, ast.If):
                is_met = any(end in ast.walk(statement) for statement in part.body)
                tests += _parts_of(part.test) if is_met else [ast.UnaryOp(ast.Not(), part.test)]
            elif isinstance(part, ast.match_case):
                tests.append(ast.Call(ast.Name("case"), [], []))
            elif isinstance(part, ast.ExceptHandler):  # of what does not happen
                tests.append(ast.Constant(False))
        yield tests, end


def _parts_of(test: Any) -> list[ast.expr]:
    """Return the conditions that all have to be met."""
    is_and = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)
    return test.values if is_and else [test]


def comparison_of(tests: list[Any]) -> tuple[Any, bool]:
    """Return the comparison that an only condition is, and whether it is met beyond its limit.

    Return None if it is another condition, or is met below a limit.
    """
    is_negated = isinstance(tests[0], ast.UnaryOp) if tests else False
    compare = tests[0].operand if is_negated else tests[0] if tests else None
    kinds: Any = (ast.LtE, ast.Lt, ast.NotEq) if is_negated else (ast.Gt, ast.GtE, ast.Eq)
    if (
        len(tests) != 1
        or not isinstance(compare, ast.Compare)
        or not isinstance(compare.ops[0], kinds)
    ):
        return None, False
    return compare, isinstance(compare.ops[0], kinds[0])


@functools.cache  # each new optimizer reads it again
def tree_of(file: str) -> ast.Module:
    """Return the source of a file. Raise OSError if it has none."""
    lines = linecache.getlines(file)
    if not lines:
        raise OSError(file)
    return ast.parse("".join(lines))


@functools.cache
def _codes_of(tree: ast.Module) -> list[CodeType]:
    codes = [compile(tree, "", "exec", dont_inherit=True)]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
    return codes


def way_of(frame: FrameType, tree: ast.Module) -> list[Any]:
    """Return the nodes around a frame's current call, from its function to the call."""
    if frame.f_code not in _codes_of(tree):  # the file has changed since
        raise LookupError(frame.f_code.co_name)
    at: Any = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    line, end_line, column, end_column = at  # of code without positions, these are None
    way, nodes = [tree], [*ast.iter_child_nodes(tree)]
    while nodes:
        node: Any = nodes.pop()
        is_around = not hasattr(node, "lineno") or (
            (node.lineno, node.col_offset) <= (line, column)
            and (end_line, end_column) <= (node.end_lineno, node.end_col_offset)
        )
        way += [node] if is_around and hasattr(node, "lineno") else []
        nodes += ast.iter_child_nodes(node) if is_around else []
    name = frame.f_code.co_name
    kinds: Any = COMPREHENSIONS if name.endswith(("comp>", "<genexpr>")) else DEFINITIONS
    own = max((at for at, node in enumerate(way) if isinstance(node, kinds)), default=0)
    return way[own + name.endswith("comp>") :]


def files_of(function: ast.expr, names: Any) -> set[str]:
    """Return the source file of a function or class that is called, if it may train."""
    try:
        file = inspect.getfile(inspect.unwrap(value_of(function, names)))
        is_own = not file.startswith(_LIBRARIES) and _OF_TRAINING.search(
            "".join(linecache.getlines(file))
        )
        return {file} if is_own and tree_of(file) else set()
    except Exception:  # noqa: BLE001  # not a function, or without source
        return set()


class Function(NamedTuple):
    node: ast.FunctionDef
    words: set[str]
    """Names in it, other than attributes `step` and `train` of schedules and networks."""
    stores: set[str]
    """Names outside itself that it sets, other than for a new object."""


@functools.cache
def functions_in(file: str) -> list[Function]:
    functions = []
    for node in all_of(tree_of(file), ast.FunctionDef):
        parts = [*ast.walk(node)]
        stores = [part for part in stores_of(parts) if node.name != "__init__"]
        names = {part.attr for part in stores if isinstance(part, ast.Attribute)}
        items = [part.value for part in stores if isinstance(part, ast.Subscript)]
        names |= words_of(itertools.chain(*map(ast.walk, items)))
        names |= {
            name
            for part in parts
            if isinstance(part, ast.Global | ast.Nonlocal)
            for name in part.names
        }
        functions.append(Function(node, words_of(parts, {"step", "train"}), names))
    return functions
