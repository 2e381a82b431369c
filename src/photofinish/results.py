"""Write what a training stage leaves behind: `learned/` and `timed/`."""

from __future__ import annotations

import platform
import statistics
from dataclasses import dataclass

import torch
from safetensors.torch import save as to_safetensors
from torch import nn

from photofinish import records
from photofinish.datasets.packed import PackedSplit
from photofinish.devices import device_name, effective_precision, peak_memory_bytes
from photofinish.epochs import EpochMetrics, EpochTiming
from photofinish.files import sha256_of_bytes, write_bytes_atomically, write_text_atomically
from photofinish.models import count_parameters
from photofinish.provenance import git_commit, package_versions
from photofinish.tasks import TrainingTask


@dataclass(frozen=True)
class Measured:
    """What the stage timed around the training itself."""

    started_at_unix_seconds: float
    startup_seconds: float
    data_seconds: float
    warm_up_seconds: float
    total_seconds: float
    tracking_seconds: float
    resumed_at_epochs: tuple[int, ...]


def weights_of(network: nn.Module) -> bytes:
    """The state of the network as safetensors; the same state gives the same bytes."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    return bytes(to_safetensors(state))


def write_learned(
    task: TrainingTask,
    split: PackedSplit,
    device: torch.device,
    network: nn.Module,
    history: list[EpochMetrics],
    initial_weights_sha256: str,
) -> None:
    folder, manifest = task.out / records.LEARNED, split.manifest
    weights = weights_of(network)
    write_bytes_atomically(folder / records.WEIGHTS, weights)
    write_text_atomically(folder / records.HISTORY, records.history_csv(history))
    record = records.Training(
        device=task.device,
        device_kind=device.type,
        experiment=task.experiment,
        precision=effective_precision(device, task.experiment.precision),
        parameter_count=count_parameters(network),
        image_shape=manifest.shape,
        class_names=manifest.class_names,
        mean=manifest.mean,
        std=manifest.std,
        data_sha256=task.data_sha256(),
        initial_weights_sha256=initial_weights_sha256,
        weights_sha256=sha256_of_bytes(weights),
    )
    records.write_record(folder / records.RECORD, record)


def write_timed(
    task: TrainingTask, device: torch.device, epochs: list[EpochTiming], training_image_count: int, measured: Measured
) -> None:
    median_seconds = statistics.median(epoch.training_seconds for epoch in epochs)
    record = records.Timings(
        **vars(measured),
        host=task.host,
        host_name=platform.node(),
        device_name=task.host.cpu.model if device.type == "cpu" and task.host.cpu else device_name(device),
        git_commit=git_commit(),
        packages=package_versions(),
        epochs=tuple(epochs),
        training_image_count=training_image_count,
        images_per_second=training_image_count / median_seconds,
        peak_memory_bytes=peak_memory_bytes(device),
    )
    records.write_record(task.out / records.TIMED / records.TIMINGS, record)
