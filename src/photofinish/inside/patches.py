"""Hooks and replaced functions of torch, by which a recorder watches a training."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from .timed_batches import TimedBatches

if TYPE_CHECKING:
    from .recorder import Recorder


def watch_torch(recorder: Recorder) -> None:
    """Let a recorder watch optimizers, data loaders, validation and compilation."""
    hook = register_optimizer_step_post_hook(recorder.optimizer_stepped)
    iterate, compiled, evaluated = DataLoader.__iter__, torch.compile, torch.nn.Module.eval
    make_autocast = torch.autocast.__init__
    compiles = is_unbroken = False

    @functools.wraps(iterate)
    def iterate_and_time(loader: Any) -> Any:
        if recorder.is_nested:
            return iterate(loader)
        # Two loaders of one data set may have samplers of its parts.
        samples = -1
        with contextlib.suppress(Exception):  # of a script's sampler without a length
            samples = len(loader.sampler)
        key = id(loader.dataset), loader.batch_size, samples
        return TimedBatches(recorder, loader, iterate, key)

    @functools.wraps(evaluated)
    def watch_and_evaluate(module: Any) -> Any:
        recorder.watch_forward()
        return evaluated(module)

    @functools.wraps(compiled)
    def note_and_compile(*arguments: Any, **named: Any) -> Any:
        nonlocal compiles, is_unbroken, hook
        if recorder.torch_version < (2, 3):  # its Dynamo removes the optimizers' hooks
            recorder.note_unseen("uses torch.compile of a torch before 2.3")
            return compiled(*arguments, **named)
        is_unbroken = is_unbroken or bool(named.get("fullgraph"))
        recorder.compiles()
        if not compiles:
            compiles = True
            hook.remove()
            hook = register_optimizer_step_post_hook(_uncompiled(recorder, lambda: is_unbroken))
        return compiled(*arguments, **named)

    @functools.wraps(make_autocast)
    def make_and_note_autocast(
        autocast: Any,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        *rest: Any,
        **named: Any,
    ) -> None:
        make_autocast(autocast, device_type, dtype, enabled, *rest, **named)
        # On the CPU it does nothing, and on a GPU it decides the speed.
        if enabled and device_type == "cuda" and not torch.cuda.is_available():
            recorder.note_autocast(str(autocast.fast_dtype))

    torch.autocast.__init__ = make_and_note_autocast  # type: ignore[method-assign, assignment]
    DataLoader.__iter__ = iterate_and_time  # type: ignore[method-assign]
    torch.nn.Module.eval = watch_and_evaluate  # type: ignore[method-assign, assignment]
    torch.compile = note_and_compile


def _uncompiled(recorder: Recorder, is_unbroken: Callable[[], bool]) -> Callable[..., None]:
    """Return the optimizers' hook for a script that compiles. It runs uncompiled.

    With `fullgraph=True`, compiled code may not leave its graph, so the hook is left out of it.
    """
    stepped = torch.compiler.disable(recorder.optimizer_stepped)  # type: ignore[no-untyped-call]

    def note_unseen() -> None:
        recorder.note_unseen("compiles its optimizer's step with fullgraph=True")

    # A constant result is computed while Dynamo compiles the step.
    note_unseen = torch.compiler.assume_constant_result(note_unseen)  # type: ignore[no-untyped-call]

    def stepped_unless_unbroken(optimizer: Any, arguments: Any, named: Any) -> None:
        if torch.compiler.is_compiling() and is_unbroken():
            note_unseen()
        else:
            stepped(optimizer, arguments, named)

    return stepped_unless_unbroken
