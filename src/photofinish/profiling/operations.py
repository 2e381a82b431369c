"""Counts of a training step on a scratch copy of the trainer's network: see counting.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from photofinish.nested import leaves, samples_in
from photofinish.profiling.counting import Operators, count_step
from photofinish.profiling.precision import ProductPrecisions
from photofinish.results.measurements import Operations
from photofinish.training.batches import bytes_of_a_sample
from photofinish.training.trainer import Trainer


def count_operations(trainer: Trainer) -> Operations:
    """Count a step on the first batch."""
    batch = next(iter(trainer.training.train_batches(0)))
    tensors = [*leaves(batch[0]), *leaves(batch[1])]
    image_count = trainer.training.image_count + trainer.validation.image_count
    is_resident = trainer.experiment.input.name == "resident"
    with trainer.scratch_copy() as state, ProductPrecisions() as precisions:
        loss = state.scaler.scale
        of_optimizer = Operators()
        if len(state.optimizers) > 1:  # the custom step steps them
            counts = count_step(state.network, lambda: trainer.step(state, 0, batch))
        else:
            counts = count_step(
                state.network, lambda: loss(trainer.batch_loss.mean(state, 0, batch))
            )
            with of_optimizer:
                state.scaler.step(state.optimizer)  # creates its state
        equal = Counter(counts.products).items()
        states: list[Any] = []
        for optimizer in state.optimizers:
            for values in optimizer.state.values():
                states += values.values()
        weights = list(state.network.parameters())
        return Operations(
            images=samples_in(batch[1]),
            flops=counts.flops,
            in_double=precisions.precision == "fp64",
            kernels=counts.kernels * trainer.experiment.accumulate + of_optimizer.kernels,
            products=tuple(product.model_copy(update={"count": n}) for product, n in equal),
            parameter_bytes=_bytes(weights),
            gradient_bytes=_bytes(weight.grad for weight in weights),
            optimizer_bytes=_bytes(states),
            saved_activations=counts.saved_activations,
            saved_tensor_bytes=counts.saved_tensor_bytes,
            batch_bytes=0 if is_resident else _bytes(tensors),
            resident_bytes=image_count * bytes_of_a_sample(batch) if is_resident else 0,
            without_formula=counts.without_formula,
        )


def _bytes(values: Iterable[Any]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
