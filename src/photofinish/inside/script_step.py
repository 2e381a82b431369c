"""Counts of a step in a script, whose network, loss and optimizer are not known in advance."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from .counting import WEIGHTED, OperatorCounts, SavedTensors
from .precision import ProductPrecisions
from .timed_batches import is_loading


class ScriptStep:
    """Counter of everything that runs from its creation to `end`. Compiled code runs uncompiled.

    It finds networks by global hooks. If `needs_profile` is True afterwards, count another step to
    see the cost of operators without a formula.
    """

    def __init__(
        self, *, compiles: bool = False, is_profiled: bool = False, is_cast: bool = False
    ) -> None:
        self._precisions = ProductPrecisions()
        self._saved = _SavedByAnyNetwork(self._precisions)
        self._saved.is_cast = is_cast
        self._operators = OperatorCounts(self._saved)
        self._optimizers: dict[int, Optimizer] = {}
        self._samples = self._bytes = 0
        self._stack = ExitStack()
        enter = self._stack.enter_context
        if compiles:
            # A compiled network would warn about global hooks, which do not reach its code here.
            warnings.filterwarnings("ignore", message="Using `torch.compile.*global hooks")
            enter(torch.compiler.set_stance("force_eager"))
        before = register_module_forward_pre_hook(self._saved.module_begins)
        self._stack.callback(before.remove)
        self._stack.callback(register_module_forward_hook(self._saved.module_ended).remove)
        begins = register_optimizer_step_pre_hook(self._optimizer_begins)
        self._stack.callback(begins.remove)
        self._hooks = enter(ExitStack())
        self._hooks.enter_context(saved_tensors_hooks(self._saved.save, lambda tensor: tensor))
        graph = torch.autograd.graph
        self._forbid = graph.disable_saved_tensors_hooks
        enter(patch.object(graph, "disable_saved_tensors_hooks", self._leave_uncounted))
        enter(self._precisions)
        enter(self._operators)
        # A profile would end one that the script takes itself.
        if is_profiled and not getattr(torch.autograd, "_profiler_enabled", bool)():
            enter(self._operators.profiled())

    def add(self, batch: Any) -> None:
        self._samples += samples_in_batch(batch)
        self._bytes += bytes_on_host(batch)

    def _leave_uncounted(self, message: str) -> Any:
        """Forbid hooks as torch.func does, which would raise in a step with hooks."""
        self._operators.fail("torch.func allows no hooks of autograd")
        self._hooks.close()
        return self._forbid(message)

    def _optimizer_begins(self, _: Any, arguments: Any, named: Any) -> Any:
        self._operators.optimizer_begins()
        apart = self._operators.apart_from_optimizer
        given = {name: apart(each) for name, each in named.items()}
        return (arguments[0], *map(apart, arguments[1:])), given

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Count the optimizer's kernels and state."""
        self._optimizers[id(optimizer)] = optimizer
        self._operators.optimizer_ended(optimizer)

    @property
    def needs_profile(self) -> bool:
        """Return True if another step should be profiled, to see what some operators cost."""
        return self._operators.needs_profile

    def end(self) -> dict[str, Any]:
        """Return the counts of the step. Without a loader, the step counts as one sample."""
        self._stack.close()
        weights = [*self._saved.found.values()]
        precision = self._precisions.precision
        operations = self._operators.counts.operations(
            images=self._samples or 1,
            in_double=precision == "fp64",
            weights=weights,
            gradients=[weight for weight in weights if weight.requires_grad],
            optimizers=self._optimizers.values(),
            batch_bytes=self._bytes,
        )
        parameter_count = sum(weight.numel() for weight in weights)
        return {
            "operations": operations,
            "precision": precision,
            "parameter_count": parameter_count,
        }


class _SavedByAnyNetwork(SavedTensors):
    """Tensors that autograd saves for any network. Its weights are found when its modules run."""

    def __init__(self, precisions: ProductPrecisions) -> None:
        super().__init__(nn.Module())
        self.found: dict[int, nn.Parameter] = {}
        self._precisions = precisions

    def module_begins(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if is_loading():
            return
        with suppress(NotImplementedError, RuntimeError):  # of weights within torch.func
            uncalled = isinstance(module, nn.MultiheadAttention)  # its output layer is not called
            for weight in module.parameters(recurse=uncalled):
                self.weights.add(weight.untyped_storage().data_ptr())
                self.found[id(weight)] = weight
        if isinstance(module, nn.RNNBase):
            self._precisions.has_recurrent_layers = True
        if isinstance(module, WEIGHTED):
            self.layer_begins(module, inputs)

    def module_ended(self, module: nn.Module, *_: Any) -> None:
        if isinstance(module, WEIGHTED):
            self.layer_ended()


def samples_in_batch(batch: Any) -> int:
    """Return the length of the first array in a batch, or 0 without an array."""
    if isinstance(batch, (list, tuple)):
        batch = batch[0] if batch else None
    elif isinstance(batch, Mapping):
        batch = next(iter(batch.values()), None)
    if isinstance(batch, (list, tuple)):
        return len(batch)
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape else 0


def bytes_on_host(batch: Any) -> int:
    """Return the size of all arrays in a batch that are in the host's memory."""
    if isinstance(batch, Mapping):
        batch = [*batch.values()]
    if isinstance(batch, (list, tuple)):
        return sum(map(bytes_on_host, batch))
    is_on_host = str(getattr(batch, "device", "cpu")) == "cpu"
    return int(getattr(batch, "nbytes", 0)) if is_on_host else 0
