"""Counts of a step in a script, whose network, loss and optimizer are not known in advance."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self

from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from photofinish.profiling.counting import WEIGHTED, OperatorCounts, SavedTensors
from photofinish.profiling.precision import ProductPrecisions
from photofinish.results.measurements import Operations


class ScriptStep:
    """Counter of a step in its block, which finds networks and optimizers by global hooks.

    An optimizer's hook can't register another hook. In that case, pass `watches_optimizers=False`
    and call `optimizer_stepped`.
    """

    def __init__(self, *, is_profiled: bool = False, watches_optimizers: bool = True) -> None:
        self._watches_optimizers = watches_optimizers
        self._precisions = ProductPrecisions()
        self._saved = _SavedByAnyNetwork(self._precisions)
        self._operators = OperatorCounts(self._saved)
        self._is_profiled = is_profiled
        self._optimizers: dict[int, Optimizer] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        enter = self._stack.enter_context
        hooks = [
            register_module_forward_pre_hook(self._saved.module_begins),
            register_module_forward_hook(self._saved.module_ended),
        ]
        if self._watches_optimizers:
            hooks.append(register_optimizer_step_post_hook(self.optimizer_stepped))
        for hook in hooks:
            self._stack.callback(hook.remove)
        enter(saved_tensors_hooks(self._saved.save, lambda tensor: tensor))
        enter(self._precisions)
        enter(self._operators)
        if self._is_profiled:
            enter(self._operators.profiled())
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def optimizer_stepped(self, optimizer: Optimizer, *_: Any) -> None:
        """Count the optimizer's state."""
        self._optimizers[id(optimizer)] = optimizer

    @property
    def needs_profile(self) -> bool:
        """Return True if another step should be profiled, to see what some operators cost."""
        return self._operators.needs_profile

    @property
    def precision(self) -> str:
        """Return the precision of the step's products."""
        return self._precisions.precision

    def operations(self, samples: int, batch_bytes: int) -> Operations:
        """Return the counts, after the step has ended."""
        weights = [*self._saved.found.values()]
        return self._operators.counts.operations(
            images=samples,
            in_double=self.precision == "fp64",
            weights=weights,
            gradients=[weight for weight in weights if weight.requires_grad],
            optimizers=self._optimizers.values(),
            batch_bytes=batch_bytes,
        )

    @property
    def parameter_count(self) -> int:
        """Number of weights in all networks that ran."""
        return sum(weight.numel() for weight in self._saved.found.values())


class _SavedByAnyNetwork(SavedTensors):
    """Tensors that autograd saves for any network. Its weights are found when its modules run."""

    def __init__(self, precisions: ProductPrecisions) -> None:
        super().__init__(nn.Module())
        self.found: dict[int, nn.Parameter] = {}
        self._precisions = precisions

    def module_begins(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        for weight in module.parameters(recurse=False):
            self.found[id(weight)] = weight
            self.weights.add(weight.untyped_storage().data_ptr())
        if isinstance(module, nn.RNNBase):
            self._precisions.has_recurrent_layers = True
        if isinstance(module, WEIGHTED):
            self.layer_begins(module, inputs)

    def module_ended(self, module: nn.Module, *_: Any) -> None:
        if isinstance(module, WEIGHTED):
            self.layer_ended()
