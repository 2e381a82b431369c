"""A bare loop: tensors in memory, no losses kept, no logging."""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.data import Part
from benchmarks.timing import NowSeconds
from benchmarks.workloads import Workload

WARM_UP_STEPS = 3
VALIDATION_BATCH = 1000
"""Quickest of the sizes tried for LeNet."""


def run(workload: Workload, now_seconds: NowSeconds) -> tuple[list[float], nn.Module]:
    network = workload.network()
    # Channels last, so that whole images are gathered.
    convolves = any(isinstance(module, nn.Conv2d) for module in network.modules())
    if convolves:
        network = network.to(memory_format=torch.channels_last)
    images, labels = _tensors(workload, workload.data.train, colours_innermost=convolves)
    validation_images, validation_labels = _tensors(
        workload, workload.data.validation, colours_innermost=convolves
    )

    def seen(batch: torch.Tensor) -> torch.Tensor:
        return batch.permute(0, 3, 1, 2) if convolves else batch

    def train(
        network: nn.Module, batches: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer
    ) -> None:
        network.train()
        for rows in batches:
            loss = cross_entropy(
                network(seen(images.index_select(0, rows))), labels.index_select(0, rows)
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    @torch.inference_mode()
    def validate(network: nn.Module) -> int:
        network.eval()
        parts = (
            torch.split(part, VALIDATION_BATCH) for part in (validation_images, validation_labels)
        )
        return sum(
            int((network(seen(batch)).argmax(1) == right).sum())
            for batch, right in zip(*parts, strict=True)
        )

    def optimizer_of(network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            network.parameters(),
            lr=workload.learning_rate,
            momentum=workload.momentum,
            foreach=False,
        )

    orders = [
        torch.split(workload.order(epoch), workload.batch_size) for epoch in range(workload.epochs)
    ]
    warmed = copy.deepcopy(network)
    train(warmed, orders[0][:WARM_UP_STEPS], optimizer_of(warmed))
    optimizer, ends = optimizer_of(network), [now_seconds()]
    for order in orders:
        train(network, order, optimizer)
        validate(network)
        ends.append(now_seconds())
    return [end - start for start, end in pairwise(ends)], network


def _tensors(
    workload: Workload, part: Part, *, colours_innermost: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    mean, std = (
        torch.tensor(values).view(-1, 1, 1) for values in (workload.data.mean, workload.data.std)
    )
    images = (torch.from_numpy(part.images.copy()).float() / 255 - mean) / std
    return images.permute(
        0, 2, 3, 1
    ).contiguous() if colours_innermost else images, torch.from_numpy(part.labels)
