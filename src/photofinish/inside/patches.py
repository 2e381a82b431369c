"""Hooks and replaced functions of torch, by which a recorder watches a training."""

from __future__ import annotations

import contextlib
import functools
import inspect
import traceback
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.func
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from .device import is_capturing
from .tensors import tensors_in
from .timed_batches import NamedLoader, TimedBatches

if TYPE_CHECKING:
    from .first_values import FirstValues
    from .recorder import Recorder

_LEAST_TIMES = 3
"""Times that a line has gradients, by hand, until it ends steps. A step begins this count anew."""
_PLACES: tuple[tuple[Any, str], ...] = (
    (torch.optim.Optimizer, "__init__"), (NamedLoader, "__init__"), (torch.Tensor, "backward"),
    (torch.autograd, "backward"), (torch.autograd, "grad"), (torch.func, "grad"),
    (torch.func, "grad_and_value"),
)  # fmt: skip
"""Functions that compute gradients or return one that does, and those after which none count."""


def watch_torch(recorder: Recorder) -> None:
    """Let a recorder watch optimizers, data loaders, validation and compilation."""
    hook = register_optimizer_step_post_hook(recorder.optimizer_stepped)
    iterate = DataLoader.__iter__
    compiled = torch.compile
    evaluated = torch.nn.Module.eval
    make_autocast = torch.autocast.__init__
    compiles = is_unbroken = False

    @functools.wraps(iterate)
    def iterate_and_time(loader: Any) -> Any:
        if recorder.is_nested:
            return iterate(loader)
        # Two loaders of one data set may have samplers of its parts.
        samples = -1
        with contextlib.suppress(Exception):  # of a script's sampler without a length
            samples = len(loader.sampler)
        key = id(loader.dataset), loader.batch_size, samples
        return TimedBatches(recorder, loader, iterate, key)

    @functools.wraps(evaluated)
    def watch_and_evaluate(module: Any) -> Any:
        recorder.watch_forward()
        return evaluated(module)

    @functools.wraps(compiled)
    def note_and_compile(*arguments: Any, **named: Any) -> Any:
        nonlocal compiles, is_unbroken, hook
        if recorder.torch_version < (2, 3):  # its Dynamo removes the optimizers' hooks
            recorder.note_unseen("uses torch.compile of a torch before 2.3")
            return compiled(*arguments, **named)
        is_unbroken = is_unbroken or bool(named.get("fullgraph"))
        recorder.compiles()
        if not compiles:
            compiles = True
            hook.remove()
            hook = register_optimizer_step_post_hook(_uncompiled(recorder, lambda: is_unbroken))
        return compiled(*arguments, **named)

    @functools.wraps(make_autocast)
    def make_and_note_autocast(
        autocast: Any,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        *rest: Any,
        **named: Any,
    ) -> None:
        make_autocast(autocast, device_type, dtype, enabled, *rest, **named)
        # On the CPU it does nothing, and on a GPU it decides the speed.
        if enabled and device_type == "cuda" and not torch.cuda.is_available():
            recorder.note_autocast(str(autocast.fast_dtype))

    torch.autocast.__init__ = make_and_note_autocast  # type: ignore[method-assign, assignment]
    DataLoader.__iter__ = iterate_and_time  # type: ignore[method-assign]
    torch.nn.Module.eval = watch_and_evaluate  # type: ignore[method-assign, assignment]
    torch.compile = note_and_compile


def _uncompiled(recorder: Recorder, is_unbroken: Callable[[], bool]) -> Callable[..., None]:
    """Return the optimizers' hook for a script that compiles. It runs uncompiled.

    With `fullgraph=True`, compiled code may not leave its graph, so the hook is left out of it.
    """
    stepped = torch.compiler.disable(recorder.optimizer_stepped)  # type: ignore[no-untyped-call]

    def note_unseen() -> None:
        recorder.note_unseen("compiles its optimizer's step with fullgraph=True")

    # A constant result is computed while Dynamo compiles the step.
    note_unseen = torch.compiler.assume_constant_result(note_unseen)  # type: ignore[no-untyped-call]

    def stepped_unless_unbroken(optimizer: Any, arguments: Any, named: Any) -> None:
        if torch.compiler.is_compiling() and is_unbroken():
            note_unseen()
        else:
            stepped(optimizer, arguments, named)

    return stepped_unless_unbroken


def watch_gradients(recorder: Recorder, first_values: FirstValues) -> None:
    """Let a recorder see the steps of a script that makes no optimizer and names no loader.

    The line that computes gradients ends them. From one time that it runs to the next, the weights
    are updated by hand, a batch is loaded, and a forward pass and a backward pass compute.
    """
    times: Counter[tuple[str, int]] = Counter()
    step_line: tuple[str, int] | None = None
    depth = 0  # of calls that compute gradients, of which the outermost counts

    def ending(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> None:
            nonlocal depth
            depth += 1  # for good, as the script may have kept a function
            for place, name, original in originals:
                if getattr(getattr(place, name), "__wrapped__", None) is original:
                    setattr(place, name, original)
            function(*arguments, **named)

        return call

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal depth, step_line
            # Compiled code may not leave its graph, and a capture may not be waited for.
            if first_values.is_compiling() or depth or is_capturing():
                return function(*arguments, **named)
            depth += 1
            try:
                result = function(*arguments, **named)
            finally:
                depth -= 1
            if callable(result):  # of torch.func
                return watched(result)
            if depth == 0 and (line := _line()):
                times[line] += 1
                if line == step_line or times[line] == _LEAST_TIMES:
                    step_line = line
                    times.clear()
                    first_values.end()
                    recorder.step_ended_without_optimizer(tensors_in([arguments, named, result]))
            return result

        return call

    originals = [(place, name, getattr(place, name)) for place, name in _PLACES]
    for place, name, original in originals:
        setattr(place, name, (ending if name == "__init__" else watched)(original))


def _line() -> tuple[str, int] | None:
    """Return the script's line that runs, or None in a function that torch.func transforms."""
    line = None
    for frame, number in traceback.walk_stack(inspect.currentframe()):
        module = f"{frame.f_globals.get('__name__', '')}."
        if module.startswith("torch._functorch."):
            return None  # where nothing can be counted
        if line is None and not module.startswith(("torch.", f"{__package__}.")):
            line = frame.f_code.co_filename, number
    return line
