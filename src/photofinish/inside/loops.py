"""Length of a training by the loops around the line that steps, as its source has them."""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import math
import operator
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, FrameType
from typing import Any

_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp
_LOOPS = ast.For | ast.While | _COMPREHENSIONS
_ENDS = ast.Break | ast.Return | ast.Raise
_WITHOUT = tuple(f"{name}." for name in (__package__, "torch", "fire"))
"""Packages whose loops repeat no step: hooks of optimizers, and Fire's search for a command."""
_WRAPPERS = ("tqdm", "enumerate", "reversed", "list", "iter", "track", "progress_bar")
_ENDED_ELSEWHERE = ("count", "cycle", "repeat", "islice")
_FUNCTIONS = (int, len, range, min, max, round, abs, getattr, math.ceil, math.floor)
_METHODS = ("get", "size")
"""Methods of dictionaries and tensors, which are not Python code."""
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_OWN_REFERENCES = 3
"""References to a frame's snapshot of variables if the script itself has none."""


@dataclass
class _Loop:
    """Loop around a step."""

    place: str
    text: str = ""
    count: int | None = None
    """Number of its iterations, or None if that is not known."""
    is_pass: bool = False
    """True if it goes once through data whose number of batches is not known here."""
    names: frozenset[str] = frozenset()
    """Names of the variables that it counts."""


def length_of_loops() -> dict[str, Any] | None:
    """Return the epochs or steps that the loops around the running step have, and where.

    Return None if the number of iterations of any of them is not clear.
    """
    frames: list[FrameType] = []
    frame = inspect.currentframe()
    while frame := frame and frame.f_back:
        module = f"{frame.f_globals.get('__name__', '')}."
        is_frozen = frame.f_code.co_filename.startswith("<frozen")  # such as runpy
        if not is_frozen and not module.startswith(_WITHOUT):
            frames.insert(0, frame)
    loops: list[_Loop] = []
    try:
        for frame in frames:
            _add_loops(frame, loops)
    except Exception:  # noqa: BLE001  # the training goes on without its source, too
        return None
    known = [*itertools.takewhile(lambda loop: loop.count is not None, loops)]
    rest = loops[len(known) :]
    value = math.prod(loop.count or 0 for loop in known)
    is_clear = not rest or (rest[0].is_pass and all(loop.count for loop in rest[1:]))
    if not known or not value or not is_clear:
        return None
    shown = [loop for loop in known if loop.count != 1] or known[-1:]
    by = f"{' x '.join(loop.text for loop in shown)} in {shown[0].place}"
    return {"name": "epochs" if rest else "max_steps", "value": value, "by": by}


def _add_loops(frame: FrameType, loops: list[_Loop]) -> None:
    """Add the loops around a frame's current call, and correct the counts of those before."""
    code = frame.f_code
    if code.co_name.startswith("<") and code.co_name != "<module>":  # has no statements
        loops += [_Loop("", is_pass=True)] if code.co_name == "<genexpr>" else []
        return
    nodes, at_line = _around(frame)
    names = _names(frame, nodes) if nodes else {}
    counted: list[ast.AST] = []  # by the counter of a `while`
    for number, node in enumerate(nodes):
        if isinstance(node, ast.If):
            if node not in counted:
                _apply_condition(node.test, loops)
            continue
        loop = _Loop(f"{Path(code.co_filename).name}:{node.lineno}")
        loops.append(loop)
        if node in counted:
            loop.count = 1
        elif isinstance(node, ast.For):
            _read_for(node, loop, names)
            if any(_named(node.iter) & outer.names for outer in loops[:-1]) and not loop.is_pass:
                loop.count = None
        elif isinstance(node, ast.While):
            counted += _read_while(node, nodes[number + 1 :], loop, names)
        else:
            loop.is_pass = True
        for test, line in _conditions(node, ast.Continue):
            if line < at_line:
                _apply_condition(test, loops)


