"""Length of a training by the loops around the line that steps, as its source has them.

Variables that a loop changes are followed through assignments and calls. Where the iterations of
another loop depend on them, or whether a step is taken, the number of iterations is not known.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import itertools
import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from .expressions import (
    STEADY,
    all_of,
    called,
    count_of,
    inside,
    names_of,
    texts_of,
    unwrapped,
    value_of,
)
from .lengths import Loop

_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_LOOPS = ast.For | ast.While | _COMPREHENSIONS
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
_WITHOUT = tuple(f"{name}." for name in (__package__, "torch", "fire"))
"""Packages whose loops repeat no step: hooks of optimizers, and Fire's search for a command."""
_ENDED_ELSEWHERE = ("count", "cycle", "repeat", "islice")
_LIBRARIES = (
    *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)
_TREES: dict[str, ast.Module] = {}
"""Source by file: each new optimizer reads it again."""
_PHASE = re.compile(r"\w+ == '.*'")
"""Condition of one phase of several."""


def loops_around(frame: FrameType | None) -> list[Loop] | None:
    """Return the loops around a frame's current call, or None if its source is not clear."""
    frames = [
        frame
        for frame, _ in traceback.walk_stack(frame)
        if not frame.f_code.co_filename.startswith("<frozen")  # such as runpy
        if not _only_passes_on(frame)
        if not f"{frame.f_globals.get('__name__', '')}.".startswith(_WITHOUT)
    ]
    try:
        return _Reader(frames[::-1]).loops
    except OSError:  # without source, nothing shows that it is repeated
        return []
    except Exception:  # noqa: BLE001  # the training goes on without its source, too
        return None


def _only_passes_on(frame: FrameType) -> bool:
    """Return whether code without source, such as of `python -c`, neither loops nor calls more."""
    file = frame.f_code.co_filename
    return not (not file.startswith("<") or linecache.getlines(file, frame.f_globals)) and not any(
        "JUMP_BACKWARD" in each.opname or ("CALL" in each.opname and each.offset > frame.f_lasti)
        for each in dis.get_instructions(frame.f_code)
    )


def _tree(file: str, names: dict[str, Any]) -> ast.Module:
    """Return the source of a module with these names. Raise OSError if it has none."""
    if file not in _TREES:
        lines = linecache.getlines(file, names)
        if not lines:
            raise OSError(file)
        _TREES[file] = ast.parse("".join(lines))
    return _TREES[file]


