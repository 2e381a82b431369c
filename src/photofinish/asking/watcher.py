"""Measurements of a training in the process of a script, by PyTorch's hooks.

Each optimizer step ends a period. For each period, a file gets a line with the wait for batches,
the start of the first forward pass, and whether the script validated.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photofinish.asking.lengths import TRAINER, lengths_of_a_trainer, watch_arguments
from photofinish.custom_loops.script_device import is_capturing

if TYPE_CHECKING:
    from photofinish.asking.counted_step import CountedStep

_WRITE_SECONDS = 0.25
_LEAST_STEPS, _LEAST_SECONDS = 12, 5.0
"""Steps or seconds of training before a step is counted. By then, its state and memory exist."""
_clock = time.perf_counter


class Watcher:
    """Watcher of a process's training, which writes measurements line by line."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{os.getpid()}.jsonl"
        self._process = os.getpid()
        self._lines: list[str] = []
        self._written_at = 0.0
        self._forward_hook: Any = None
        self._compiles = self._is_unbroken = False
        self._loaders: dict[tuple[int, int | None], int] = {}
        """Numbers of loaders by data set and batch size. A script may make one for each epoch."""
        self._optimizers: dict[int, int] = {}
        self._steps: list[int] = []
        """Number of steps of each optimizer."""
        self._first_step_at = 0.0
        self._is_on_accelerator = False
        self._validations = 0
        """Number of periods with validation."""
        self._counting: CountedStep | None = None
        self._is_profiled = self._is_counted = False
        self._forward_passes = 0
        """Number of forward passes of modules before the first step of an optimizer."""
        self._begin_period()

    def _begin_period(self) -> None:
        self._waiting_seconds = 0.0
        self._batches = 0
        self._first_forward_at: float | None = None
        self._validates = False
        self._began_loader = 0
        self._loader: int | None = None

    # -- after imports ---------------------------------------------------------------------------

    def argparse_imported(self) -> None:
        """Note a length of the training in the script's arguments, such as --epochs."""
        watch_arguments(self._note_length)

    def other_imported(self, name: str) -> None:
        """Note a library whose training can't be seen."""
        self._note(kind="other", name=name, at=_clock())

    def torch_imported(self) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook
        from torch.utils.data import DataLoader

        hook = register_optimizer_step_post_hook(self._optimizer_stepped)
        iterate, compiled = DataLoader.__iter__, torch.compile

        @functools.wraps(iterate)
        def iterate_and_time(loader: Any) -> Any:
            return _TimedBatches(self, loader, iterate)

        @functools.wraps(compiled)
        def note_and_compile(*arguments: Any, **named: Any) -> Any:
            nonlocal hook
            # Compiled code depends on global hooks, so it would be compiled again at each change.
            self._forget_forward()
            self._is_unbroken = self._is_unbroken or bool(named.get("fullgraph"))
            if not self._compiles:
                self._compiles = True
                hook.remove()
                hook = register_optimizer_step_post_hook(self._hook_in_compiled_code())
            return compiled(*arguments, **named)

        DataLoader.__iter__ = iterate_and_time  # type: ignore[method-assign]
        torch.compile = note_and_compile
        self._watch_forward()
        self._note(kind="torch")
        atexit.register(self._ended)

    def _hook_in_compiled_code(self) -> Callable[..., None]:
        """Return the optimizers' hook for a script that compiles. It runs uncompiled.

        With `fullgraph=True`, compiled code may not leave its graph, so the hook is left out of it.
        """
        import torch

        stepped = torch.compiler.disable(self._optimizer_stepped)  # type: ignore[no-untyped-call]

        def note_unseen() -> None:
            self._note_unseen("compiles its optimizer's step with fullgraph=True")

        # A constant result is computed while Dynamo compiles the step.
        note_unseen = torch.compiler.assume_constant_result(note_unseen)  # type: ignore[no-untyped-call]

        def stepped_unless_unbroken(optimizer: Any, arguments: Any, named: Any) -> None:
            if torch.compiler.is_compiling() and self._is_unbroken:
                note_unseen()
            else:
                stepped(optimizer, arguments, named)

        return stepped_unless_unbroken

    # -- what the hooks see ----------------------------------------------------------------------

    def loader_begins(self, loader: Any, seconds: float) -> int:
        """Return the number of a loader whose iteration begins."""
        key = id(loader.dataset), loader.batch_size
        number = self._loaders.setdefault(key, len(self._loaders))
        self._began_loader = number + 1
        self._waiting_seconds = seconds  # without a wait for validation
        batches, workers = _batches(loader), loader.num_workers
        self._note(kind="loader", loader=number, batches=batches, workers=workers)
        return number

    def batch_loaded(self, number: int, batch: Any, seconds: float) -> None:
        """Add the wait for a batch. A period with batches of two loaders has a validation."""
        self._waiting_seconds += seconds
        self._batches += 1
        if self._counting is not None:
            self._counting.add(batch)
        if self._loader is not None and self._loader != number:
            self._validates = True
        self._loader = number
        self._note_seen()

    def _module_begins(self, module: Any, _inputs: Any) -> None:
        import torch

        if not self._steps:
            self._forward_passes += 1
            self._note_seen()
        if not (module.training and torch.is_grad_enabled()):
            self._validates = True
            return
        if self._first_forward_at is None:
            self._first_forward_at = _clock()
        if self._steps:
            self._forget_forward()

    def _note_seen(self) -> None:
        """Note how many batches and forward passes there were before the first optimizer step."""
        if not self._steps and _clock() - self._written_at > _WRITE_SECONDS:
            self._note(kind="seen", batches=self._batches, forward_passes=self._forward_passes)

    def _watch_forward(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        if self._forward_hook is None and not self._compiles:
            self._forward_hook = register_module_forward_pre_hook(self._module_begins)

    def _forget_forward(self) -> None:
        if self._forward_hook is not None:
            self._forward_hook.remove()
            self._forward_hook = None

    def _optimizer_stepped(self, optimizer: Any, _arguments: Any, _named: Any) -> None:
        if is_capturing():
            self._note_unseen("captures whole steps in CUDA graphs and replays them")
            return
        now = _clock()
        writes = now - self._written_at > _WRITE_SECONDS
        if writes and self._is_on_accelerator:
            now = _device_idle_at()
        number = self._optimizers.setdefault(id(optimizer), len(self._optimizers))
        if number == len(self._steps):
            self._steps.append(0)
            self._first_step_at = self._first_step_at or now
            self._note_optimizer(optimizer)
        self._steps[number] += 1
        self._validations += self._validates
        is_counted = self._counting is not None
        forward_at = self._first_forward_at
        self._lines.append(
            f"[{number},{now!r},{self._waiting_seconds!r},{self._batches},"
            f"{_or_null(forward_at)},{self._validates:d},{self._began_loader},{is_counted:d},"
            f"{_or_null(self._loader)}]"
        )
        if not self._is_counted:
            self._count(optimizer, now)
        if writes:
            self._write(now)
        self._begin_period()
        self._watch_forward()

    def _note_optimizer(self, optimizer: Any) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        device = next((weight.device.type for weight in weights), "cpu")
        self._is_on_accelerator = device != "cpu"
        self._note(kind="optimizer", device=device)
        for name, value in lengths_of_a_trainer():
            self._note_length(name, value, TRAINER)

    def _count(self, optimizer: Any, now: float) -> None:
        """Count the operations in a period of the main optimizer, once training has begun."""
        if self._counting is not None:
            self._counting.optimizer_stepped(optimizer)
            if self._optimizers[id(optimizer)] != self._slowest:
                return
            is_training = not self._validates or self._validations > sum(self._steps) / 2
            counts, needs_profile = self._counting.end(), self._counting.needs_profile
            self._counting = None
            if not is_training:
                return
            if needs_profile and not self._is_profiled:
                self._is_profiled = True
                self._begin_counting()
                return
            self._is_counted = True
            self._note(kind="counts", **counts)
            return
        steps = sum(self._steps)
        has_begun = steps >= _LEAST_STEPS or now - self._first_step_at > _LEAST_SECONDS
        if has_begun and self._optimizers[id(optimizer)] == self._slowest:
            self._begin_counting()

    def _begin_counting(self) -> None:
        from photofinish.asking.counted_step import CountedStep

        self._counting = CountedStep(compiles=self._compiles, is_profiled=self._is_profiled)

    @property
    def _slowest(self) -> int:
        return main_optimizer(self._steps)

    # -- the file --------------------------------------------------------------------------------

    def _note_unseen(self, why: str) -> None:
        self._note(kind="unseen", why=why)

    def _note_length(self, name: str, value: int, by: str) -> None:
        self._note(kind="length", name=name, value=value, by=by)

    def _note(self, **values: Any) -> None:
        self._lines.append(json.dumps(values))
        self._write(_clock())

    def _write(self, now: float) -> None:
        """Append the lines to the file. Forks, such as a loader's workers, write nothing."""
        lines, self._lines, self._written_at = self._lines, [], now
        if lines and os.getpid() == self._process:
            with self._file.open("a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")

    def _ended(self) -> None:
        if not self._steps:
            self._note(kind="seen", batches=self._batches, forward_passes=self._forward_passes)
        self._write(_clock())


def main_optimizer(steps: list[int]) -> int:
    """Return the optimizer that steps least often, or the last of them. Its step ends a period.

    An optimizer that hardly ever steps doesn't count.
    """
    often = [number for number, count in enumerate(steps) if 20 * count >= max(steps)]
    return min(reversed(often), key=lambda number: steps[number])


class _TimedBatches(Iterator[Any]):
    """Iterator of a loader with timed waits."""

    def __init__(self, watcher: Watcher, loader: Any, iterate: Callable[[Any], Any]) -> None:
        began_at = _clock()
        self._iterator = iterate(loader)
        self._watcher = watcher
        self._number = watcher.loader_begins(loader, _clock() - began_at)

    def __next__(self) -> Any:
        asked_at = _clock()
        batch = next(self._iterator)
        self._watcher.batch_loaded(self._number, batch, _clock() - asked_at)
        return batch

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def _device_idle_at() -> float:
    """Wait until the accelerator is idle, and return the time."""
    import torch

    torch.accelerator.synchronize()
    return _clock()


def _or_null(value: float | None) -> str:
    return "null" if value is None else repr(value)


def _batches(loader: Any) -> float | None:
    """Return the number of batches in an epoch. A smaller last batch is a fraction."""
    try:
        batches = len(loader)
    except TypeError:  # an IterableDataset without a length
        return None
    if loader.batch_size and hasattr(loader.sampler, "__len__"):
        return float(min(batches, len(loader.sampler) / loader.batch_size))
    return float(batches)
