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
import math
import re
import traceback
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from .expressions import (
    COMPREHENSIONS,
    DEFINITIONS,
    LOOPS,
    Function,
    all_of,
    called,
    comparison_of,
    count_of,
    ends_of,
    files_of,
    functions_in,
    inside,
    is_unclear,
    names_of,
    stores_of,
    texts_of,
    tree_of,
    unwrapped,
    value_of,
    way_of,
    words_of,
)
from .lengths import Loop

_WITHOUT = tuple(f"{name}." for name in (__package__, "torch", "fire"))
"""Packages whose loops repeat no step: hooks of optimizers, and Fire's search for a command."""
_ENDED_ELSEWHERE = ("count", "cycle", "repeat", "islice")
_TAKE_ALL = ("list", "max", "min", "sum", "tuple")
"""Built-in functions that run a generator to its end."""
_VALUES = (int, float, str, ModuleType)
"""Types of arguments that a called function does not change."""
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
        "JUMP_BACKWARD" in step.opname or ("CALL" in step.opname and step.offset > frame.f_lasti)
        for step in dis.get_instructions(frame.f_code)
    )


class _Reader:
    """Reader of the loops around a step, frame by frame, the outermost first."""

    def __init__(self, frames: list[FrameType]) -> None:
        self.loops: list[Loop] = []
        self._changes: dict[str, list[Loop]] = {}
        """Loops that change each variable."""
        self._caught_at = ""
        """Place that catches a custom exception, which may end the loops inside."""
        codes = [frame.f_code for frame in frames]
        files = {code.co_filename for code in codes}
        ways = [way_of(frame, tree_of(frame.f_code.co_filename)) for frame in frames]
        names = [names_of(frame) for frame in frames]
        for way, known in zip(ways, names, strict=True):
            calls = [part for part in inside(way[0], DEFINITIONS) if isinstance(part, ast.Call)]
            for function in {ast.unparse(call.func): call.func for call in calls}.values():
                files |= files_of(function, known)
        functions = [*itertools.chain(*map(functions_in, files))]
        self._training = _training({called(way[-1]) for way in ways}, functions)
        if frames[0].f_globals["__name__"] == "threading":
            self.loops.append(Loop())  # other threads may do the same
        for code, way, known, callee in zip(codes, ways, names, [*codes[1:], None], strict=True):
            functions = [function for function in functions if function.node is not way[0]]
            self._stored = set().union(*(function.stores for function in functions))
            """Names that functions set which may be called at any time."""
            self._code, self._way, self._names = code, way, known
            self._outermost = len(self.loops)
            self._read()
            if callee:
                self._enter(callee, way[-1])
        self._step(ways[-1][-1])
        for loop in self.loops:
            loop.count = None if loop.count == math.inf else loop.count

    def _read(self) -> None:
        """Add the loops of a frame, and correct the counts of those before."""
        nested = LOOPS | DEFINITIONS
        self._follow(self._way[0], self.loops[-1:])
        for node, inner in itertools.pairwise([*self._way, None]):
            lists = [part for _, part in ast.iter_fields(node) if isinstance(part, list)]
            block = next((part for part in lists if inner in part), [inner])
            before = block[: block.index(inner)]
            after = block[block.index(inner) + 1 :]
            if isinstance(node, ast.If) and inner is not node.test:
                self._depend(node.test, is_met=inner in node.body)
            elif isinstance(node, ast.Match):
                self._depend(node.subject)
            elif isinstance(node, ast.Try) and inner in node.body:
                caught = texts_of(*(handler.type or handler for handler in node.handlers))
                if any("." not in name for name in caught - vars(builtins).keys()):
                    self._caught_at = self._place_of(node)
            elif isinstance(node, LOOPS) and inner not in getattr(node, "orelse", ()):
                self._read_loop(node, inner)
                self._follow(node, self.loops[-1:])
            for skip in inside(ast.Module(before, []), nested):
                parts = inside(skip, nested) if isinstance(skip, ast.If) else ()
                if any(isinstance(part, ast.Continue | ast.Return) for part in parts):
                    self._depend(skip.test)
            if words_of(ast.walk(ast.Module(after, [])), {"step"}) & self._training:
                again = ast.unparse(getattr(self._way[-1], "func", self._way[-1])) + "("
                is_again = any(again in ast.unparse(statement) for statement in after)
                self.loops.append(Loop(follows="again" if is_again else "more"))

    def _place_of(self, node: Any) -> str:
        return f"{Path(self._code.co_filename).name}:{node.lineno}"

    def _read_loop(self, node: Any, inner: Any) -> None:
        """Add a loop, with the number of its iterations."""
        loop = Loop(self._place_of(node), may_stop_at=self._caught_at)
        self.loops.append(loop)
        items = node.generators[0] if isinstance(node, COMPREHENSIONS) else node
        if isinstance(node, ast.While):
            loop.text, loop.size = ast.unparse(node.test), math.inf
        elif inner in (items.iter, None) and items is node:  # a generator, whose own loops count
            loop.size = 1
        elif items is node or not (items.ifs or node.generators[1:]):
            self._read_items(items, loop)
        loop.count = None if loop.is_pass or math.isnan(loop.size) else loop.size
        self._read_ends(node, loop)

    def _read_items(self, node: Any, loop: Loop) -> None:
        """Fill in a loop over items."""
        iterable = unwrapped(node.iter)
        loop.is_range = called(iterable) in ("range", "trange")
        if loop.is_range:
            iterable = ast.Call(ast.Name("range"), iterable.args, [])
            is_plain = len(iterable.args) == 1 and not isinstance(iterable.args[0], ast.Constant)
            loop.text = ast.unparse(iterable.args[0]) if is_plain else ""
        loop.text = loop.text or ast.unparse(iterable)
        is_endless = called(iterable) in _ENDED_ELSEWHERE
        loop.size, is_data = (math.inf, False) if is_endless else count_of(iterable, self._names)
        loop.is_pass = is_data or (math.isnan(loop.size) and not loop.is_range)
        is_stored = bool(words_of(ast.walk(iterable)) & self._stored)
        if not loop.is_pass:
            for outer in self.loops[:-1] if is_stored else self._changing(iterable):
                outer.count = None  # each of its iterations has another number of these
        for name in map(ast.unparse, stores_of(ast.walk(node.target))):
            self._changes[name] = [loop]
            loop.values[name] = self._names.get(name)

    def _read_ends(self, node: Any, loop: Loop) -> None:
        """Correct a loop's count by what may end it before its last iteration."""
        own = [*inside(node, DEFINITIONS)]
        direct = [*inside(node, LOOPS | DEFINITIONS)]
        adds = {part.target: part for part in own if _is_count(part)}
        loop.sets = {ast.unparse(part) for part in stores_of(own) if part not in adds}
        calls = texts_of(*(part.func for part in own if isinstance(part, ast.Call))) - {"self"}
        self._changed = {*loop.sets, *map(ast.unparse, adds), *calls}
        # A counter that is never reset ends a loop. One that is reset is patience.
        counters: dict[str, Any] = {ast.unparse(target): add for target, add in adds.items()}
        local = {*self._code.co_varnames} if self._outermost else counters.keys()
        counters = {name: counters[name] for name in (counters.keys() & local) - loop.sets}
        if loop.is_range or called(getattr(node, "iter", None)) in ("count", "enumerate"):
            counters |= dict.fromkeys([*loop.values][:1], node)
        ends_by_items = any(
            isinstance(part, ast.ExceptHandler) and "StopIteration" in ast.unparse(part)
            for part in own
            if all_of(part, ast.Break | ast.Return)
        )
        if ends_by_items or f"{loop.text}.append" in self._changed or loop.text in counters:
            loop.end(None)
        goes_on = any(isinstance(part, ast.Continue) for part in direct)
        for tests, end in ends_of(node):
            settings = [self._setting(test) for test in tests]
            tests = [test for test, is_met in zip(tests, settings, strict=True) if is_met is None]
            if False in settings:
                continue
            compare, is_beyond = comparison_of(tests)
            add = counters.get(ast.unparse(compare.left)) if compare else None
            if add and not self._varies(compare.comparators[0]):
                is_always = add in [node, *node.body] and not goes_on
                is_inner = add not in [node, *direct]  # an inner loop may count the rest
                turns = 0 if is_inner else self._turns(compare, add, is_beyond=is_beyond)
                self._end_by_counter(compare, turns, end, is_always=is_always)
            elif tests and not isinstance(end, ast.Raise):
                loop.may_stop_at = self._place_of(end)
                loop.is_pass = loop.is_pass and True not in settings  # it cuts all passes short
            elif not tests:
                loop.end(None if any(isinstance(part, ast.Continue) for part in own) else 1)
                loop.may_stop_at = ""

    def _setting(self, test: Any) -> bool | None:
        """Return whether a condition is met in all iterations, or None if it may vary."""
        if self._varies(test) or is_unclear(test) or self._changing(test):
            return None
        try:
            return not value_of(ast.UnaryOp(ast.Not(), test), self._names)
        except Exception:  # noqa: BLE001  # it does more than known functions
            return None

    def _varies(self, node: ast.AST) -> bool:
        """Return whether the loop or another function may change what an expression names."""
        return bool(texts_of(node) & self._changed or words_of(ast.walk(node)) & self._stored)

    def _turns(self, compare: Any, add: Any, *, is_beyond: bool) -> int:
        """Return how often a step is taken until a counter is at its limit, or beyond."""
        step = self._way[-1]
        by = 1 if isinstance(add, ast.For) else add.value.value
        # The counter has its value of the first step, before or after it was first added to.
        begin = value_of(compare.left, self._names) - by * _is_before(add, step)
        limit = int(value_of(compare.comparators[0], self._names))
        turns = len(range(begin, limit + is_beyond, by))
        return turns + _is_before(step, compare) - _is_before(add, compare)

    def _end_by_counter(self, compare: Any, turns: int, end: Any, *, is_always: bool) -> None:
        """Correct the counts of a loop, and of those around it, that a counter ends."""
        loop = self.loops[-1]
        limit = tuple(map(ast.unparse, (compare.left, *compare.comparators)))
        loop.limits.append(limit)
        outer_loops = [outer for outer in self.loops[self._outermost : -1] if not outer.follows]
        is_reset = limit[0] in loop.sets  # by the loop over items that it numbers
        around = itertools.takewhile(lambda outer: limit[0] not in outer.sets, outer_loops[::-1])
        group = [loop] if is_reset else [loop, *around]
        most = math.prod(part.size for part in group)
        ends_all = isinstance(end, ast.Return | ast.Expr | ast.Raise)
        ends_all = ends_all or all(limit in part.limits for part in group)
        if is_always and ends_all and not turns >= most:
            for part in group:
                part.end(1)
            group[-1].count, group[-1].text = turns, limit[1]
            group[-1].may_stop_at = loop.place if math.isnan(most) else group[-1].may_stop_at
        elif len(group) > 1 and most > turns > most - loop.size:
            group[1].may_stop_at = self._place_of(end)
        elif not turns >= most:
            for part in group:
                part.end(None)

    def _depend(self, test: ast.expr, *, is_met: bool = False) -> None:
        """Correct the counts of loops in which a step depends on a condition."""
        is_modulo, text = bool(all_of(test, ast.Mod)), ast.unparse(test)
        loops = []
        for name in texts_of(test):
            changing = self._changes.get(name, [])
            # What changes in a pass varies within each iteration around it.
            loops += [loop for loop in changing if loop.is_pass] or changing
        is_unknown = is_modulo or is_unclear(test) or "len(" in text
        if not loops and (is_unknown or words_of(ast.walk(test)) & self._stored):
            loops = self.loops[-1:]
        for loop in loops:
            if is_met and _PHASE.fullmatch(text) and str in map(type, loop.values.values()):
                loop.count, loop.values = 1, {}
            elif not loop.is_pass:
                loop.count = None
                loop.is_pass = is_modulo and bool(loop.values) and not loop.is_range

    def _changing(self, *nodes: ast.AST) -> list[Loop]:
        """Return the loops that change what expressions name."""
        changing = [self._changes.get(text, []) for text in texts_of(*nodes)]
        return [*dict.fromkeys(itertools.chain(*changing))]

    def _follow(self, node: ast.AST, loops: list[Loop]) -> None:
        """Note the variables that loops change by statements of their own."""
        for part in inside(node, LOOPS | DEFINITIONS):
            value: Any = getattr(part, "value", None)
            by = loops
            if isinstance(part, ast.AugAssign):
                changed = {ast.unparse(part.target)}
            elif isinstance(part, ast.Assign | ast.NamedExpr):
                changed = texts_of(*getattr(part, "targets", [getattr(part, "target", part)]))
                is_new = is_unclear(value) or changed & texts_of(value)
                by = self._changing(unwrapped(value)) + (loops if is_new else [])
            elif isinstance(part, ast.Expr) and isinstance(value, ast.Call):
                changed = texts_of(getattr(value.func, "value", value.func), *value.args)
                changed = {
                    text for text in changed if not isinstance(self._names.get(text), _VALUES)
                }
                inputs = [*value.args, *value.keywords]
                by = by if called(value) == "append" else self._changing(*inputs)
                by = by if part not in self._way else []
            else:
                continue
            self._changes |= dict.fromkeys(changed, by) if by else {}

    def _enter(self, callee: CodeType, call: Any) -> None:
        """Follow what loops change into the function that is called."""
        if callee.co_flags & inspect.CO_GENERATOR:
            iterable = unwrapped(call.iter if isinstance(call, ast.For) else call)
            is_looped = any(getattr(node, "iter", None) in (call, iterable) for node in self._way)
            is_whole = is_looped and called(iterable) in (callee.co_name, "")
            if not (is_whole or called(call) in _TAKE_ALL):
                raise LookupError(ast.unparse(call))  # it may be left
        if not isinstance(call, ast.Call):
            return
        function = self._names.get(ast.unparse(call.func))
        is_generator = bool(callee.co_flags & inspect.CO_GENERATOR)
        if getattr(function, "__module__", "") == "builtins" and not is_generator:
            raise LookupError(ast.unparse(call))  # it may call more, as map does
        for loop in self._changing(call.func):
            loop.count = None  # another iteration may call another function
        names = callee.co_varnames
        count = callee.co_argcount + callee.co_kwonlyargcount
        values = [call.func, *call.args] if names[:1] in (("self",), ("cls",)) else call.args
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        spread: list[Any] = [value for value in values if isinstance(value, ast.Starred)]
        spread += [keyword for keyword in call.keywords if keyword.arg is None]
        rests = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS
        rest = sum(bool(callee.co_flags & flag) for flag in rests)
        for at, name in enumerate(names[: count + rest]):
            own = [keywords[name]] if name in keywords else values[at : at + 1]
            own = own if at < count else [*values, *keywords.values()]
            self._changes[name] = self._changing(*own, *spread)

    def _step(self, call: Any) -> None:
        """Correct the counts of loops over optimizers or Trainers."""
        if called(call) in ("fit", "train"):
            for loop in self._changing(call.func):
                loop.count = None
        elif called(call) == "step" and self.loops:
            # Each optimizer steps once. A scaler of gradients gets the optimizer.
            names = [value for value in call.args if isinstance(value, ast.Name)]
            if texts_of(call.func, *names) & self.loops[-1].values.keys():
                self.loops[-1].end(1)


def _training(called_names: set[str], functions: list[Function]) -> set[str]:
    """Return the names of functions that train: those that run, and others that call these."""
    names = {"backward"} | called_names - {"", "step"} - vars(builtins).keys()
    while callers := {known.node.name for known in functions if known.words & names} - names:
        names |= callers
    return names


def _is_count(node: Any) -> bool:
    """Return whether a statement adds a constant."""
    is_sum = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)
    return is_sum and isinstance(node.value, ast.Constant)


def _is_before(node: Any, other: Any) -> bool:
    return (node.lineno, node.col_offset) < (other.lineno, other.col_offset)
