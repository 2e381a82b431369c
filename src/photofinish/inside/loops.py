"""Length of a training by the loops around the line that steps, as its source has them."""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import math
import re
import sys
import traceback
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
_PLAIN = ast.Constant | ast.Name | ast.Attribute | ast.Subscript | ast.List | ast.Tuple | ast.BinOp
"""Expressions without effects, if their parts have none."""
_PHASE = re.compile(r"\w+ == '.*'")
"""Condition of one phase of several."""
_OWN_REFERENCES = 3
"""References to a frame's snapshot of variables if the script itself has none."""


@dataclass
class _Loop:
    place: str
    text: str = ""
    count: int | None = None
    """Number of its iterations, or None if that is not known."""
    is_pass: bool = False
    """True if it goes once through data whose number of batches is not known here."""
    is_range: bool = False
    names: frozenset[str] = frozenset()
    """Names of the variables that it counts."""
    may_stop_at: str = ""
    """Place of a condition that may end it before its last iteration."""


def length_of_loops() -> dict[str, Any] | None:
    """Return the epochs or steps that the loops around the running step have, and where.

    It is a part of the training if loops around these repeat it an unknown number of times. Return
    None if the number of iterations is not clear.
    """
    loops = _loops_around(inspect.currentframe())
    outer = [*itertools.takewhile(lambda loop: loop.count is None, loops or ())]
    inner = (loops or [])[len(outer) :]
    known = [*itertools.takewhile(lambda loop: loop.count is not None, inner)]
    rest = inner[len(known) :]
    value = math.prod(loop.count or 0 for loop in known)
    is_clear = not rest or (rest[0].is_pass and all(loop.count for loop in rest[1:]))
    if not value or not known or not is_clear:
        return None
    shown = [loop for loop in known if loop.count != 1] or known[-1:]
    by = f"{' x '.join(loop.text for loop in shown)} in {shown[0].place}"
    stops = [loop.may_stop_at for loop in known if loop.may_stop_at]
    return {
        "name": "epochs" if rest else "max_steps",
        "value": value,
        "by": f"{by}, may stop at {stops[0]}" if stops else by,
        "may_stop": bool(stops),
        "innermost": inner[-1].place,
        "is_part": bool(outer),
    }


def repeats_of(frame: FrameType | None) -> int | None:
    """Return how often the loops around a frame's current call repeat it, or None if unclear."""
    loops = _loops_around(frame)
    if loops is None or any(loop.count is None for loop in loops):
        return None
    return math.prod(loop.count or 0 for loop in loops)


def _loops_around(frame: FrameType | None) -> list[_Loop] | None:
    """Return the loops around a frame's current call, or None if its source is not clear."""
    frames = [
        frame
        for frame, _ in traceback.walk_stack(frame)
        if not frame.f_code.co_filename.startswith("<frozen")  # such as runpy
        if not f"{frame.f_globals.get('__name__', '')}.".startswith(_WITHOUT)
    ]
    loops: list[_Loop] = []
    try:
        for frame in reversed(frames):
            _add_loops(frame, loops)
    except OSError:  # without source, nothing shows that it is repeated
        return []
    except Exception:  # noqa: BLE001  # the training goes on without its source, too
        return None
    return loops


def _add_loops(frame: FrameType, loops: list[_Loop]) -> None:
    """Add the loops around a frame's current call, and correct the counts of those before."""
    code = frame.f_code
    if code.co_name.startswith("<") and code.co_name != "<module>":  # has no statements
        loops += [_Loop("", is_pass=True)] if code.co_name == "<genexpr>" else []
        return
    nodes, at_line = _around(frame)
    names = _names(frame, nodes) if nodes else {}
    inner = next((node for node in reversed(nodes) if isinstance(node, _LOOPS)), None)
    is_counted = False  # with all loops inside it, by the counter of a `while`
    for node in nodes:
        if isinstance(node, ast.If):
            _apply_condition(node.test, loops)
            continue
        loop = _Loop(f"{Path(code.co_filename).name}:{node.lineno}")
        loops.append(loop)
        if is_counted:
            loop.count = 1
        elif isinstance(node, ast.For):
            _read_for(node, loop, names)
            if any(_named(node.iter) & outer.names for outer in loops[:-1]) and not loop.is_pass:
                loop.count = None
        elif isinstance(node, ast.While):
            is_counted = _read_while(node, inner, loop, names)
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
    around = _holders(tree, _LOOPS | ast.If, at)[is_inner:]
    after = around[0].end_lineno if around else at[1]
    called = {ast.unparse(each.func) for each in _holders(tree, ast.Call, at)[-1:]}
    later = [each for each in _all(tree, ast.Call) if each.lineno > after]
    if called & {ast.unparse(each.func) for each in later}:
        raise LookupError("it may train again later")
    return around, at[0]


def _holders(tree: ast.AST, kinds: Any, at: Any) -> list[Any]:
    """Return the nodes of these kinds that contain a place, the outermost first."""
    line, end_line, column, end_column = at
    return [
        node
        for node in _all(tree, kinds)
        if (node.lineno, node.col_offset) <= (line, column)
        if (end_line, end_column) <= (node.end_lineno, node.end_col_offset)
    ]


