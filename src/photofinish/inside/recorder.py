"""Measurements of a training in the process of a script, by PyTorch's hooks.

A period ends with a step of the main optimizer. A file gets a line of sums for each block, which
is a run of like periods. A period that starts an epoch, validates or is counted is its own block.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .device import clock_of, is_capturing, noted_rank
from .lengths import length_of_training
from .optimizers import OFTEN, Optimizers, main_optimizer, weights_of
from .recorder_files import LineFile, ScriptFiles
from .single_steps import SingleSteps
from .timed_batches import NAMED, Loaders, NamedLoader
from .without_gpu import failure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .device import Device
    from .first_values import FirstValues

VALIDATES, COUNTED = 1, 2
_BLOCK_SECONDS, _MOST_BLOCK_SECONDS = 0.05, 1.0
"""Shortest length of a block, and the longest."""
_BLOCK_SHARE = 0.02
"""Share of the training so far that a block takes. To end a block takes 0.2 ms."""
_LEAST_STEPS, _LEAST_SECONDS = 12, 5.0
"""Steps or seconds before a step is counted, by hand. By then, its state and memory exist."""
_UNWATCHED_SECONDS, _MOST_UNWATCHED_SECONDS = 0.02, 0.1
"""Time between periods with hooks of modules, without a loader. It grows as blocks do."""
_clock = time.perf_counter


class Recorder:
    def __init__(self, folder: Path) -> None:
        self._lines = LineFile(folder)
        self.note = self._lines.note
        self._forward_hook: Any = None
        self.torch_version: tuple[int, ...] = ()
        self._compiles = self.is_nested = False
        self._loaders = Loaders(self.note)
        self._files = ScriptFiles()
        self._optimizers = Optimizers()
        self._steps: list[int] = []
        self._all_steps: list[int] = []
        self._main = 0
        """Optimizer whose step ends a period."""
        self._captured: list[Any] = []
        self._first_step: FirstValues | None = None
        self._seen_at: float | None = None
        """Time of the first batch or forward pass."""
        self._first_step_at: float | None = None
        self._is_on_cpu = True
        self.device: Device | None = None
        self.is_attentive = True
        """True if each batch and step needs more than sums."""
        self._validations = self._forward_passes = 0
        """Number of periods with validation, and of forward passes before the first step."""
        self._validations_before = 0
        """Number of periods with validation before the step that is counted."""
        self._single_steps = SingleSteps(self.note)
        self._watches_at = self._closes_at = 0.0
        self._begin_block(_clock())
        atexit.register(self._ended)

    def _begin_block(self, at: float) -> None:
        self._began_at = self._ended_at = self._stepped_at = at
        self._began_cpu_seconds = time.process_time()
        self.waiting_seconds = self._making_seconds = 0.0
        self.batches = self._batches_before = self._steps_since = 0
        self._periods = self._made = self._flags = 0
        self._quickest_seconds = math.inf
        self.loader: int | None = None
        self._began_loader: int | None = None

    def torch_imported(self) -> None:
        self.note(kind="has_torch", value=True)
        torch = sys.modules["torch"]
        self.torch_version = tuple(map(int, torch.__version__.split(".")[:2]))
        if self.torch_version < (2, 0):  # its optimizers have no hooks
            self.note_unseen("uses a torch before 2.0")
            return
        from .first_values import FirstValues
        from .patches import watch_gradients, watch_torch

        watch_torch(self)
        self.watch_forward()
        self._first_step = FirstValues(self.note)
        watch_gradients(self, self._first_step)

    def compiles(self) -> None:
        """Leave out hooks of modules.

        Compiled code depends on global hooks, so it would be compiled again at each change.
        """
        self._forget_forward()
        if self._first_step:
            self._first_step.forget_modules()
        self._compiles = True
        self.note(kind="compiles", value=True)

    def named(self, loader: Any) -> NamedLoader:
        """Return a loader that a script names as the training's."""
        return NamedLoader(self, loader)

    def loader_begins(self, loader: Any, key: Any) -> int:
        """Return the number of a loader whose iteration begins, which ends a block."""
        number = self._loaders.number_of(loader, key)
        self._end_run()
        # An empty block is a part of the next.
        is_counting = self._single_steps.counting is not None
        if self._flags or self.batches or self._made or is_counting or any(self._steps):
            self._end_block(_clock())
        self._began_loader, self._closes_at = number, 0.0
        self.loader_ended()
        return number

    def loader_ended(self) -> None:
        """Watch whether validation follows."""
        if self._first_step_at is not None:
            self.watch_forward()

    def batch_loaded(self, number: int, batch: Any) -> None:
        """Note the loader of a batch. A period with batches of two loaders has a validation."""
        if self.loader not in (None, number):
            if self.batches - 1 > self._batches_before:
                self._note_validation()
            self._end_run()
            self.batches = self.batches or 1
        self.loader = number
        if self._first_step and self._compiles and self._first_step_at is None:
            self._first_step.batch_loaded()
        if self._single_steps.counting is not None:
            self._single_steps.counting.add(batch)
        self._note_seen()

    def step_ended_without_optimizer(self, tensors: Iterable[Any] = ()) -> None:
        """End a period of a script in which no optimizer's step was seen, such as in a graph.

        The tensors are on the device that computes.
        """
        number = self._optimizers.numbers.get(NAMED)
        if number is None and (self._captured or self._first_step_at is None):
            if self._captured:
                self._single_steps.leave_uncounted("its steps are replays of a CUDA graph")
            self._main = number = self._add_optimizer(NAMED, self._captured or tensors)
        if number == self._main:
            self._steps[number] += 1
            self._end_period(_clock())

    def _note_validation(self) -> None:
        if not self._flags & VALIDATES:
            self._end_run()
            self._flags |= VALIDATES
            self._validations += 1
            self._closes_at = 0.0

    def _module_begins(self, module: Any, _inputs: Any) -> None:
        if self._first_step_at is None:
            self._forward_passes += 1
            self._note_seen()
        else:
            self._forget_forward()
        if not (module.training and sys.modules["torch"].is_grad_enabled()):
            self._note_validation()
        elif self.loader is None and self._main != self._optimizers.numbers.get(NAMED):
            self._making_seconds += _clock() - self._ended_at
            self._made += 1

    def _note_seen(self) -> None:
        """Note how many batches and forward passes there were before the first step."""
        if self._first_step_at is None:
            now, is_first = _clock(), self._seen_at is None
            self._seen_at = self._seen_at or now
            if is_first or self._lines.is_old(now):
                self.note(kind="seen", **self._seen)

    @property
    def _seen(self) -> dict[str, Any]:
        batches = self._loaders.batches + self.batches
        return {"batches": batches, "forward_passes": self._forward_passes, "at": self._seen_at}

    def watch_forward(self) -> None:
        if self._forward_hook is None and not self._compiles and "torch" in sys.modules:
            register = sys.modules["torch"].nn.modules.module.register_module_forward_pre_hook
            self._forward_hook = register(self._module_begins)

    def _forget_forward(self) -> None:
        if self._forward_hook is not None:
            self._forward_hook.remove()
            self._forward_hook = None

    def optimizer_stepped(self, optimizer: Any, _arguments: Any, _named: Any) -> None:
        """Add a step, which ends a period if it is the main optimizer's."""
        number = self._optimizers.numbers.get(id(optimizer))
        if number is None or self.is_attentive:
            if is_capturing():
                self._captured = weights_of(optimizer)
                self.note_unseen("captures whole steps in CUDA graphs and replays them")
                return
            if number is None:
                if self._leaves_it_to_rank_0():
                    return
                number = self._number_of(optimizer)
            self._single_steps.optimizer_stepped(optimizer)
        self._steps[number] += 1
        if number == self._main:
            self._end_period(_clock(), optimizer)
            return
        self._steps_since, self._stepped_at = self._steps_since + 1, _clock()
        if self._steps_since > OFTEN * max(1, len(self._optimizers.numbers) - 1):
            self._end_block(_clock())  # another optimizer may be the main one

    @functools.lru_cache  # noqa: B019  # there is one recorder
    def _leaves_it_to_rank_0(self) -> bool:
        """Return True for a rank other than 0 of joined processes, which records no more."""
        rank = noted_rank(self.note)
        if rank and self._first_step:
            self._first_step_at = _clock()
            self.is_attentive = False
            self.is_nested = True
            self._forget_forward()
            self._first_step.end()
        return rank > 0

    def _number_of(self, optimizer: Any) -> int:
        if self._first_step:
            self._first_step.optimizer_stepped()
        weights = weights_of(optimizer)
        number = self._optimizers.in_place_of_one_gone(weights)
        if number is None:
            self._end_run()  # it may begin another training
            number = self._add_optimizer(id(optimizer), weights)
        self._optimizers.keep(optimizer, number)
        return number

    def _add_optimizer(self, key: Any, weights: Iterable[Any]) -> int:
        number = self._optimizers.add(key)
        if self._main == self._optimizers.numbers.get(NAMED):
            self._main = number
        self._steps.append(0)
        self._all_steps.append(0)
        device = next((each.device for each in weights if each.device.type != "cpu"), None)
        kind = device.type if device else "cpu"
        self._is_on_cpu = self._is_on_cpu and device is None
        if device is not None and self.device is None:
            self.device = clock_of(device, self._lines.add, self.note)
        if self._first_step_at is None:
            self._first_step_at = _clock()
            self.is_attentive = self.device is not None
            self._forget_forward()
            if self._lines.begin_training(self._ended):
                self._began_cpu_seconds = 0.0
            self.note(kind="files", value=self._files.end())
        self.note(kind="optimizer", device=kind, is_named=key == NAMED)
        if length := length_of_training():
            self.note(kind="loops", **length)
        self._lines.written_at = 0.0  # written soon, as the second step may take minutes
        return number

    def _end_period(self, now: float, optimizer: Any = None) -> None:
        self._periods += 1
        seconds = now - self._ended_at
        if seconds < self._quickest_seconds:
            self._quickest_seconds = seconds
        self._ended_at = now
        self._batches_before = self.batches
        self._steps_since = 0
        if self.loader is None and now >= self._watches_at:
            self._watches_at = now + self._grown(now, _UNWATCHED_SECONDS, _MOST_UNWATCHED_SECONDS)
            self.watch_forward()
        if self.device is not None:
            self.device.mark(ends_period=True)
        if now >= self._closes_at:
            self._end_block(now)
            if optimizer is not None:
                self._single_steps.see_weights(optimizer)
            self._end_single_step()

    def _end_run(self) -> None:
        """End a block of like periods, without what has passed since."""
        if self._periods:
            self._end_block(self._ended_at)

    def _end_block(self, at: float) -> None:
        if self.device is not None and at != self._ended_at:
            self.device.mark()
        if at > self._began_at:
            if self._single_steps.slows(at - self._began_at):
                self._flags |= COUNTED
            add = self._lines.add if self.device is None else self.device.block_ended
            line = [
                self._began_at,
                at,
                self._steps,
                self.batches,
                self.waiting_seconds,
                self._making_seconds / self._made * self._periods if self._made else None,
                self._flags,
                self.loader,
                self._began_loader,
                self._quickest_seconds if self._periods else None,
                time.process_time() - self._began_cpu_seconds,
            ]
            add(line)
            self._loaders.add(self.batches)
            self._all_steps = list(map(sum, zip(self._all_steps, self._steps)))
            self._steps = [0] * len(self._steps)
            self._main = main_optimizer(self._all_steps, self._optimizers.numbers.get(NAMED))
        self._begin_block(at)
        self._closes_at = 0.0
        single = self._single_steps
        if not single.watchers and (single.is_counted or sum(self._all_steps) > _LEAST_STEPS):
            self._closes_at = at + self._grown(at, _BLOCK_SECONDS, _MOST_BLOCK_SECONDS)
        self._lines.write_sometimes(at)

    def _grown(self, now: float, least: float, most: float) -> float:
        """Return a share of the training so far, within limits."""
        return min(most, max(least, _BLOCK_SHARE * (now - (self._first_step_at or now))))

    def _end_single_step(self) -> None:
        """Count the operations in a period, once training has begun. Watch some on the CPU."""
        single, steps, now = self._single_steps, sum(self._all_steps), _clock()
        passed_seconds = now - (self._first_step_at or now)
        has_validated = self._validations > self._validations_before
        self._validations_before = self._validations
        if single.step_ended(
            is_training=not has_validated or self._validations > steps / 2,
            is_early=steps < _LEAST_STEPS and passed_seconds < _LEAST_SECONDS,
            compiles=self._compiles,
            version=self.torch_version,
            is_on_cpu=self._is_on_cpu,
        ):
            self.is_attentive = self.device is not None or single.is_active
            self._closes_at = 0.0 if single.is_active else self._closes_at
            if single.counting is not None:
                self.watch_forward()
            if self.device is not None:
                self.device.leave_out()
            self._begin_block(_clock())

    def note_unseen(self, why: str) -> None:
        self.note(kind="unseen", why=why, may_be_named="photofinish" in sys.modules)

    @functools.lru_cache  # noqa: B019  # there is one recorder
    def note_autocast(self, dtype: str) -> None:
        """Note once that an autocast computes in this type on CUDA only."""
        self._single_steps.is_cast = True
        self.note(kind="autocast", dtype=dtype)

    @functools.lru_cache  # noqa: B019  # it is called once in each process
    def _ended(self) -> None:
        if self._lines.is_forked or not ("torch" in sys.modules or self._optimizers.numbers):
            return
        if self._first_step_at is None:
            self.note(kind="seen", **self._seen)
        else:
            with contextlib.suppress(RuntimeError):  # of a device after the script's own error
                self._end_run()
                if any(self._steps):  # of an optimizer that ends no period
                    self._end_block(self._stepped_at)
                if self.device is not None:
                    self.device.add_known(waits=True)
            self._lines.add_memory()
        self.note(kind="failure", value=failure())
        self.note(kind="end", at=_clock())