class _Reader:
    """Reader of the loops around a step, frame by frame, the outermost first."""

    def __init__(self, frames: list[FrameType]) -> None:
        self.loops: list[Loop] = []
        self._changes: dict[str, list[Loop]] = {}
        """Loops that change each variable."""
        self._new: set[str] = set()
        """Variables that a loop sets to what a call returns, such as a new optimizer."""
        files = {frame.f_code.co_filename: frame for frame in frames}
        trees = {name: _tree(name, frame.f_globals) for name, frame in files.items()}
        ways = [_way(frame, trees[frame.f_code.co_filename]) for frame in frames]
        for frame, way in zip(frames, ways, strict=True):
            names = names_of(frame)
            for call in all_of(way[0], ast.Call):
                trees |= _trees_of(call.func, names)
        self._stored = _stored(trees.values())
        self._training = _training({called(way[-1]) for way in ways}, trees.values())
        for frame, way, callee in zip(frames, ways, [*frames[1:], None], strict=True):
            self._names = names_of(frame)
            self._read(Path(frame.f_code.co_filename).name, way)
            if callee or called(way[-1]) in ("fit", "train"):
                self._enter(callee and callee.f_code, way[-1])
            elif called(way[-1]) == "step":
                # The arguments are an optimizer, for a scaler of gradients, or a closure.
                optimizers = [
                    node
                    for node in (way[-1].func, *way[-1].args)
                    if not callable(self._names.get(ast.unparse(node)))
                    if not texts_of(node) & self._new
                ]
                for loop in self._changing(*optimizers):
                    if loop is self.loops[-1]:
                        loop.count = 1  # each optimizer steps once

    def _read(self, file: str, way: list[Any]) -> None:
        """Add the loops of a frame, and correct the counts of those before."""
        self._follow(way[0], self.loops[-1:], way)
        is_counted = False
        for node, inner in itertools.pairwise([*way, None]):
            lists = [each for _, each in ast.iter_fields(node) if isinstance(each, list)]
            block = next((each for each in lists if inner in each), [inner])
            before, after = block[: block.index(inner)], block[block.index(inner) + 1 :]
            if isinstance(node, ast.If) and inner is not node.test:
                self._depend(node.test, is_met=inner in node.body)
            elif isinstance(node, _LOOPS):
                loop = Loop(f"{file}:{node.lineno}", is_pass=isinstance(node, _COMPREHENSIONS))
                self.loops.append(loop)
                if is_counted:  # with all loops inside it, by the counter of a `while`
                    loop.count = 1
                elif not loop.is_pass:
                    is_counted = self._read_loop(node, way, loop)
                self._follow(node, [loop], way)
            own = _LOOPS | _DEFINITIONS
            for each in inside(ast.Module(before, []), own):
                if isinstance(each, ast.If):
                    parts = inside(each, own)
                    if any(isinstance(part, ast.Continue | ast.Return) for part in parts):
                        self._depend(each.test)
            if _words(after, {"step"}) & self._training:
                again = ast.unparse(getattr(way[-1], "func", way[-1])) + "("
                is_again = any(again in ast.unparse(each) for each in after)
                self.loops.append(Loop(follows="again" if is_again else "more"))

    def _read_loop(self, node: Any, way: list[Any], loop: Loop) -> bool:
        """Fill in a loop. Return True if it counts the steps of the innermost one."""
        own = [*inside(node, _DEFINITIONS)]
        direct = [*inside(node, _LOOPS | _DEFINITIONS)]
        # A counter that is never reset ends the loop sooner. One that is reset is patience.
        counters = {ast.unparse(each.target) for each in own if isinstance(each, ast.AugAssign)}
        counters -= {ast.unparse(to) for each in own for to in getattr(each, "targets", ())}
        # A flag of early stopping is set or called in the loop. One of the command line is not.
        changed = {
            ast.unparse(each) for each in own if isinstance(getattr(each, "ctx", 0), ast.Store)
        }
        stored = {*changed}
        changed |= texts_of(*(each.func for each in own if isinstance(each, ast.Call)))
        tests: list[Any] = []
        if isinstance(node, ast.For):
            self._read_for(node, loop)
            listed = ast.unparse(unwrapped(node.iter))
            grows = {f"{listed}.{name}" for name in dir(list)} & changed
            if grows or listed in counters:
                loop.count, loop.is_pass = None, False
            counters |= texts_of(node.target)
        else:
            is_and = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
            tests, loop.text = node.test.values if is_and else [node.test], ast.unparse(node.test)
        ends = [(test, node) for test in tests]
        leaving = {each for each in own if _leaves(each)}
        leaving -= {each for each in leaving if isinstance(each, ast.Break)} - {*direct}
        ifs = [each for each in own if isinstance(each, ast.If)]
        for each in ifs:
            is_end = leaving & {*each.body} or any(isinstance(it, ast.Raise) for it in each.body)
            ends += [(each.test, each)] if is_end else []
        counting = [test for test, _ in ends if texts_of(*all_of(test, ast.Compare)) & counters]
        stops = [*leaving - {*node.body, *itertools.chain(*(each.body for each in ifs))}]
        for test, at in ends:
            if test in counting or not (at is node or leaving & {*at.body}):
                continue
            if texts_of(test) & changed or _words([test], set()) & self._stored:
                stops.append(at)
            elif at is not node and value_of(test, self._names):  # a setting, such as a dry run
                loop.count, loop.is_pass = (1 if at in node.body else None), False
        for at in stops:
            loop.may_stop_at = f"{loop.place.rpartition(':')[0]}:{at.lineno}"
        without_items = any(
            isinstance(each, ast.ExceptHandler)
            and "StopIteration" in ast.unparse(each.type or each)
            and leaving & {*each.body}
            for each in own
        )
        if counting or without_items:
            loop.count, loop.is_pass = None, False
        if any(_leaves(each) for each in node.body):
            goes_on = any(isinstance(each, ast.Continue) for each in direct)
            loop.count, loop.is_pass, loop.may_stop_at = None if goes_on else 1, False, ""
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
        if texts_of(added[0].value) & stored:
            return False
        nodes = added[0].target, only.comparators[0], added[0].value
        now, most, by = (value_of(each, self._names) for each in nodes)
        now -= by * (added[0].lineno < way[-1].lineno)
        is_equal = isinstance(only.ops[0], ast.LtE | ast.GtE | ast.Eq) == (only in tests)
        loop.count = len(range(now, int(most) + is_equal, by))
        loop.text = ast.unparse(nodes[1])
        for outer in self._changing(nodes[1]):
            outer.count = None
        self._changes[left] = [loop]
        return added[0] not in node.body

    def _read_for(self, node: ast.For, loop: Loop) -> None:
        iterable = unwrapped(node.iter)
        if isinstance(iterable, ast.Call) and called(iterable) in ("range", "trange"):
            iterable, loop.is_range = ast.Call(ast.Name("range"), iterable.args, []), True
            is_plain = len(iterable.args) == 1 and not isinstance(iterable.args[0], ast.Constant)
            loop.text = ast.unparse(iterable.args[0]) if is_plain else ""
        loop.text = loop.text or ast.unparse(iterable)
        loop.count, names = count_of(iterable, self._names), texts_of(node.target)
        loop.is_pass = loop.count is None and called(iterable) not in _ENDED_ELSEWHERE
        is_stored = bool(_words([iterable], set()) & self._stored)
        outer_loops = self.loops[:-1] if is_stored else self._changing(iterable)
        for outer in () if loop.is_pass else outer_loops:
            outer.count = None  # it changes how many iterations this one has
        self._changes |= {name: [loop] for name in names}
        loop.values = tuple(self._names[name] for name in names if name in self._names)

    def _depend(self, test: ast.expr, *, is_met: bool = False) -> None:
        """Correct the counts of loops in which a step depends on a condition."""
        loops, is_modulo = self._changing(test), bool(all_of(test, ast.Mod))
        # Words may be phases, such as train and val. Only one of them steps.
        words = [each for each in self.loops if {str, bool} & {*map(type, each.values)}]
        # Every so many, or as an object says, which may count.
        innermost = self.loops[-1:] if is_modulo or is_unclear(test) else []
        for loop in loops or words + innermost:
            if is_met and loop in words and _PHASE.fullmatch(ast.unparse(test)):
                loop.count, loop.values = 1, ()
            elif not loop.is_pass:
                loop.count = None
                loop.is_pass = is_modulo and bool(loop.values) and not loop.is_range

    def _changing(self, *nodes: ast.AST) -> list[Loop]:
        """Return the loops that change what expressions name."""
        changing = [self._changes.get(text, []) for text in texts_of(*nodes)]
        return [*dict.fromkeys(itertools.chain(*changing))]

    def _follow(self, node: ast.AST, loops: list[Loop], way: list[Any]) -> None:
        """Note the variables that loops change by statements of their own."""
        for each in inside(node, _LOOPS | _DEFINITIONS):
            if isinstance(each, ast.AugAssign):
                self._changes[ast.unparse(each.target)] = [*self._changing(each.target), *loops]
            elif isinstance(each, ast.Assign | ast.NamedExpr):
                assigned = each.targets if isinstance(each, ast.Assign) else [each.target]
                targets = texts_of(*assigned)
                changes = is_unclear(each.value) or targets & texts_of(each.value)
                by = self._changing(unwrapped(each.value))
                self._new |= targets if changes and not by else set()
                by = [*by, *(loops if changes else [])]
                self._changes |= dict.fromkeys(targets, by) if by else {}
            elif isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
                by = self._changing(*each.value.args) if each not in way else []
                receiver = getattr(each.value.func, "value", each.value.func)
                for changed in map(ast.unparse, (receiver, *each.value.args)):
                    value = self._names.get(changed)
                    if by and not isinstance(value, (int, float, str, ModuleType)):
                        self._changes[changed] = by

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
        own = [call.func, *values] if names[:1] in (("self",), ("cls",)) else values
        starred = [each for each in values if isinstance(each, ast.Starred)]
        for name, value in itertools.zip_longest(names, own[: len(names)]):
            named = [each for each in values if getattr(each, "arg", "") in (name, None)]
            self._changes[name] = self._changing(*(named or [value or ast.Pass()]), *starred)
        flags = code.co_flags & inspect.CO_VARARGS, code.co_flags & inspect.CO_VARKEYWORDS
        for name in code.co_varnames[len(names) :][: sum(map(bool, flags))]:
            self._changes[name] = self._changing(*values)


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


