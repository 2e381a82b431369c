"""Length of a training by the loops around the line that steps, as its source has them.

Variables that a loop changes are followed through assignments and calls. Where the iterations of
another loop depend on them, or whether a step is taken, the number of iterations is not known.
"""

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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_LOOPS = ast.For | ast.While | _COMPREHENSIONS
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
_WITHOUT = tuple(f"{name}." for name in (__package__, "torch", "fire"))
"""Packages whose loops repeat no step: hooks of optimizers, and Fire's search for a command."""
_WRAPPERS = ("tqdm", "enumerate", "reversed", "sorted", "list", "iter", "track", "progress_bar")
"""Functions with as many items as their first argument."""
_FUNCTIONS = (int, len, range, min, max, round, abs, getattr, math.ceil, math.floor)
_METHODS = "<built-in method (get of dict|size of (Tensor|Parameter)) "
"""Methods of dictionaries and tensors, which are not Python code."""
_VARIABLES = ast.Name | ast.Attribute | ast.Subscript
_PLAIN = _VARIABLES | ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.BinOp
"""Expressions without effects, if their parts have none."""
_ENDED_ELSEWHERE = ("count", "cycle", "repeat", "islice")
_PHASE = re.compile(r"\w+ == '.*'")  # of several


@dataclass(eq=False)
class _Loop:
    place: str = ""
    text: str = ""
    count: int | None = None
    """Number of its iterations, or None if that is not known."""
    is_pass: bool = False
    """True if it goes once through data whose number of batches is not known here."""
    is_range: bool = False
    values: tuple[Any, ...] = ()
    """Values of the variables that it counts."""
    may_stop_at: str = ""
    """Place of a condition that may end it before its last iteration."""
    follows: str = ""
    """Not a loop, but what trains after the step: "more", or "again" for the same call."""


