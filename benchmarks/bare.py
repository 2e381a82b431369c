"""The loop that is left when all else is taken away: tensors in memory, no validation, no losses kept, no logging."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.timing import NowSeconds
from benchmarks.workloads import Workload
from photofinish.training.torch_device import keep_freed_memory

WARM_UP_STEPS = 3


def run(workload: Workload, now_seconds: NowSeconds) -> tuple[list[float], nn.Module]:
    keep_freed_memory()  # a setting that anyone can make, with MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_
    network = workload.network()
    images, labels = torch.from_numpy(workload.data.train.images.copy()), torch.from_numpy(workload.data.train.labels)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (workload.data.mean, workload.data.std))
    images = (images.float() / 255 - mean) / std
    convolves = any(isinstance(module, nn.Conv2d) for module in network.modules())
    if convolves:  # colours innermost, for whole images to be gathered so and seen as (count, channels, height, width)
        network = network.to(memory_format=torch.channels_last)
        images = images.permute(0, 2, 3, 1).contiguous()

    def train(network: nn.Module, batches: tuple[torch.Tensor, ...]) -> float:
        optimizer = torch.optim.SGD(
            network.parameters(), lr=workload.learning_rate, momentum=workload.momentum, foreach=False
        )
        network.train()
        started_seconds = now_seconds()
        for rows in batches:
            batch = images.index_select(0, rows)
            loss = cross_entropy(
                network(batch.permute(0, 3, 1, 2) if convolves else batch), labels.index_select(0, rows)
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return now_seconds() - started_seconds

    orders = [torch.split(workload.order(epoch), workload.batch_size) for epoch in range(workload.epochs)]
    train(copy.deepcopy(network), orders[0][:WARM_UP_STEPS])
    seconds = train(network, tuple(rows for order in orders for rows in order))
    return [seconds / workload.epochs] * workload.epochs, network