def _around(frame: FrameType) -> tuple[list[Any], int]:
    """Return the loops and conditions around a frame's current call, and the line of this."""
    lines, first = inspect.getsourcelines(frame)
    is_inner = first > 0 and lines[0][:1].isspace()
    tree = ast.parse("".join(["if True:\n", *lines] if is_inner else lines))
    ast.increment_lineno(tree, max(0, first - 1) - is_inner)
    positions = frame.f_code.co_positions()
    at: Any = next(itertools.islice(positions, frame.f_lasti // 2, None))
    if None in at:
        raise LookupError("the code has no positions")
    around = _holders(tree, _LOOPS | ast.If, *at)[is_inner:]
    after = around[0].end_lineno if around else at[1]
    later = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and each.lineno > after]
    called = {ast.unparse(each.func) for each in _holders(tree, ast.Call, *at)[-1:]}
    if called & {ast.unparse(each.func) for each in later}:
        raise LookupError("it may train again later")
    return around, at[0]


def _holders(
    tree: ast.AST, kinds: Any, line: int, end_line: int, column: int, end_column: int
) -> list[Any]:
    """Return the nodes of these kinds that contain a place, the outermost first."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, kinds)
        if (node.lineno, node.col_offset) <= (line, column)
        if (end_line, end_column) <= (node.end_lineno or 0, node.end_col_offset or 0)
    ]


def _names(frame: FrameType, nodes: list[Any]) -> Mapping[str, Any]:
    """Return the variables that these nodes name."""
    names = {name for node in nodes for name in _named(node)}
    found: dict[str, Any] = {}
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        values = frame.f_locals
        found = {name: values[name] for name in names if name in values}
        # Before Python 3.13, this snapshot keeps all local variables alive until it is cleared.
        if isinstance(values, dict) and sys.getrefcount(values) == _OWN_REFERENCES:
            values.clear()
    return ChainMap(found, frame.f_globals, vars(builtins))


def _read_for(node: ast.For, loop: _Loop, names: Mapping[str, Any]) -> None:
    """Fill in the loop of a `for`."""
    iterable, total = node.iter, None
    while isinstance(iterable, ast.Call) and _called(iterable) in _WRAPPERS and iterable.args:
        total = next((each.value for each in iterable.keywords if each.arg == "total"), total)
        iterable = iterable.args[0]
    if isinstance(iterable, ast.Call) and _called(iterable) in ("range", "trange"):
        iterable = ast.Call(ast.Name("range"), iterable.args, [])
        is_plain = len(iterable.args) == 1 and not isinstance(iterable.args[0], ast.Constant)
        loop.text = ast.unparse(iterable.args[0]) if is_plain else ""
    loop.text = loop.text or ast.unparse(iterable)
    loop.names = _named(node.target)
    loop.count, loop.is_pass = _count(iterable, total, names)
    bases = (type(names.get(name)).__mro__ for name in loop.names)
    steps_each = any(base.__name__ == "Optimizer" for base in itertools.chain(*bases))
    if steps_each or any(isinstance(each, ast.Break) for each in node.body):
        loop.count, loop.is_pass = 1, False
    # A counter that is never reset ends the loop sooner. One that is reset is patience.
    sums = [each for each in ast.walk(node) if isinstance(each, ast.AugAssign)]
    counters = {ast.unparse(each.target) for each in sums}
    assigned = [each for each in ast.walk(node) if isinstance(each, ast.Assign)]
    counters -= {ast.unparse(target) for each in assigned for target in each.targets}
    for test, _ in _conditions(node, _ENDS):
        if isinstance(test, ast.Compare) and ast.unparse(test.left) in loop.names | counters:
            loop.count, loop.is_pass = None, False


def _count(
    iterable: ast.expr, total: ast.expr | None, names: Mapping[str, Any]
) -> tuple[int | None, bool]:
    """Return the number of items if it is known, and else whether these may be batches."""
    if isinstance(iterable, ast.Call) and _called(iterable) in _ENDED_ELSEWHERE:
        return None, False
    try:
        if total and isinstance(iterable, ast.Call | ast.GeneratorExp):
            return int(_value(total, names)), False
        value = _value(iterable, names)
        if type(value).__module__.startswith("tqdm"):
            value = value.iterable
        if any(kind.__name__ == "DataLoader" for kind in type(value).__mro__):
            return None, True
        # Words may be phases, such as train and val, of which only one steps.
        if isinstance(value, list | dict | tuple) and isinstance([*value, 0][0], str | bool):
            return None, False
        return len(value), False
    except Exception:  # noqa: BLE001  # of the user's code, whose training goes on
        return None, True


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression, which the script has just evaluated itself.

    Raise LookupError if that calls more than known functions without effects.
    """
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, names), node.attr)
    if isinstance(node, ast.Subscript):
        return _value(node.value, names)[_value(node.slice, names)]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each, names) for each in node.elts]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        sides = _value(node.left, names), _value(node.right, names)
        if all(isinstance(side, int | float) for side in sides):
            return _OPERATORS[type(node.op)](*sides)
    if isinstance(node, ast.Call) and not node.keywords:
        function = _value(node.func, names)
        is_method = isinstance(function, BuiltinFunctionType) and function.__name__ in _METHODS
        if is_method or any(function is each for each in _FUNCTIONS):
            return function(*(_value(each, names) for each in node.args))
    raise LookupError(ast.unparse(node))