def length_of_loops() -> dict[str, Any] | None:
    """Return the epochs or steps that the loops around the running step have, and where.

    It is a part of the training if loops around these repeat it an unknown number of times, or if
    more training follows. Return None if the number of iterations is not clear.
    """
    loops = _loops_around(inspect.currentframe()) or []
    counted = [at for at, loop in enumerate(loops) if loop.count is not None] or [0]
    passes = [at for at, loop in enumerate(loops) if loop.is_pass and at > counted[0]]
    last = max((at for at in counted if at < min(passes, default=len(loops))), default=0)
    # What follows within an iteration is of its epoch, or of another optimizer.
    within = ("more", "again") if passes else ("more",)
    loops = [loop for at, loop in enumerate(loops) if at < last or loop.follows not in within]
    end = max((at for at, loop in enumerate(loops) if loop.is_pass), default=-1)
    unclear = [at for at, loop in enumerate(loops) if loop.count is None and at != end]
    inner = loops[max(unclear, default=-1) + 1 :]
    known = [*itertools.takewhile(lambda loop: loop.count is not None, inner)]
    value = math.prod(loop.count or 0 for loop in known)
    if not known or value < 1 or not all(loop.count for loop in inner[len(known) + 1 :]):
        return None
    shown = [loop for loop in known if loop.count != 1] or known[-1:]
    by = f"{' x '.join(loop.text for loop in shown)} in {shown[0].place}"
    stops = [loop.may_stop_at for loop in known if loop.may_stop_at]
    return {
        "name": "epochs" if len(inner) > len(known) else "max_steps",
        "value": value,
        "by": f"{by}, may stop at {stops[0]}" if stops else by,
        "may_stop": bool(stops),
        "is_part": len(inner) < len(loops),
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
    try:
        return _Reader(frames[::-1]).loops
    except OSError:  # without source, nothing shows that it is repeated
        return []
    except Exception:  # noqa: BLE001  # the training goes on without its source, too
        return None


class _Reader:
    """Reader of the loops around a step, frame by frame, the outermost first."""

    def __init__(self, frames: list[FrameType]) -> None:
        self.loops: list[_Loop] = []
        self._changes: dict[str, list[_Loop]] = {}
        """Loops that change each variable."""
        files = {frame.f_code.co_filename: frame for frame in frames}
        trees = {name: ast.parse("".join(inspect.findsource(files[name])[0])) for name in files}
        ways = [_way(frame, trees[frame.f_code.co_filename]) for frame in frames]
        self._training = _training({_called(way[-1]) for way in ways}, trees.values())
        for frame, way, callee in zip(frames, ways, [*frames[1:], None], strict=True):
            self._names = _names(frame)
            self._read(Path(frame.f_code.co_filename).name, way)
            if callee or _called(way[-1]) in ("fit", "train"):
                self._enter(callee and callee.f_code, way[-1])
            elif _called(way[-1]) == "step" and {*self.loops[-1:]} & {*self._changing(way[-1])}:
                self.loops[-1].count = 1  # each optimizer steps once

    def _read(self, file: str, way: list[Any]) -> None:
        """Add the loops of a frame, and correct the counts of those before."""
        self._follow(way[0], self.loops[-1:])
        is_counted = False
        for node, inner in itertools.pairwise([*way, None]):
            lists = [each for _, each in ast.iter_fields(node) if isinstance(each, list)]
            block = next((each for each in lists if inner in each), [inner])
            before, after = block[: block.index(inner)], block[block.index(inner) + 1 :]
            if isinstance(node, ast.If) and inner is not node.test:
                self._depend(node.test, is_met=inner in node.body)
            elif isinstance(node, _LOOPS):
                loop = _Loop(f"{file}:{node.lineno}", is_pass=isinstance(node, _COMPREHENSIONS))
                self.loops.append(loop)
                if is_counted:  # with all loops inside it, by the counter of a `while`
                    loop.count = 1
                elif not loop.is_pass:
                    is_counted = self._read_loop(node, way, loop)
                self._follow(node, [loop])
            for each in before:
                parts = each.body if isinstance(each, ast.If) else ()
                if any(isinstance(part, ast.Continue | ast.Return) for part in parts):
                    self._depend(each.test)
            if _words(after, {"step"}) & self._training:
                again = ast.unparse(getattr(way[-1], "func", way[-1])) + "("
                is_again = any(again in ast.unparse(each) for each in after)
                self.loops.append(_Loop(follows="again" if is_again else "more"))

    def _read_loop(self, node: Any, way: list[Any], loop: _Loop) -> bool:
        """Fill in a loop. Return True if it counts the steps of the innermost one."""
        own = [*_inside(node, _DEFINITIONS)]
        direct = [*_inside(node, _LOOPS | _DEFINITIONS)]
        # A counter that is never reset ends the loop sooner. One that is reset is patience.
        counters = {ast.unparse(each.target) for each in own if isinstance(each, ast.AugAssign)}
        counters -= {ast.unparse(to) for each in own for to in getattr(each, "targets", ())}
        # A flag of early stopping is set or called in the loop. One of the command line is not.
        changed = {
            ast.unparse(each) for each in own if isinstance(getattr(each, "ctx", 0), ast.Store)
        }
        changed |= _texts(*(each.func for each in own if isinstance(each, ast.Call)))
        tests: list[Any] = []
        if isinstance(node, ast.For):
            self._read_for(node, loop)
            counters |= _texts(node.target)
        else:
            is_and = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
            tests, loop.text = node.test.values if is_and else [node.test], ast.unparse(node.test)
        ends = [(test, node.lineno, True) for test in tests]
        for each in own:
            kinds = {*map(type, each.body)} if isinstance(each, ast.If) else set()
            leaves = ast.Return in kinds or (ast.Break in kinds and each in direct)
            ends += [(each.test, each.lineno, leaves)] if leaves or ast.Raise in kinds else []
        counting = [test for test, *_ in ends if _texts(*_all(test, ast.Compare)) & counters]
        for test, line, leaves in ends:
            if leaves and test not in counting and _texts(test) & changed:
                loop.may_stop_at = f"{loop.place.rpartition(':')[0]}:{line}"
        if counting:
            loop.count, loop.is_pass = None, False
        if any(isinstance(each, ast.Break | ast.Return) for each in node.body):
            loop.count, loop.is_pass = 1, False
        if len(counting) != 1 or isinstance(node, ast.For):
            return False
        only: Any = counting[0]
        left = ast.unparse(getattr(only, "left", only))
        added = [
            each
            for each in own
            if isinstance(each, ast.AugAssign) and ast.unparse(each.target) == left
        ]
        innermost = [each for each in way if isinstance(each, ast.For | ast.While)][-1]
        if len(added) != 1 or added[0] not in node.body + innermost.body:
            return False
        nodes = added[0].target, only.comparators[0], added[0].value
        now, most, by = (_value(each, self._names) for each in nodes)
        now -= by * (added[0].lineno < way[-1].lineno)
        is_equal = isinstance(only.ops[0], ast.LtE | ast.GtE | ast.Eq) == (only in tests)
        varies = _texts(nodes[2]) & changed
        loop.count = None if varies else len(range(now, int(most) + is_equal, by))
        loop.text = ast.unparse(nodes[1])
        for outer in self._changing(nodes[1]):
            outer.count = None
        self._changes[left] = [loop]
        return added[0] not in node.body

    def _read_for(self, node: ast.For, loop: _Loop) -> None:
        iterable = _unwrapped(node.iter)
        if isinstance(iterable, ast.Call) and _called(iterable) in ("range", "trange"):
            iterable, loop.is_range = ast.Call(ast.Name("range"), iterable.args, []), True
            is_plain = len(iterable.args) == 1 and not isinstance(iterable.args[0], ast.Constant)
            loop.text = ast.unparse(iterable.args[0]) if is_plain else ""
        loop.text = loop.text or ast.unparse(iterable)
        loop.count, names = _count(iterable, self._names), _texts(node.target)
        loop.is_pass = loop.count is None and _called(iterable) not in _ENDED_ELSEWHERE
        for outer in () if loop.is_pass else self._changing(iterable):
            outer.count = None  # it changes how many iterations this one has
        self._changes |= {name: [loop] for name in names}
        loop.values = tuple(self._names[name] for name in names if name in self._names)

    def _depend(self, test: ast.expr, *, is_met: bool = False) -> None:
        """Correct the counts of loops in which a step depends on a condition."""
        loops, is_modulo = self._changing(test), bool(_all(test, ast.Mod))
        # Words may be phases, such as train and val. Only one of them steps.
        words = [each for each in self.loops if {str, bool} & {*map(type, each.values)}]
        for loop in loops or words + (self.loops[-1:] if is_modulo else []):  # every so many
            if is_met and loop in words and _PHASE.fullmatch(ast.unparse(test)):
                loop.count, loop.values = 1, ()
            elif not loop.is_pass:
                loop.count = None
                loop.is_pass = is_modulo and bool(loop.values) and not loop.is_range

    def _changing(self, *nodes: ast.AST) -> list[_Loop]:
        """Return the loops that change what expressions name."""
        changing = [self._changes.get(text, []) for text in _texts(*nodes)]
        return [*dict.fromkeys(itertools.chain(*changing))]

    def _follow(self, node: ast.AST, loops: list[_Loop]) -> None:
        """Note the variables that loops change by statements of their own."""
        for each in _inside(node, _LOOPS | _DEFINITIONS):
            if isinstance(each, ast.AugAssign):
                self._changes[ast.unparse(each.target)] = [*self._changing(each.target), *loops]
            elif isinstance(each, ast.Assign) and (by := self._changing(_unwrapped(each.value))):
                self._changes |= dict.fromkeys(_texts(*each.targets), by)

    def _enter(self, code: CodeType | None, call: Any) -> None:
        """Follow what loops change into the function that is called."""
        if not isinstance(call, ast.Call):
            return
        for loop in self._changing(call.func):
            loop.count = None  # another iteration may call another function
        if code is None:
            return
        values = [*call.args, *call.keywords]
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        own = [call.func, *values] if names[:1] == ("self",) else values
        for name, value in itertools.zip_longest(names, own[: len(names)]):
            named = [each for each in values if getattr(each, "arg", "") in (name, None)]
            self._changes[name] = self._changing(*(named or [value or ast.Pass()]))


def _way(frame: FrameType, tree: ast.Module) -> list[Any]:
    """Return the nodes around a frame's current call, from its function to the call."""
    at: Any = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    nodes: Any = ast.walk(tree)
    line, end_line, column, end_column = at  # of code without positions, these are None
    way = [tree] + [
        node
        for node in nodes
        if hasattr(node, "lineno")
        if (node.lineno, node.col_offset) <= (line, column)
        if (end_line, end_column) <= (node.end_lineno, node.end_col_offset)
    ]
    name = frame.f_code.co_name
    kinds: Any = _COMPREHENSIONS if name.endswith(("comp>", "<genexpr>")) else _DEFINITIONS
    own = max((at for at, node in enumerate(way) if isinstance(node, kinds)), default=0)
    return way[own + name.endswith("comp>") :]


def _training(called: set[str], trees: Iterable[ast.Module]) -> set[str]:
    """Return the names of functions that train: those that run, and others that call these."""
    # Schedules have a step, and networks a method `train`.
    names = {"backward"} | called - {"", "step"} - vars(builtins).keys()
    functions = [each for tree in trees for each in _all(tree, ast.FunctionDef)]
    words = [(each.name, _words([each], {"step", "train"})) for each in functions]
    while callers := {name for name, within in words if within & names} - names:
        names |= callers
    return names


def _words(nodes: list[Any], unclear: set[str]) -> set[str]:
    """Return the names in code. Those of `unclear` count unless they are attributes."""
    parts = [part for node in nodes for part in ast.walk(node)]
    attributes = {part.attr for part in parts if isinstance(part, ast.Attribute)}
    return attributes - unclear | {part.id for part in parts if isinstance(part, ast.Name)}


def _names(frame: FrameType) -> Mapping[str, Any]:
    """Return the variables of a frame."""
    names: dict[str, Any] = {}
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        values = frame.f_locals
        names = dict(values)
        # Before Python 3.13, this snapshot keeps all local variables alive until it is cleared.
        if isinstance(values, dict) and sys.getrefcount(values) == 3:  # none of the script's
            values.clear()
    return ChainMap(names, frame.f_globals, vars(builtins))


def _unwrapped(node: Any) -> Any:
    """Return what a call of a function with as many items takes."""
    while _called(node) in _WRAPPERS and node.args:
        node = node.args[0]
    return node


def _count(node: Any, names: Mapping[str, Any]) -> int | None:
    """Return the number of items, or None if that is not known, or of data."""
    called = _called(node)
    try:
        if called == "split":  # of folds
            return int(_value(node.func.value, names).n_splits)
        is_view = called in ("items", "keys", "values")
        value = _value(node.func.value if is_view else node, names)
        if type(value).__module__.startswith("tqdm"):
            value = value.iterable
        is_loader = any(kind.__name__ == "DataLoader" for kind in type(value).__mro__)
        return None if is_loader or (is_view and not isinstance(value, dict)) else len(value)
    except Exception:  # noqa: BLE001  # of the user's code, whose training goes on
        return None


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression, which the script has just evaluated itself.

    Raise LookupError if that calls more than known functions without effects.
    """
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            function = _value(each.func, names)
            is_method = re.match(_METHODS, repr(function))
            if not is_method and not any(function is known for known in _FUNCTIONS):
                raise LookupError(ast.unparse(each))
        elif isinstance(each, ast.Attribute):
            if isinstance(getattr(type(_value(each.value, names)), each.attr, None), property):
                raise LookupError(ast.unparse(each))  # it may have effects
        elif isinstance(each, ast.expr) and not isinstance(each, _PLAIN):
            raise LookupError(ast.unparse(each))
    return eval(ast.unparse(node), {}, names)  # noqa: S307  # the script has it


def _inside(node: ast.AST, without: Any) -> Iterator[Any]:
    """Yield the nodes in a node, without those of some kinds and what is in them."""
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, without):
            yield each
            yield from _inside(each, without)


def _all(node: ast.AST, kinds: Any) -> list[Any]:
    return [each for each in ast.walk(node) if isinstance(each, kinds)]


def _texts(*nodes: ast.AST) -> set[str]:
    """Return the variables that code names, with their attributes and items."""
    return {ast.unparse(each) for node in nodes for each in _all(node, _VARIABLES)}


def _called(node: Any) -> str:
    """Return the last part of the name of a called function, or "" if nothing is called."""
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
