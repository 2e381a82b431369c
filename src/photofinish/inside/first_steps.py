"""First steps of a script, to compare on two devices: inputs, weights, losses and gradients."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .tensors import tensors_in

_STEPS, _SAMPLES = 3, 32
"""Steps of an optimizer, and values of each gradient, that are noted, by hand."""
_MOVED = 2.0**-15
"""Relative change of each weight in a run that shows what rounding may do."""


class FirstSteps:
    """Recorder of the first steps. If it `moves` the weights, they change before the first step."""

    def __init__(self, note: Callable[..., None], *, moves: bool) -> None:
        self._note, self._moves = note, moves
        self._names: dict[int, str] = {}
        """Names of weights by id, as their network has them."""
        self._inputs: list[list[float]] = []
        self._weights: str | None = None
        self._losses: list[float] = []
        self._steps: list[dict[str, Any]] = []
        self._random_state: torch.Tensor | None = None
        """State of the CPU's generator when a forward pass began."""
        self._draws = self._is_done = False

    def begin(self) -> None:
        """Watch from the import of torch on."""
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._record_and_backward
        self._module_hook = register_module_forward_pre_hook(self._module_begins)
        register_optimizer_step_pre_hook(self._optimizer_begins)

    def forget_modules(self) -> None:
        """Leave modules alone: compiled code depends on their hooks."""
        self._module_hook.remove()

    def _module_begins(self, module: Any, inputs: Any) -> None:
        for name, weight in module.named_parameters():
            if id(weight) not in self._names:
                self._names[id(weight)] = name
                if self._moves:
                    _move(weight)
        if self._random_state is None:
            self._random_state = torch.get_rng_state()
            if not self._steps:
                self._inputs += [_sampled(tensor) for tensor in tensors_in(inputs)]

    def _record_and_backward(self, tensors: Any, *rest: Any, **named: Any) -> None:
        if self._random_state is not None:
            self._draws |= not torch.equal(self._random_state, torch.get_rng_state())
            self._random_state = None
        for tensor in tensors_in(tensors):
            if tensor.numel() == 1:
                self._losses.append(float(tensor.detach()))
        self._backward(tensors, *rest, **named)

    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        if self._is_done:
            return
        weights = [each for group in optimizer.param_groups for each in group["params"]]
        if self._weights is None:
            digest = hashlib.sha256()
            for weight in weights:
                digest.update(_bytes(weight))
            self._weights = digest.hexdigest()
        gradients = {
            self._names.get(id(weight), f"weight {number}"): _sampled(weight.grad)
            for number, weight in enumerate(weights)
            if weight.grad is not None and weight.grad.layout is torch.strided
        }
        self._steps.append({"losses": self._losses, "gradients": gradients})
        self._losses = []
        if len(self._steps) == _STEPS:
            self._end()

    def _end(self) -> None:
        self._is_done = True
        torch.autograd.backward = self._backward
        self._module_hook.remove()  # the optimizers' hooks are being called
        self._note(
            kind="first_steps",
            inputs=self._inputs,
            weights=self._weights,
            steps=self._steps,
            draws=self._draws,
        )


def _move(weight: torch.Tensor) -> None:
    signs = [random.Random(weight.numel() + place).choice((-1, 1)) for place in range(64)]
    with torch.no_grad():
        flat = weight.view(-1) if weight.is_contiguous() else weight.reshape(-1)
        places = torch.arange(flat.numel(), device=weight.device) % 64
        flat *= 1 + _MOVED * torch.tensor(signs, dtype=weight.dtype, device=weight.device)[places]


def _sampled(tensor: torch.Tensor) -> list[float]:
    """Return the norm of a tensor, and values of it at equal distances."""
    flat = tensor.detach().flatten().float()
    values = flat[:: max(1, flat.numel() // _SAMPLES)][:_SAMPLES].tolist()
    return [float(flat.norm()), *values]


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