def _read_while(
    node: ast.While, inner: list[Any], loop: _Loop, names: Mapping[str, Any]
) -> list[Any]:
    """Fill in a `while` with a counter, and return the inner nodes that this counts, too.

    `inner` are the nodes between the loop and the step.
    """
    tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
    ends = [test for test, _ in _conditions(node, ast.Break)]
    for test in [*tests, *ends]:
        kinds = (ast.Gt, ast.GtE, ast.Eq) if test in ends else (ast.Lt, ast.LtE)
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], kinds):
            continue
        counting = f"{ast.unparse(test.left)} += 1"
        added = [each for each in ast.walk(node) if isinstance(each, ast.AugAssign)]
        added = [each for each in added if ast.unparse(each) == counting]
        if len(added) != 1:
            continue
        around = _holders(node, _LOOPS | ast.If | ast.FunctionDef, *_span(added[0]))[1:]
        counted = [each for each in around if isinstance(each, _LOOPS)]
        # It counts either this loop or the innermost one, and under no other conditions.
        is_of_steps = counted == [each for each in inner if isinstance(each, _LOOPS)]
        if (counted and not is_of_steps) or any(each not in inner for each in around):
            continue
        now, most = _value(test.left, names), _value(test.comparators[0], names)
        loop.count = math.ceil(most) - (int(now) if now > 1 else 0)
        loop.text = ast.unparse(test.comparators[0])
        return around
    return []


def _apply_condition(test: ast.expr, loops: list[_Loop]) -> None:
    """Correct the counts of loops in which a step depends on a condition."""
    for loop in loops:
        if loop.names & _named(test) and not loop.is_pass:
            loop.count = None
            if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq):
                named = test.comparators[0]
                if isinstance(named, ast.Constant) and isinstance(named.value, str):
                    loop.count = 1  # one phase of several
    is_every_nth = any(isinstance(each, ast.Mod) for each in ast.walk(test))
    if is_every_nth and loops and not loops[-1].is_pass:
        loops[-1].count, loops[-1].is_pass = None, bool(loops[-1].names)


def _named(node: ast.AST) -> frozenset[str]:
    """Return the names of variables in a node."""
    return frozenset(each.id for each in ast.walk(node) if isinstance(each, ast.Name))


def _span(node: Any) -> tuple[int, int, int, int]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _conditions(loop: ast.AST, kinds: Any) -> Iterator[tuple[ast.expr, int]]:
    """Yield the test and the line of each `if` in a loop that has a statement of these kinds.

    Loops inside it are left out.
    """
    ifs = [each for each in ast.walk(loop) if isinstance(each, ast.If)]
    for each in ifs:
        has_one = any(isinstance(part, kinds) for part in each.body)
        if has_one and _holders(loop, _LOOPS, *_span(each)) == [loop]:
            yield each.test, each.lineno


def _called(node: ast.Call) -> str:
    """Return the last part of the name of a called function."""
    return ast.unparse(node.func).rpartition(".")[2]
