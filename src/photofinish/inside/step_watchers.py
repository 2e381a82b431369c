"""Watchers of a few steps on the CPU: lines that would wait for a GPU, and times of a step's parts.

Weights and what else requires gradients, what is moved by `.to(device)`, and all that is computed
from these would be on the GPU. Reading such a value back takes the host until the GPU has computed
it.
"""

from __future__ import annotations

import inspect
import linecache
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from .tensors import tensors_in
from .timed_batches import is_loading, library_of

_clock = time.perf_counter
_READS = {
    "item": "item", "tolist": "tolist", "numpy": "numpy", "__array__": "numpy", "cpu": "cpu",
    "__bool__": "bool", "__float__": "float", "__int__": "int", "__index__": "int",
    "__repr__": "print", "__format__": "print",
    "nonzero": "nonzero", "argwhere": "nonzero",
    "masked_select": "a mask", "unique": "unique",
}  # fmt: skip
"""Functions that wait for the GPU, by the name that a reader knows."""
_MADE = {
    "tensor", "as_tensor", "from_numpy", "zeros", "ones", "full", "empty", "eye", "arange",
    "linspace", "rand", "randn", "randint", "randperm",
}  # fmt: skip
_TORCH, _OURS = Path(torch.__file__).parent, Path(__file__).parent
_WRAPPING = str(_TORCH / "_tensor"), str(_TORCH / "overrides"), str(_OURS)
"""Beginnings of the files between a script and a function."""


class Stalls(TorchFunctionMode):
    """Finder of the lines in its block at which the host would wait for a GPU in each step."""

    steps_to_see, slows = 4, True

    def __init__(self) -> None:
        super().__init__()
        self._met: set[tuple[str, int, str]] = set()
        """Waits of this step, by file, line and function."""
        self._steps: Counter[tuple[str, int, str]] = Counter()
        self.steps = 0
        self._on_device: Any = WeakIdKeyDictionary()
        self._made_on_host: Any = WeakIdKeyDictionary()

    def optimizer_ended(self) -> None:
        pass

    def step_ended(self) -> None:
        """Count the step's waits. Before the first step, nothing was known of the tensors."""
        self._steps.update(self._met if self.steps else ())
        self.steps += 1
        self._met.clear()

    @property
    def note(self) -> dict[str, Any]:
        """Line that the recorder writes at the end: waits that each step had, but for the first."""
        lines = sorted(line for line, steps in self._steps.items() if steps == self.steps - 1)
        return {"kind": "stalls", "value": lines}

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        result = func(*args, **kwargs)
        given = list(tensors_in((args, kwargs)))
        is_on_device = any(
            isinstance(each, nn.Parameter) or each.requires_grad or each in self._on_device
            for each in given
        )
        if is_on_device and (what := _read(name, args, kwargs)):
            self._note(what)
            return result
        # On the CPU, `.to(device)` names the CPU. `.to(dtype)` moves nothing.
        places = (*args[1:2], kwargs.get("device")) if name == "to" else ()
        moves = name == "cuda" or any(isinstance(each, (str, torch.device)) for each in places)
        if moves and given:
            if given[0] in self._made_on_host:
                self._note("to")
            if result is given[0] and not result.requires_grad:
                result = result.detach()  # another tensor, as on a GPU, and no view
        for made in tensors_in(result):
            if is_on_device or moves or (name in _MADE and "device" in kwargs):
                self._on_device[made] = True
            elif name in _MADE and not is_loading():
                self._made_on_host[made] = True
        return result

    def _note(self, what: str) -> None:
        """Note the line that called, unless a library did."""
        for frame, line in traceback.walk_stack(inspect.currentframe()):
            file = frame.f_code.co_filename
            if not file.startswith(_WRAPPING):
                if library_of(file) is None:
                    if what == "to" and ".cuda(" in linecache.getline(file, line):
                        what = "cuda"  # which may be mapped to `to`
                    self._met.add((file, line, what))
                return


def _read(name: str, args: Any, kwargs: Any) -> str | None:
    """Return what reads a value back, or None if nothing waits."""
    if name == "where":
        return "nonzero" if len(args) + len(kwargs) == 1 else None
    if name == "__getitem__":
        masks = (each for each in tensors_in(args[1]) if each.dtype in (torch.bool, torch.uint8))
        return "a mask" if next(masks, None) is not None else None
    return _READS.get(name)


class StepClock:
    """Clock of the parts of steps. A forward pass begins with a module and ends with a backward."""

    steps_to_see, slows = 8, False

    def __init__(self) -> None:
        self.steps = 0
        self._seconds = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}
        self._forward_at: float | None = None
        self._optimizer_at: float | None = None
        self._before_optimizer_seconds = 0.0

    def __enter__(self) -> None:
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._timed_backward
        self._hooks = [
            register_module_forward_pre_hook(self._module_begins),
            register_optimizer_step_pre_hook(self._optimizer_begins),
        ]

    def __exit__(self, *_: object) -> None:
        torch.autograd.backward = self._backward
        for hook in self._hooks:
            hook.remove()

    def step_ended(self) -> None:
        self.steps += 1

    @property
    def note(self) -> dict[str, Any]:
        seconds = {part: each / self.steps for part, each in self._seconds.items() if each}
        return {"kind": "step_parts", "value": seconds}

    def _module_begins(self, *_: Any) -> None:
        if self._forward_at is None:
            self._forward_at = _clock()

    def _timed_backward(self, *arguments: Any, **named: Any) -> None:
        began_at = _clock()
        self._seconds["forward"] += began_at - (self._forward_at or began_at)
        self._backward(*arguments, **named)
        self._forward_at = None
        self._seconds["backward"] += _clock() - began_at

    def _optimizer_begins(self, *_: Any) -> None:
        self._optimizer_at = _clock()
        self._before_optimizer_seconds = sum(self._seconds.values())

    def optimizer_ended(self) -> None:
        """Add an optimizer's step, without the passes of its closure."""
        if self._optimizer_at is not None:
            within_seconds = sum(self._seconds.values()) - self._before_optimizer_seconds
            self._seconds["optimizer"] += _clock() - self._optimizer_at - within_seconds
            self._optimizer_at = None