def _all(tree: ast.AST, kinds: Any) -> list[Any]:
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


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
    iterable = node.iter
    while isinstance(iterable, ast.Call) and _called(iterable) in _WRAPPERS and iterable.args:
        iterable = iterable.args[0]
    if isinstance(iterable, ast.Call) and _called(iterable) in ("range", "trange"):
        iterable, loop.is_range = ast.Call(ast.Name("range"), iterable.args, []), True
        is_plain = len(iterable.args) == 1 and not isinstance(iterable.args[0], ast.Constant)
        loop.text = ast.unparse(iterable.args[0]) if is_plain else ""
    loop.text = loop.text or ast.unparse(iterable)
    loop.names = _named(node.target)
    loop.count, loop.is_pass = _count(iterable, names)
    bases = (type(names.get(name)).__mro__ for name in loop.names)
    steps_each = any(base.__name__ == "Optimizer" for base in itertools.chain(*bases))
    if steps_each or any(isinstance(each, ast.Break) for each in node.body):
        loop.count, loop.is_pass = 1, False
    # A counter that is never reset ends the loop sooner. One that is reset is patience.
    counters = {ast.unparse(each.target) for each in _all(node, ast.AugAssign)}
    for each in _all(node, ast.Assign):
        counters -= set(map(ast.unparse, each.targets))
    for test, _ in _conditions(node, _ENDS):
        if isinstance(test, ast.Compare) and ast.unparse(test.left) in loop.names | counters:
            loop.count, loop.is_pass = None, False
    # A flag of early stopping is set or called in the loop. One of the command line is not.
    parts = _all(node, ast.Name | ast.Attribute)
    changed = {ast.unparse(each) for each in parts if isinstance(each.ctx, ast.Store)}
    changed |= {name for call in _all(node, ast.Call) for name in _named(call.func)}
    for test, line in _conditions(node, ast.Break | ast.Return):
        if changed & {ast.unparse(each) for each in _all(test, ast.Name | ast.Attribute)}:
            loop.may_stop_at = f"{loop.place.rpartition(':')[0]}:{line}"


def _count(iterable: ast.expr, names: Mapping[str, Any]) -> tuple[int | None, bool]:
    """Return the number of items if it is known, and else whether these may be batches."""
    if isinstance(iterable, ast.Call) and _called(iterable) in _ENDED_ELSEWHERE:
        return None, False
    try:
        value = _value(iterable, names)
        if type(value).__module__.startswith("tqdm"):
            value = value.iterable
        if any(kind.__name__ == "DataLoader" for kind in type(value).__mro__):
            return None, True
        # Words may be phases, such as train and val. Only one of them steps.
        if isinstance(value, list | dict | tuple) and isinstance([*value, 0][0], str | bool):
            return None, False
        return len(value), False
    except Exception:  # noqa: BLE001  # of the user's code, whose training goes on
        return None, True


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression, which the script has just evaluated itself.

    Raise LookupError if that calls more than known functions without effects.
    """
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            function = _value(each.func, names)
            is_method = isinstance(function, BuiltinFunctionType) and function.__name__ in _METHODS
            if not is_method and not any(function is known for known in _FUNCTIONS):
                raise LookupError(ast.unparse(each))
        elif isinstance(each, ast.expr) and not isinstance(each, _PLAIN):
            raise LookupError(ast.unparse(each))
    return eval(ast.unparse(node), {}, names)  # noqa: S307  # the script has it


def _read_while(node: ast.While, inner: Any, loop: _Loop, names: Mapping[str, Any]) -> bool:
    """Fill in a `while` with a counter. Return True if it counts the innermost loop's steps."""
    tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
    ends = [test for test, _ in _conditions(node, ast.Break)]
    for test in [*tests, *ends]:
        kinds = (ast.Gt, ast.GtE, ast.Eq) if test in ends else (ast.Lt, ast.LtE)
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], kinds):
            continue
        counting = f"{ast.unparse(test.left)} += 1"
        added = [each for each in _all(node, ast.AugAssign) if ast.unparse(each) == counting]
        if len(added) == 1 and added[0] in node.body + inner.body:
            now, most = _value(test.left, names), _value(test.comparators[0], names)
            loop.count = math.ceil(most) - (int(now) if now > 1 else 0)
            loop.text = ast.unparse(test.comparators[0])
            return added[0] not in node.body
    return False


def _apply_condition(test: ast.expr, loops: list[_Loop]) -> None:
    """Correct the counts of loops in which a step depends on a condition."""
    for loop in loops:
        if loop.names & _named(test) and not loop.is_pass:
            loop.count = 1 if _PHASE.fullmatch(ast.unparse(test)) else None
    if _all(test, ast.Mod) and loops and not loops[-1].is_pass:  # every so many
        loops[-1].count = None
        loops[-1].is_pass = bool(loops[-1].names) and not loops[-1].is_range


def _named(node: ast.AST) -> frozenset[str]:
    return frozenset(each.id for each in _all(node, ast.Name))


def _conditions(loop: ast.AST, kinds: Any) -> Iterator[tuple[ast.expr, int]]:
    """Yield the test and the line of each `if` in a loop that has a statement of these kinds.

    Loops inside it are left out.
    """
    inner = [each for each in _all(loop, _LOOPS) if each is not loop]
    for each in _all(loop, ast.If):
        has_one = any(isinstance(part, kinds) for part in each.body)
        if has_one and not any(each in ast.walk(within) for within in inner):
            yield each.test, each.lineno


def _called(node: ast.Call) -> str:
    """Return the last part of the name of a called function."""
    return ast.unparse(node.func).rpartition(".")[2]
