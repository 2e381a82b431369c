"""Time the named parts of loading: data set, transforms and collating."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .stopwatch import DECODING, PINNING, READING, Stopwatch, Timed

if TYPE_CHECKING:
    from typing import Self

_FUNCTIONS = {
    "PIL.Image": {"open": READING},
    "torchvision.io": {
        "read_file": READING, "decode_image": DECODING, "decode_jpeg": DECODING,
        "decode_png": DECODING, "read_image": DECODING,
    },
    "cv2": {"imread": DECODING, "imdecode": DECODING},
    "numpy": {"load": READING},
    "torch": {"load": READING},
}  # fmt: skip
"""Functions of packages that read or decode files."""
_PLAIN = (FunctionType, BuiltinFunctionType, MethodType, partial)


class Taps(ExitStack):
    """Replacement of callables by timed callables, until the block ends."""

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self._watch = watch
        self._timed_steps: dict[int, Any] = {}
        """Timed callables so far, by the id of the original callable."""

    def __enter__(self) -> Self:
        pin = _timed_method(self._watch, PINNING, torch.Tensor.pin_memory)
        self.put(torch.Tensor, "pin_memory", pin)
        return super().__enter__()

    def put(self, owner: Any, key: str, value: Any) -> bool:
        """Replace an attribute, or return False if it can't be replaced."""
        former = getattr(owner, key)
        try:
            setattr(owner, key, value)
        except (AttributeError, TypeError):  # a frozen class
            return False
        self.callback(setattr, owner, key, former)
        return True

    def timed_data_set(self, dataset: Any) -> Timed:
        """Return a data set whose items are timed, with the parts inside them."""
        inner = list(_data_sets(dataset))
        modules = {type(each).__module__ for each in inner}
        for home, functions in _FUNCTIONS.items():
            for name, part in functions.items():
                function = getattr(sys.modules.get(home), name, None)
                timed = Timed(self._watch, part, function)
                for module in filter(sys.modules.get, modules | {home}):
                    for key, value in list(vars(sys.modules[module]).items()):
                        if function is not None and value is function:
                            self.put(sys.modules[module], key, timed)
        # Only data sets of images have imported it.
        image_file = getattr(sys.modules.get("PIL.ImageFile"), "ImageFile", None)
        for kind in (image_file, *_subclasses(image_file)) if image_file else ():
            if load := vars(kind).get("load"):
                self.put(kind, "load", _timed_method(self._watch, DECODING, load))
        for each in inner:
            self._time_inside(each)
            for key, value in vars(each).items():
                if isinstance(value, Timed) and "transform" not in key:  # such as `loader`
                    self._watch.data_set_parts.add(value.part)
        kind = type(inner[-1]).__name__
        name = "resizing" if kind == "ImageFiles" else f"the rest of {kind}"
        self._watch.data_set_parts.add(name)
        return Timed(self._watch, name, dataset)

    def _time_inside(self, owner: Any) -> bool:
        """Time the callables that an object holds, and return True if there are any."""
        held = []
        if isinstance(owner, nn.Module):
            held = [self.timed(child) for child in owner.children()]
        for key, value in list(getattr(owner, "__dict__", {}).items()):
            if type(value) in (list, tuple) and value and all(map(_is_step, value)):
                steps = type(value)(map(self.timed, value))
                held += [steps] if self.put(owner, key, steps) else []
            elif _is_step(value):
                timed = self.timed(value)
                held += [timed] if self.put(owner, key, timed) else []
        return bool(held)

    def timed(self, step: Any) -> Any:
        """Return a timed callable. Its steps are timed separately from the rest."""
        if isinstance(step, Timed):
            return step
        if id(step) not in self._timed_steps:
            self._timed_steps[id(step)] = step  # it may contain itself
            self._timed_steps[id(step)] = self._newly_timed(step)
        return self._timed_steps[id(step)]

    def _newly_timed(self, step: Any) -> Any:
        name = _name(step)
        if not isinstance(step, _PLAIN) and self._time_inside(step):
            if name in ("Compose", "Sequential"):  # these only call their steps
                return step
            name = f"the rest of {name}"
        if not isinstance(step, nn.Module):
            return Timed(self._watch, name, step)
        before = step.register_forward_pre_hook(lambda *_: self._watch.begin(name))
        after = step.register_forward_hook(lambda *_: self._watch.end(), always_call=True)
        self.callback(before.remove)
        self.callback(after.remove)
        return step


def _timed_method(watch: Stopwatch, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*arguments: Any, **named: Any) -> Any:
        return Timed(watch, part, method)(*arguments, **named)

    return timed


def _is_step(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def _name(step: Any) -> str:
    if isinstance(step, partial):
        step = step.func
    return getattr(step, "__name__", type(step).__name__)


def _data_sets(dataset: Any) -> Iterator[Any]:
    """Yield a data set, and the data sets inside it."""
    yield dataset
    held = vars(dataset) if hasattr(dataset, "__dict__") else {}
    for inner in [held.get("dataset"), *(held.get("datasets") or ())]:
        if hasattr(inner, "__getitem__"):
            yield from _data_sets(inner)


def _subclasses(kind: type[Any]) -> Iterator[type]:
    each: type[Any]
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)
