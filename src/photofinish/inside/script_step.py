"""Counts of a step in a script, whose network, loss and optimizer are not known in advance."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from .counting import Operators, kernels_of_optimizer
from .fused import FusedOperators
from .memory import Allocations, gradients_of, takes_all_at_once
from .timed_batches import is_loading


class ScriptStep:
    """Counter of everything that runs from its creation to `end`. Compiled code runs uncompiled.

    It finds networks by global hooks. If `operators.needs_profile` is True afterwards, count
    another step to see the cost of operators without a formula.
    """

    def __init__(
        self, *, compiles: bool = False, is_profiled: bool = False, is_cast: bool = False
    ) -> None:
        self._memory = Allocations(is_cast=is_cast, compiles=compiles)
        self.operators = Operators(self._memory)
        self._weights: dict[int, nn.Parameter] = {}
        self._samples = self._kernels_before = 0
        self._stack = ExitStack()
        enter = self._stack.enter_context
        if compiles:
            # A compiled network would warn about global hooks, which do not reach its code here.
            warnings.filterwarnings("ignore", message="Using `torch.compile.*global hooks")
            enter(torch.compiler.set_stance("force_eager"))
        before = register_module_forward_pre_hook(self._module_begins)
        self._stack.callback(before.remove)
        begins = register_optimizer_step_pre_hook(self._optimizer_begins)
        self._stack.callback(begins.remove)
        self._hooks = enter(ExitStack())
        self._hooks.enter_context(saved_tensors_hooks(self._memory.save, lambda tensor: tensor))
        graph = torch.autograd.graph
        self._forbid = graph.disable_saved_tensors_hooks
        enter(patch.object(graph, "disable_saved_tensors_hooks", self._leave_uncounted))
        enter(self.operators)
        enter(FusedOperators(self.operators))
        # A profile would end one that the script takes itself.
        if is_profiled and not getattr(torch.autograd, "_profiler_enabled", bool)():
            enter(self.operators.profiled())

    def add(self, batch: Any) -> None:
        """Add the length of the first array in a batch, or 0 without an array."""
        if isinstance(batch, (list, tuple)):
            batch = batch[0] if batch else None
        elif isinstance(batch, Mapping):
            batch = next(iter(batch.values()), None)
        if isinstance(batch, (list, tuple)):
            self._samples += len(batch)
        elif shape := getattr(batch, "shape", None):
            self._samples += int(shape[0])

    def _module_begins(self, module: nn.Module, _inputs: Any) -> None:
        """Find a network's weights."""
        if is_loading():
            return
        with suppress(NotImplementedError, RuntimeError):  # of weights within torch.func
            uncalled = isinstance(module, nn.MultiheadAttention)  # its output layer is not called
            for weight in module.parameters(recurse=uncalled):
                if weight.is_leaf:  # not what functional_call puts in its place
                    self._memory.add_weight(weight)
                    self._weights[id(weight)] = weight

    def _leave_uncounted(self, message: str) -> Any:
        """Forbid hooks as torch.func does, which would raise in a step with hooks."""
        self.operators.failure = RuntimeError("torch.func allows no hooks of autograd")
        self._hooks.close()
        return self._forbid(message)

    def _optimizer_begins(self, optimizer: Optimizer, arguments: Any, named: Any) -> Any:
        self._kernels_before = self.operators.kernels
        self._memory.hold_state(optimizer)
        self.operators.is_hidden = takes_all_at_once(optimizer.defaults)
        apart = self._apart_from_optimizer
        given = {name: apart(each) for name, each in named.items()}
        return (arguments[0], *map(apart, arguments[1:])), given

    def _apart_from_optimizer(self, given: Any) -> Any:
        """Return an argument of an optimizer, which does not count the kernels of a closure."""
        if not callable(given):
            return given

        @functools.wraps(given)
        def call(*arguments: Any, **named: Any) -> Any:
            operators = self.operators
            began_with = operators.kernels
            is_hidden = operators.is_hidden
            operators.is_hidden = False
            result = given(*arguments, **named)
            operators.is_hidden = is_hidden
            self._kernels_before += operators.kernels - began_with
            return result

        return call

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Count the optimizer's step as an accelerator takes it."""
        counted = self.operators.kernels - self._kernels_before
        kernels = kernels_of_optimizer(optimizer.defaults, counted)
        self.operators.kernels = self._kernels_before + kernels
        self.operators.is_hidden = False
        try:
            self._memory.optimizer_stepped(optimizer, optimizer.defaults)
        except Exception as error:  # noqa: BLE001  # as the script goes on
            self.operators.failure = error

    def end(self) -> dict[str, Any]:
        """Return the counts of the step. Without a loader, the step counts as one sample."""
        self._stack.close()
        weights = [*self._weights.values()]
        operations = self.operators.counts | {
            "images": self._samples or 1,
            **self._memory.fields(gradients_of(weights)),
        }
        return {
            "operations": operations,
            "precision": self.operators.precision,
            "parameter_count": sum(weight.numel() for weight in weights),
        }
