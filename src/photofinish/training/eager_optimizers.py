"""PyTorch's optimisers without its compiler, which they import (seconds, in a training that may take one) to tell it
that it is not to compile them.

Each of them is told by decorators around its methods: `torch._disable_dynamo` (importing the compiler at the first
call) and, around `step`, one that sets whether gradients are recorded and marks a break for the compiler, and one that
calls hooks and the profiler, which takes two fifths of a small network's step. Below those decorators, which change
nothing in a network that isn't compiled, are the methods themselves, and a subclass has them as they are. Torch's own
classes stay as they are too. A torch that decorates otherwise would at worst be slow again, or fail the test that holds
each step to the original's bits.
"""

from __future__ import annotations

import inspect
from typing import TypeVar

import torch
from torch.optim import Optimizer

_METHODS = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
_OptimizerT = TypeVar("_OptimizerT", bound=Optimizer)


def eager(kind: type[_OptimizerT]) -> type[_OptimizerT]:
    """The same optimiser for networks that run eagerly, as they all do here."""
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in _METHODS}
    step = torch.no_grad()(inspect.unwrap(kind.step))
    step.hooked = True  # or PyTorch wraps it to report every step to its profiler
    return type(kind.__name__, (kind,), {**methods, "step": step, "__module__": __name__})
