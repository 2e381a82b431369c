"""First step of a script, to compare it on two devices: inputs, weights, losses and gradients."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .device import is_capturing, is_in_backward
from .tensors import fingerprint_tensor, tensors_in

_MOST_LOSSES = 256
"""Backward passes until a step is seen, by hand."""


class FirstValues:
    """Recorder of the first step. What it can't read ends the recording, and never the script."""

    def __init__(self, note: Callable[..., None]) -> None:
        """Watch from the import of torch on."""
        self._note = note
        self._names: dict[int, str] = {}
        """Names of weights by id, as their network has them."""
        self._modules: set[int] = set()
        self._inputs: list[tuple[float, ...]] = []
        self._losses: list[float] = []
        self._stepping: Any = None
        """Optimizer whose step has begun without gradients, as its closure computes them."""
        self._random_state: torch.Tensor | None = None
        """State of the CPU's generator when a forward pass began."""
        self._draws = self._is_done = self._is_skipped = False
        self._seconds = 0.0
        compiler = getattr(torch, "compiler", None)  # from torch 2.1 on
        self.is_compiling = getattr(compiler, "is_compiling", lambda: False)
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._record_and_backward
        self._module_hook = register_module_forward_pre_hook(self._module_begins)
        register_optimizer_step_pre_hook(self._optimizer_begins)

    def forget_modules(self) -> None:
        """Leave modules alone: compiled code depends on their hooks."""
        self._module_hook.remove()
        self.batch_loaded()

    def batch_loaded(self) -> None:
        """Begin to watch for random numbers, where modules are left alone."""
        if not self._losses:
            self._random_state = torch.get_rng_state()

    def _module_begins(self, module: Any, inputs: Any) -> None:
        is_known = self._random_state is not None and id(module) in self._modules
        # Activation checkpointing calls modules again in the backward pass.
        if torch.is_grad_enabled() and not is_known and not is_in_backward():
            self._try(self._record_module, module, inputs)

    def _record_and_backward(self, tensors: Any, *rest: Any, **named: Any) -> None:
        self._try(self._record_losses, tensors)
        self._backward(tensors, *rest, **named)
        if self._stepping is not None:
            self._try(self._record_step, self._stepping)

    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        if not self.is_compiling():  # first, as compiled code may not leave its graph
            self._try(self._record_step, optimizer)

    def _try(self, record: Callable[..., None], *seen: Any) -> None:
        if self._is_done:
            return
        began_at = time.perf_counter()
        try:
            if is_capturing():  # where to read a value is an error
                self.end()
            else:
                record(*seen)
        except Exception:  # noqa: BLE001  # of values that can't be read, as in a vmap
            self.end()
        self._seconds += time.perf_counter() - began_at

    def _record_module(self, module: Any, inputs: Any) -> None:
        if id(module) not in self._modules:
            self._modules.update(map(id, module.modules()))
            for name, weight in module.named_parameters():
                self._names.setdefault(id(weight), name)
        if self._random_state is None:
            self._random_state = torch.get_rng_state()
            self._inputs += map(fingerprint_tensor, filter(_is_readable, tensors_in(inputs)))

    def _record_losses(self, tensors: Any) -> None:
        if self._random_state is not None:
            self._draws |= not torch.equal(self._random_state, torch.get_rng_state())
            self._random_state = None
        for tensor in filter(_is_readable, tensors_in(tensors)):
            if tensor.numel() == 1:
                (loss,) = tensor.detach().flatten().tolist()
                self._losses.append(loss if math.isfinite(loss) else 0.0)  # as records hold it
        if len(self._losses) > _MOST_LOSSES:
            self.end()

    def _record_step(self, optimizer: Any) -> None:
        began_at = time.perf_counter()
        every = [weight for group in optimizer.param_groups for weight in group["params"]]
        if not self._losses and all(weight.grad is None for weight in every):
            self._stepping = optimizer
            return
        overflowed = getattr(optimizer, "found_inf", None)
        # A GradScaler leaves it to a fused optimizer to skip such a step.
        self._is_skipped = overflowed is not None and bool(overflowed)
        if self._is_skipped:
            return
        self.end()
        weights = [*filter(_is_readable, every)]
        digest = hashlib.sha256()
        for weight in weights:
            host = weight.detach().cpu().contiguous().flatten()
            digest.update(host.view(torch.uint8).numpy().data)
        # A GradScaler leaves it to a fused optimizer to divide gradients by this.
        given = getattr(optimizer, "grad_scale", None)
        scale = 1.0 if given is None else float(given)
        gradients: dict[str, list[float]] = {}
        for number, weight in enumerate(weights):
            if weight.grad is not None and _is_readable(weight.grad):
                name = self._names.get(id(weight))
                unique = f"weight {number}" if name is None or name in gradients else name
                gradients[unique] = [each / scale for each in fingerprint_tensor(weight.grad)]
        self._note(
            kind="first_steps",
            seconds=self._seconds + time.perf_counter() - began_at,
            inputs=self._inputs,
            weights=digest.hexdigest(),
            losses=self._losses,
            gradients=gradients,
            draws=self._draws,
            seed=torch.initial_seed(),
        )

    def optimizer_stepped(self) -> None:
        """End after a step that was not skipped. A compiled one has passed unseen."""
        if not self._is_skipped:
            self.end()

    def end(self) -> None:
        """Record no more."""
        self._is_done, self._stepping = True, None
        if torch.autograd.backward == self._record_and_backward:  # the script may replace it, too
            torch.autograd.backward = self._backward
        self._module_hook.remove()  # the optimizers' hooks are being called


def _is_readable(tensor: torch.Tensor) -> bool:
    """Return False for complex or sparse values, and for a subclass.

    To read a distributed tensor waits for other processes.
    """
    is_dense = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_complex())
    return is_dense and type(tensor) in (torch.Tensor, torch.nn.Parameter)
