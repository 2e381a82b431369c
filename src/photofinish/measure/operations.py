"""Count what a training's step computes and moves, on a copy of the network."""

from __future__ import annotations

import math
import time

import torch

from photofinish.config.pytorch_names import FUSED, may_be_fused
from photofinish.inside.counting import Operators, count_step, kernels_of_optimizer
from photofinish.inside.memory import Allocations, takes_all_at_once
from photofinish.inside.tensors import bytes_of
from photofinish.nested import samples_in
from photofinish.results.measurements import Operations
from photofinish.training.batches import bytes_of_a_sample, map_batch, split_batch
from photofinish.training.trainer import Trainer

_PRODUCT_SIDE, _PRODUCTS = 384, 5
"""Side of a square matrix, and number of products: about 5 ms on two cores."""


def count_operations(trainer: Trainer) -> Operations:
    """Count a step on the first batch, by a pass on its first part if `accumulate` splits it."""
    batch = trainer.training.to_device(next(iter(trainer.training.host_batches(0))))
    resident = [batches for batches in (trainer.training, trainer.validation) if batches]
    image_count = sum(batches.image_count for batches in resident)
    is_resident = trainer.experiment.input.name == "resident"
    memory = Allocations()
    memory.hold(size=image_count * bytes_of_a_sample(batch) * is_resident)
    size, part, passes = samples_in(batch[1]), batch, 1
    if trainer.experiment.accumulate > 1:
        parts = split_batch(batch, -(-size // trainer.experiment.accumulate))
        # Views would save the storage of the whole batch.
        part, passes = map_batch(torch.clone, parts[0]), len(parts)
        memory.note([batch[0], batch[1]], is_new=False)
    with trainer.scratch_copy() as state:
        trained = [each for each in state.network.parameters() if each.requires_grad]
        fuses = may_be_fused(trainer.experiment.optimizer.arguments)
        fuses = fuses and type(state.optimizer).__name__ in FUSED  # on the CPU, SGD is not
        defaults = {"fused": True} if fuses else state.optimizer.defaults
        of_optimizer = Operators(memory)
        of_optimizer.is_hidden = takes_all_at_once(defaults)

        def loss() -> torch.Tensor:
            with trainer.step.autocast:
                mean = trainer.step.mean_loss(state, part)
            scaled = state.scaler.scale(mean)
            state.optimizer.zero_grad()
            return scaled

        if len(state.optimizers) > 1:  # the custom step steps the optimizers
            trainer.step(state, 0, batch)  # creates their state
            counts = count_step(state.network, lambda: trainer.step(state, 0, batch), memory)
        else:
            for weight in trained if passes == 1 else ():  # the gradients of the step before
                weight.grad = torch.zeros_like(weight)
            memory.hold(size=(passes > 1) * sum(weight.nbytes for weight in trained))
            counts = count_step(state.network, loss, memory)
            state.scaler.step(state.optimizer)  # creates the optimizer's state
            state.scaler.update()
            memory.hold_state(state.optimizer)
            with of_optimizer:
                state.scaler.step(state.optimizer)
        memory.optimizer_stepped(state.optimizer, defaults)
        optimizer_bytes = of_optimizer.optimizer_bytes
        if fuses:
            optimizer_bytes = 2 * (2 * bytes_of(trained) + bytes_of(state.optimizer.state.values()))
        kernels = kernels_of_optimizer(defaults, of_optimizer.kernels)
        of_all = {
            "images": size,
            "passes": passes,
            "flops": counts["flops"] * size // samples_in(part[1]),
            "kernels": passes * counts["kernels"] + kernels,
            "convolutions": passes * counts["convolutions"],
            "time_steps": passes * counts["time_steps"],
            "optimizer_bytes": optimizer_bytes,
        }
        return Operations.model_validate(counts | memory.fields() | of_all)


def fp32_flops_a_second() -> float:
    matrix = torch.rand(_PRODUCT_SIDE, _PRODUCT_SIDE)
    quickest_seconds = math.inf
    for _ in range(1 + _PRODUCTS):  # the first may start threads
        started_seconds = time.perf_counter()
        matrix @ matrix
        quickest_seconds = min(quickest_seconds, time.perf_counter() - started_seconds)
    return 2 * _PRODUCT_SIDE**3 / quickest_seconds
