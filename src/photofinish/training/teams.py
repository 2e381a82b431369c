"""The process's accelerator, and how devices share a step: one device, DataParallel, or a process each (DDP).

A single device is a team of size one: the network is not wrapped and collectives are no-ops.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from photofinish.errors import ConfigError, UserError
from photofinish.models.registry import BATCH_NORMS
from photofinish.training.batches import Batch, Batches
from photofinish.training.failures import cuda_failure
from photofinish.training.torch_device import Clock, forget_peak_memory, peak_memory_bytes

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""for ranks that hang, or write a checkpoint; a lost process is noticed at once"""

_TRY_AGAIN = (
    "The driver lists a GPU all the same, so it may be busy, asleep, or not let into a container: see nvidia-smi, then "
    "run `dvc repro` again. `CUDA_VISIBLE_DEVICES= dvc repro` leaves the GPU out"
)


class NoAcceleratorError(UserError):
    """There is no such accelerator with these drivers and this torch, which is a result."""


class UnusableAcceleratorError(UserError):
    """The driver lists the accelerator, but torch can't use it now, which is a failure that may pass."""


def accelerator(kind: str, index: int = 0, *, make_current: bool = True) -> torch.device:
    """Return this machine's accelerator with this number, if it is of the given kind (`auto`: any).

    It is called only where a driver lists one. Raises NoAcceleratorError if torch isn't built for it, or
    UnusableAcceleratorError if torch can't use it now.
    """
    # Number GPUs as the driver, nvidia-smi and `plan` do. CUDA's default order begins with the fastest.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if not torch.accelerator.is_available():
        raise _not_available()
    device = torch.accelerator.current_accelerator()
    if device is None or kind not in ("auto", device.type):
        raise NoAcceleratorError(f"the accelerator here is '{device}', and devices.gpu.kind is '{kind}'")
    count = torch.accelerator.device_count()
    if index >= count:
        raise UnusableAcceleratorError(
            f"{device.type} device {index} is asked for (the first is 0), torch sees {count}. {_TRY_AGAIN}"
        )
    if make_current:
        try:
            torch.accelerator.set_device_index(index)
        except RuntimeError as error:
            message = cuda_failure(str(error), torch.device(device.type, index))
            raise UnusableAcceleratorError(message or f"{device.type}:{index}: {error}. {_TRY_AGAIN}") from error
    return torch.device(device.type, index)


def _not_available() -> UserError:
    """Return the error for a missing accelerator, with torch's own reason."""
    said = f"torch {torch.__version__} finds no accelerator it can use"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except AssertionError as error:  # torch was built without CUDA
        return NoAcceleratorError(f"{said}: {error}")
    except RuntimeError as error:
        text = str(error).strip().partition("\n")[0]
        if "driver" in text and "too old" in text:
            return NoAcceleratorError(
                f"{said}: {text} torch is built for CUDA {torch.version.cuda}. "
                f"Update the NVIDIA driver, or install a torch built for an older CUDA"
            )
        return UnusableAcceleratorError(f"{said}: {text.rstrip('.')}. {_TRY_AGAIN}")
    return UnusableAcceleratorError(f"{said}. {_TRY_AGAIN}")


