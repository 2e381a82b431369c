"""Write what a training stage leaves behind: `learned/` and `timed/`."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch
from torch import nn

from photofinish.data.packed import PackedSplit
from photofinish.files import sha256_of_bytes, write_bytes_atomically, write_text_atomically
from photofinish.machine.energy import Energy
from photofinish.machine.load import LoadWindow
from photofinish.machine.software import git_commit, package_versions
from photofinish.models.registry import count_parameters
from photofinish.results import records
from photofinish.results.epochs import EpochMetrics, EpochTiming, median_training_seconds
from photofinish.results.learned import weights_of
from photofinish.runs.task import TrainingTask
from photofinish.training.checkpoint import EpochWeights
from photofinish.training.torch_device import device_name, effective_precision, memory_format


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
    device_count: int
    peak_memory_bytes: int | None
    repeats: tuple[tuple[EpochTiming, ...], ...]
    steady_state: records.SteadyState
    overhead: records.Overhead
    load: tuple[LoadWindow, ...]
    energy: tuple[Energy, ...] = ()
    attribution: records.Attribution | None = None
    not_attributed: str | None = None


def write_learned(
    task: TrainingTask,
    split: PackedSplit,
    device: torch.device,
    network: nn.Module,
    history: list[EpochMetrics],
    initial_weights_sha256: str,
    epoch_weights: EpochWeights,
) -> None:
    folder, manifest = task.out / records.LEARNED, split.manifest
    weights, published = weights_of(network), task.fetched_weights()
    write_bytes_atomically(folder / records.WEIGHTS, weights)
    epoch_weights.copy_to(folder / records.EPOCHS)
    write_text_atomically(folder / records.HISTORY, records.history_csv(history))
    layout = memory_format(network, device, task.experiment.precision)
    record = records.Training(
        device=task.device,
        device_kind=device.type,
        experiment=task.experiment,
        precision=effective_precision(device, task.experiment.precision),
        memory_format="channels_last" if layout is torch.channels_last else "contiguous",
        parameter_count=count_parameters(network),
        image_shape=manifest.shape,
        class_names=manifest.class_names,
        mean=manifest.mean,
        std=manifest.std,
        data_sha256=task.data_sha256(),
        published_weights_sha256=published.sha256 if published else None,
        initial_weights_sha256=initial_weights_sha256,
        weights_sha256=sha256_of_bytes(weights),
        epoch_weights_sha256=tuple(epoch_weights.sha256),
    )
    records.write_record(folder / records.RECORD, record)


def write_timed(
    task: TrainingTask, device: torch.device, epochs: list[EpochTiming], training_image_count: int, measured: Measured
) -> None:
    timed = [*epochs, *(timing for repeat in measured.repeats for timing in repeat)]
    record = records.Timings(
        **vars(measured),
        host=task.host,
        host_name=platform.node(),
        device_name=task.host.cpu.model if device.type == "cpu" and task.host.cpu else device_name(device),
        git_commit=git_commit(),
        packages=package_versions(),
        epochs=tuple(epochs),
        training_image_count=training_image_count,
        images_per_second=training_image_count / median_training_seconds(timed),
    )
    records.write_record(task.out / records.TIMED / records.TIMINGS, record)