def _trees_of(function: ast.expr, names: Mapping[str, Any]) -> dict[str, ast.Module]:
    """Return the source file of a function or class that is called, unless it is of a library."""
    try:
        value = inspect.unwrap(value_of(function, names))
        file = inspect.getfile(value)
        module = vars(sys.modules[value.__module__])
        return {} if file.startswith(_LIBRARIES) else {file: _tree(file, module)}
    except Exception:  # noqa: BLE001  # not a function, or without source
        return {}


def _training(called: set[str], trees: Iterable[ast.Module]) -> set[str]:
    """Return the names of functions that train: those that run, and others that call these."""
    # Schedules have a step, and networks a method `train`.
    names = {"backward"} | called - {"", "step"} - vars(builtins).keys()
    functions = [each for tree in trees for each in all_of(tree, ast.FunctionDef)]
    words = [(each.name, _words([each], {"step", "train"})) for each in functions]
    while callers := {name for name, within in words if within & names} - names:
        names |= callers
    return names


def _stored(trees: Iterable[ast.Module]) -> set[str]:
    """Return the names outside themselves that functions set, other than for a new object."""
    names: set[str] = set()
    for function in (each for tree in trees for each in all_of(tree, ast.FunctionDef)):
        for each in ast.walk(function) if function.name != "__init__" else ():
            if isinstance(each, ast.Global | ast.Nonlocal):
                names |= {*each.names}
            elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                names.add(each.attr)
            elif isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store):
                names |= _words([each.value], set())
    return names


def _words(nodes: list[Any], unclear: set[str]) -> set[str]:
    """Return the names in code. Those of `unclear` count unless they are attributes."""
    parts = [part for node in nodes for part in ast.walk(node)]
    attributes = {part.attr for part in parts if isinstance(part, ast.Attribute)}
    return attributes - unclear | {part.id for part in parts if isinstance(part, ast.Name)}


def is_unclear(node: ast.AST) -> bool:
    """Return whether code calls a function that may answer differently each time."""
    return any(called(each) not in STEADY for each in all_of(node, ast.Call))


def _leaves(node: ast.AST) -> bool:
    """Return whether a statement ends a loop or the process."""
    is_exit = isinstance(node, ast.Expr) and called(node.value) in ("exit", "_exit")
    return is_exit or isinstance(node, ast.Break | ast.Return)
