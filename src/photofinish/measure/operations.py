"""Counts of a training step on a scratch copy of the trainer's network: see counting.py."""

from __future__ import annotations

import math
import time

import torch

from photofinish.config.pytorch_names import FUSED, may_be_fused
from photofinish.inside.counting import Operators, bytes_of, count_step, kernels_of_optimizer
from photofinish.inside.precision import ProductPrecisions
from photofinish.nested import leaves, samples_in
from photofinish.results.measurements import Operations
from photofinish.training.batches import Batch, bytes_of_a_sample, map_batch, split_batch
from photofinish.training.losses import predict, to_input
from photofinish.training.state import TrainState
from photofinish.training.trainer import Trainer

_PRODUCT_SIDE, _PRODUCTS = 384, 5
"""Side of a square matrix, and number of products: about 5 ms on two cores."""


def count_operations(trainer: Trainer) -> Operations:
    """Count a step on the first batch, by a pass on its first part if `accumulate` splits it."""
    host_batch = next(iter(trainer.training.host_batches(0)))
    batch = trainer.training.to_device(host_batch)
    tensors = [*leaves(host_batch[0]), *leaves(host_batch[1])]
    resident = [batches for batches in (trainer.training, trainer.validation) if batches]
    image_count = sum(batches.image_count for batches in resident)
    is_resident = trainer.experiment.input.name == "resident"
    size, part, passes = samples_in(batch[1]), batch, 1
    if trainer.experiment.accumulate > 1:
        parts = split_batch(batch, -(-size // trainer.experiment.accumulate))
        # Views would save the storage of the whole batch.
        part, passes = map_batch(torch.clone, parts[0]), len(parts)
    with trainer.scratch_copy() as state, ProductPrecisions() as precisions:
        loss = state.scaler.scale
        of_optimizer = Operators()
        if len(state.optimizers) > 1:  # the custom step steps the optimizers
            trainer.step(state, 0, batch)  # creates their state
            counts = count_step(state.network, lambda: trainer.step(state, 0, batch))
        else:
            counts = count_step(state.network, lambda: loss(_mean_loss(trainer, state, part)))
            state.scaler.step(state.optimizer)  # creates the optimizer's state
            state.scaler.update()
            with of_optimizer:
                state.scaler.step(state.optimizer)
        defaults = state.optimizer.defaults
        fuses = may_be_fused(trainer.experiment.optimizer.arguments)
        if fuses and type(state.optimizer).__name__ in FUSED:  # on the CPU, SGD is not
            defaults = {"fused": True}
        counts = counts._replace(
            flops=counts.flops * size // samples_in(part[1]),
            kernels=passes * counts.kernels + kernels_of_optimizer(defaults, of_optimizer.kernels),
            convolutions=passes * counts.convolutions,
            time_steps=passes * counts.time_steps,
        )
        weights = list(state.network.parameters())
        fields = counts.operations(
            images=size,
            in_double=precisions.precision == "fp64",
            weights=weights,
            gradients=[weight.grad for weight in weights],
            optimizers=state.optimizers,
            batch_bytes=0 if is_resident else bytes_of(tensors),
            resident_bytes=image_count * bytes_of_a_sample(batch) if is_resident else 0,
        )
        return Operations.model_validate(fields | {"passes": passes})


def _mean_loss(trainer: Trainer, state: TrainState, batch: Batch) -> torch.Tensor:
    with trainer.step.autocast:
        if trainer.step.custom:
            return trainer.step.custom(state.network, to_input(state, batch))
        return trainer.criterion.mean(*predict(state.network, state, batch))


def fp32_flops_a_second() -> float:
    """Return the rate of the quickest of a few fp32 products, with the training's threads."""
    matrix = torch.rand(_PRODUCT_SIDE, _PRODUCT_SIDE)
    quickest_seconds = math.inf
    for _ in range(1 + _PRODUCTS):  # the first may start threads
        started_seconds = time.perf_counter()
        matrix @ matrix
        quickest_seconds = min(quickest_seconds, time.perf_counter() - started_seconds)
    return 2 * _PRODUCT_SIDE**3 / quickest_seconds
