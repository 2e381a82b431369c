"""Single steps of a script that are counted or watched, one after another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .device import is_in_backward

if TYPE_CHECKING:
    from .script_step import ScriptStep
    from .step_watchers import Stalls, StepClock

_SLOW_STEP_SECONDS = 1.0
"""Time of a step from which on it is hardly slower while lines are found that stall a GPU."""


class SingleSteps:
    """Counter of a step's operations. Then it watches for lines that stall a GPU, and parts."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self.counting: ScriptStep | None = None
        self.watchers: list[Stalls | StepClock] = []
        """Watchers of a few steps each, one after another."""
        self._is_profiled = self.is_counted = False
        self.is_cast = False
        """True if the script has an autocast for CUDA, which does nothing on the CPU."""
        self._trained = 0
        """Number of weights with gradients in the step that was counted."""

    @property
    def is_active(self) -> bool:
        return self.counting is not None or bool(self.watchers)

    def slows(self, seconds: float) -> bool:
        """Return True if a step of this time is slower than usual."""
        is_watched = bool(self.watchers) and self.watchers[0].slows
        return self.counting is not None or (is_watched and seconds < _SLOW_STEP_SECONDS)

    def optimizer_stepped(self, optimizer: Any) -> None:
        if self.counting is not None:
            self.counting.optimizer_stepped(optimizer)
        if self.watchers:
            self.watchers[0].optimizer_ended()

    def see_weights(self, optimizer: Any) -> None:
        """Count again if more weights have gradients, such as those of a thawed network."""
        if not self.is_active:
            weights = (weight for group in optimizer.param_groups for weight in group["params"])
            trained = sum(weight.grad is not None for weight in weights)
            self.is_counted = self.is_counted and trained <= self._trained
            self._trained = max(self._trained, trained)

    def step_ended(
        self,
        *,
        is_training: bool,
        is_early: bool,
        compiles: bool,
        version: tuple[int, ...],
        is_on_cpu: bool,
    ) -> bool:
        """End a step, and begin what comes next. Return True if something began or ended."""
        has_torch = "torch" in sys.modules
        if not self.is_active and (self.is_counted or is_early or not has_torch):
            return False
        if is_in_backward():
            if not self.is_active:
                self.leave_uncounted("an optimizer steps in the backward pass, before its end")
            return False
        if self.watchers:
            return self._watch(self.watchers[0])
        try:
            if self.counting is not None:
                watches = is_on_cpu and not compiles
                self._end_counting(self.counting, is_training=is_training, watches=watches)
            if not self.is_counted and compiles and not is_on_cpu:
                self.leave_uncounted("a compiled step may not fit on the GPU uncompiled")
            elif not self.is_counted:
                self._begin_counting(version, compiles=compiles)
        except Exception as error:  # noqa: BLE001  # of hooks and modes that the script has, too
            self.counting = None
            self.leave_uncounted(f"counting its operations fails: {error}")
        return True

    def leave_uncounted(self, why: str) -> None:
        self.is_counted = True
        self._note(kind="uncounted", value=why)

    def _begin_counting(self, version: tuple[int, ...], *, compiles: bool) -> None:
        if version < (2, 6) and (compiles or version < (2, 2)):
            why = "operations are counted from torch 2.2 on, and compiled ones from torch 2.6 on"
            self.leave_uncounted(why)
            return
        from .script_step import ScriptStep

        self.counting = ScriptStep(
            compiles=compiles, is_profiled=self._is_profiled, is_cast=self.is_cast
        )

    def _end_counting(self, counting: ScriptStep, *, is_training: bool, watches: bool) -> None:
        counts = counting.end()
        needs_profile = counting.operators.needs_profile
        self.counting = None
        if is_training and (self._is_profiled or not needs_profile):
            self.is_counted = True
            if counts["operations"]["kernels"]:
                self._note(kind="counts", **counts)
            if watches:
                from .step_watchers import Stalls, StepClock

                self.watchers = [Stalls(), StepClock()]
                self.watchers[0].__enter__()
        self._is_profiled = self._is_profiled or (is_training and needs_profile)

    def _watch(self, watcher: Stalls | StepClock) -> bool:
        watcher.step_ended()
        if watcher.steps < watcher.steps_to_see:
            return False
        watcher.__exit__(None, None, None)
        self._note(**watcher.note)
        self.watchers.pop(0)
        for following in self.watchers[:1]:
            following.__enter__()
        return True
