"""Counts of one step, and their record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from photofinish.results.measurements import Operations


class StepCount(NamedTuple):
    """Counts of one forward and backward pass."""

    flops: int
    kernels: int
    convolutions: int
    time_steps: int
    saved_activations: int
    saved_tensor_bytes: int
    without_formula: tuple[str, ...]
    """Operators and custom functions without a formula that take much of the CPU's time."""

    def operations(
        self,
        *,
        images: int,
        in_double: bool,
        weights: Iterable[torch.Tensor],
        gradients: Iterable[torch.Tensor | None],
        optimizers: Iterable[Optimizer],
        batch_bytes: int,
        resident_bytes: int = 0,
    ) -> Operations:
        """Return the record of a step with these counts, tensors and optimizers."""
        states = [state for optimizer in optimizers for state in optimizer.state.values()]
        return Operations(
            images=images,
            flops=self.flops,
            in_double=in_double,
            kernels=self.kernels,
            convolutions=self.convolutions,
            time_steps=self.time_steps,
            parameter_bytes=bytes_of(weights),
            gradient_bytes=bytes_of(gradients),
            optimizer_bytes=sum(bytes_of(state.values()) for state in states),
            saved_activations=self.saved_activations,
            saved_tensor_bytes=self.saved_tensor_bytes,
            batch_bytes=batch_bytes,
            resident_bytes=resident_bytes,
            without_formula=self.without_formula,
        )


def bytes_of(values: Iterable[Any]) -> int:
    """Return the bytes of the tensors among some values."""
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
