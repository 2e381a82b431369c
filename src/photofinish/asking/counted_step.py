"""Step of a script whose operations are counted, in the script's process."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import Any

import torch

from photofinish.custom_loops.script_batches import bytes_on_host, samples_in_batch
from photofinish.profiling.script_step import ScriptStep


class CountedStep:
    """Counter of everything that runs from its creation to `end`. Compiled code runs uncompiled.

    If `needs_profile` is True afterwards, count another step to see the cost of operators without a
    formula.
    """

    def __init__(self, *, compiles: bool, is_profiled: bool) -> None:
        self._samples = self._bytes = 0
        self._stack = ExitStack()
        if compiles:
            # A compiled network would warn about global hooks, which do not reach its code here.
            warnings.filterwarnings("ignore", message="Using `torch.compile.*global hooks")
            self._stack.enter_context(torch.compiler.set_stance("force_eager"))
        step = ScriptStep(is_profiled=is_profiled, watches_optimizers=False)
        self._step = self._stack.enter_context(step)
        self.optimizer_stepped = self._step.optimizer_stepped

    @property
    def needs_profile(self) -> bool:
        return self._step.needs_profile

    def add(self, batch: Any) -> None:
        """Add a batch that the step loaded."""
        self._samples += samples_in_batch(batch)
        self._bytes += bytes_on_host(batch)

    def end(self) -> dict[str, Any]:
        """Return the counts of the step. Without a loader, the step counts as one sample."""
        self._stack.close()
        operations = self._step.operations(self._samples or 1, self._bytes)
        return {
            "operations": operations.model_dump_json(),
            "precision": self._step.precision,
            "parameter_count": self._step.parameter_count,
        }
