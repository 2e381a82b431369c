"""Steps of a script without an optimizer, by the line that computes its gradients.

From one time that this line has gradients to the next, the weights are updated by hand, a batch is
loaded, and a forward pass and a backward pass compute.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.func

if TYPE_CHECKING:
    from .recorder import Recorder

_LEAST_TIMES = 3
"""Times that a line has gradients, by hand, until it is a step's. The first line of several is."""
_PLACES = (
    (torch.Tensor, "backward"),
    (torch.autograd, "grad"),
    (torch.func, "grad"),
    (torch.func, "grad_and_value"),
)
"""Functions that compute gradients, or return one that does."""


class ByHand:
    """Finder of the line whose gradients end a step, until an optimizer exists."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._times: Counter[tuple[Any, int]] = Counter()
        self._line: tuple[Any, int] | None = None
        self._originals = [getattr(place, name) for place, name in _PLACES]
        for (place, name), original in zip(_PLACES, self._originals, strict=True):
            watched = self._returning if place is torch.func else self._watched
            setattr(place, name, watched(original))

    def end(self) -> None:
        """Leave the script alone."""
        self._line, self._times = None, Counter()
        for (place, name), original in zip(_PLACES, self._originals, strict=True):
            if getattr(getattr(place, name), "__wrapped__", None) is original:
                setattr(place, name, original)

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            self._has_gradients(sys._getframe(1), arguments)
            return result

        return call

    def _returning(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            return self._watched(function(*arguments, **named))

        return call

    def _has_gradients(self, frame: Any, arguments: tuple[Any, ...]) -> None:
        line = frame.f_code, frame.f_lineno
        if self._line is None:
            self._times[line] += 1
            if self._times[line] < _LEAST_TIMES:
                return
            if any(isinstance(each, torch.optim.Optimizer) for each in gc.get_objects()):
                self.end()
                return
            self._line = line
        if line == self._line:
            tensors = [each for each in arguments[:1] if isinstance(each, torch.Tensor)]
            self._recorder.step_ended_without_optimizer(tensors)
