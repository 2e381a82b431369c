"""Times of the parts of a script's steps on the CPU: forward, backward and optimizer."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

_clock = time.perf_counter


class StepClock:
    """Clock of the parts of steps. A forward pass begins with a module and ends with a backward."""

    steps_to_see, slows = 8, False

    def __init__(self) -> None:
        self.steps = 0
        self._seconds = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}
        self._forward_at: float | None = None
        self._optimizer_at: float | None = None
        self._before_optimizer_seconds = 0.0

    def begin(self) -> None:
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._timed_backward
        self._hooks = [
            register_module_forward_pre_hook(self._module_begins),
            register_optimizer_step_pre_hook(self._optimizer_begins),
        ]

    def end(self) -> None:
        torch.autograd.backward = self._backward
        for hook in self._hooks:
            hook.remove()

    def step_ended(self) -> None:
        self.steps += 1

    @property
    def note(self) -> dict[str, Any]:
        """Line that the recorder writes at the end."""
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
