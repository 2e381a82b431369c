"""Worlds: devices that train together, as one device, by DataParallel, or by DDP.

A single device is a world of size one: the model is not wrapped and collectives are no-ops.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from photofinish.training.torch_device import Clock, forget_peak_memory, peak_memory_bytes

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""Timeout for ranks that hang or write a checkpoint. A dead process is noticed at once."""


class World:
    rank = 0
    size = 1
    """Number of processes, not devices."""

    def __init__(self, device: torch.device) -> None:
        self.devices: tuple[torch.device, ...] = (device,)
        self.output_device = device

    @property
    def is_main(self) -> bool:
        """True on rank 0, the only rank that writes results and checkpoints."""
        return self.rank == 0

    @property
    def device_count(self) -> int:
        return len(self.devices) * self.size

    def adapt(self, network: nn.Module) -> nn.Module:
        """Change the network's modules if the world requires it, before the optimizer is built."""
        return network

    def parallel(self, network: nn.Module) -> nn.Module:
        """Wrap the network for a training step. `network` keeps its weights and their names."""
        return network

    def no_sync(self, network: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return a context in which each rank adds up gradients without averaging over ranks."""
        return nullcontext()

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value]

    def all_reduce(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        return value

    def clock(self) -> Clock:
        return Clock(self.devices[0])

    def forget_peak_memory(self) -> None:
        """Reset peak memory, so that it does not count the warm-up."""
        for device in self.devices:
            forget_peak_memory(device)

    def peak_memory_bytes(self) -> int | None:
        everyones = self.all_gather_object([peak_memory_bytes(device) for device in self.devices])
        peaks = [peak for peaks in everyones for peak in peaks if peak is not None]
        return max(peaks, default=None)


class DataParallelWorld(World):
    """One process that copies the network to all devices in each step (DataParallel)."""

    def __init__(self, devices: tuple[torch.device, ...], output_device: torch.device) -> None:
        super().__init__(devices[0])
        self.devices, self.output_device = devices, output_device

    def parallel(self, network: nn.Module) -> nn.Module:
        return nn.DataParallel(network, list(self.devices), self.output_device)


class DistributedWorld(World):
    """One process for each device. gloo sends objects, the device's backend gradients."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        super().__init__(device)
        self.rank, self.size = rank, size
        backend = dist.get_default_backend_for_device(device)
        self._gradients: Any = dist.new_group(backend=backend, timeout=COLLECTIVE_TIMEOUT)

    def adapt(self, network: nn.Module) -> nn.Module:
        """Convert BatchNorm to SyncBatchNorm, so that ranks normalise over the whole batch."""
        convert = nn.SyncBatchNorm.convert_sync_batchnorm
        converted: nn.Module = convert(network, self._gradients)  # type: ignore[no-untyped-call]
        return converted

    def parallel(self, network: nn.Module) -> nn.Module:
        return DistributedDataParallel(network, process_group=self._gradients)

    def no_sync(self, network: nn.Module) -> AbstractContextManager[None]:
        assert isinstance(network, DistributedDataParallel)
        return network.no_sync()

    def all_gather_object(self, value: Any) -> list[Any]:
        everyones: list[Any] = [None] * self.size
        dist.all_gather_object(everyones, value)
        return everyones

    def all_reduce(self, value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        dist.all_reduce(value, group=self._gradients)
        return value

    def broadcast_object(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def clock(self) -> Clock:
        return Clock(self.devices[0], dist.barrier)