class World:
    """One process with one device."""

    rank = 0
    size = 1
    """processes, not devices"""

    def __init__(self, device: torch.device) -> None:
        self.devices: tuple[torch.device, ...] = (device,)
        """the devices of this process"""

    @property
    def device_count(self) -> int:
        """Number of devices of all ranks."""
        return len(self.devices) * self.size

    def placed(self, batches: Batches) -> Batches:
        """Return the batches with their labels on the device of the outputs."""
        return batches

    def adapt(self, network: nn.Module) -> nn.Module:
        """Change the network itself if it must, before the optimizer is made."""
        return network

    def normalised_images(self, batch_images: int) -> int:
        """Return the smallest number of images of such a batch that BatchNorm normalises over."""
        return batch_images

    def parallel(self, network: nn.Module) -> nn.Module:
        """Wrap the network as a step calls it. Weights and their names stay those of `network`."""
        return network

    def gather(self, values: list[Any]) -> list[list[Any]]:
        """Return the values of every rank, in order."""
        return [values]

    def all_reduce(self, value: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all ranks, on its device."""
        return value

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        return value

    def clock(self) -> Clock:
        """Return a clock that waits for this process's devices and for every other rank."""
        return Clock(self.devices[0])

    def forget_peak_memory(self) -> None:
        """Count peak memory from here on: the warm-up trains a second copy, which must not count."""
        for device in self.devices:
            forget_peak_memory(device)

    def peak_memory_bytes(self) -> int | None:
        """Return the peak of the device that took most, or of the process on the CPU."""
        everyones = chain.from_iterable(self.gather([peak_memory_bytes(device) for device in self.devices]))
        return max((peak for peak in everyones if peak is not None), default=None)


class DataParallelWorld(World):
    """One process that copies the network to every device in each step, with nn.DataParallel."""

    def __init__(self, devices: tuple[torch.device, ...], output_device: torch.device) -> None:
        super().__init__(devices[0])
        self.devices = devices
        self._output_device = output_device

    def placed(self, batches: Batches) -> Batches:
        """Return the batches with their labels on the device that gathers the outputs."""
        return batches if self._output_device == self.devices[0] else _LabelsOn(self._output_device, batches)

    def normalised_images(self, batch_images: int) -> int:
        """Return the last GPU's share, as each normalises over its own and the last one gets the rest."""
        each = -(-batch_images // len(self.devices))
        return batch_images % each or each

    def parallel(self, network: nn.Module) -> nn.Module:
        if not torch.cuda.is_available():  # nn.DataParallel would silently run the network as it is
            raise UserError("strategy data_parallel needs CUDA, which torch can't use here")
        return nn.DataParallel(network, device_ids=list(self.devices), output_device=self._output_device)


class _LabelsOn(Batches):
    """Batches whose labels lie on the device that gathers the outputs, not on that of the images."""

    def __init__(self, device: torch.device, batches: Batches) -> None:
        self._device, self._batches = device, batches
        self.image_count, self.batch_size = batches.image_count, batches.batch_size

    def prepare(self, epoch: int) -> None:
        self._batches.prepare(epoch)

    def train_batches(self, epoch: int) -> Iterator[Batch]:
        return map(self._moved, self._batches.train_batches(epoch))

    def eval_batches(self) -> Iterator[Batch]:
        return map(self._moved, self._batches.eval_batches())

    def unplaced(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches before anything is copied."""
        return self._batches.unplaced(epoch)

    def placed(self, batch: Batch) -> Batch:
        """Copy a batch to the device of the images, then its labels to theirs."""
        return self._moved(self._batches.placed(batch))

    def _moved(self, batch: Batch) -> Batch:
        images, labels = batch
        return images, labels.to(self._device, non_blocking=True)


class DistributedWorld(World):
    """DDP: a process for each device. Objects go over gloo, gradients over the device's own backend."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        super().__init__(device)
        self.rank, self.size = rank, size
        backend = dist.get_default_backend_for_device(device)
        self._gradients: Any = dist.new_group(backend=backend, timeout=COLLECTIVE_TIMEOUT)

    def adapt(self, network: nn.Module) -> nn.Module:
        """Convert BatchNorm to SyncBatchNorm, so that ranks normalise over the whole batch as one process does."""
        if not any(isinstance(module, BATCH_NORMS) for module in network.modules()):
            return network
        if self.devices[0].type == "cpu":
            raise ConfigError(
                "model normalises over the batch (BatchNorm), which PyTorch can't do across several processes on "
                "the CPU: set devices.cpu.processes to 1 in params.yaml, or choose a model without BatchNorm"
            )
        convert = nn.SyncBatchNorm.convert_sync_batchnorm
        converted: nn.Module = convert(network, self._gradients)  # type: ignore[no-untyped-call]
        return converted

    def parallel(self, network: nn.Module) -> nn.Module:
        return DistributedDataParallel(network, process_group=self._gradients)

    def gather(self, values: list[Any]) -> list[list[Any]]:
        everyones: list[Any] = [None] * self.size
        dist.all_gather_object(everyones, values)
        return everyones

    def all_reduce(self, value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        dist.all_reduce(value, group=self._gradients)
        return value

    def broadcast_object(self, value: Any) -> Any:
        """Broadcast rank 0's value, pickled. The values of others are ignored."""
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def clock(self) -> Clock:
        """Return a clock that waits for the last rank."""
        return Clock(self.devices[0], dist.barrier)
