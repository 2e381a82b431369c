"""Steps of a script without an optimizer, by the line that computes its gradients.

From one time that this line has gradients to the next, the weights are updated by hand, a batch is
loaded, and a forward pass and a backward pass compute.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.func

from .device import is_capturing
from .tensors import tensors_in
from .timed_batches import NamedLoader

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


def watch_gradients(recorder: Recorder, first_values: FirstValues) -> None:
    """Let a recorder see the steps of a script that makes no optimizer and names no loader."""
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
