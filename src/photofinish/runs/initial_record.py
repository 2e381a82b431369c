"""What a training and a measurement record alike, and the clock of a job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from photofinish.results import records
from photofinish.results.trained import made_here
from photofinish.runs.setup import Setup
from photofinish.stage.process import seconds_since_stage_start
from photofinish.tracking.client import NoTracker, Tracker
from photofinish.training.torch_device import device_name, effective_precision
from photofinish.training.trainer import Trainer


class JobClock:
    """Time of the job, summed over its processes if it was resumed, and of its start-up."""

    def __init__(self, tracker: Tracker | NoTracker, excluded_seconds: float) -> None:
        self.tracker = tracker
        self.started_at_unix_seconds = time.time() - seconds_since_stage_start()
        self.excluded_seconds = excluded_seconds
        """Wall time of this process that does not count, such as waits for locks and profiling."""
        self.excluded_cpu_seconds = 0.0
        """CPU time of the main thread that does not count."""
        self.earlier_seconds = 0.0
        """Job time of earlier processes, before the run was resumed."""

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Leave the block's time out of the job."""
        started_seconds, started_cpu_seconds = time.monotonic(), time.thread_time()
        yield
        self.excluded_seconds += time.monotonic() - started_seconds
        self.excluded_cpu_seconds += time.thread_time() - started_cpu_seconds

    def include(self, seconds: float) -> None:
        """Count a part of an excluded block."""
        self.excluded_seconds -= seconds

    def startup_ended(self) -> None:
        self.startup_seconds = seconds_since_stage_start() - self.excluded_seconds
        self.startup_cpu_seconds = time.thread_time() - self.excluded_cpu_seconds

    def elapsed_seconds(self) -> float:
        excluded_seconds = self.excluded_seconds + self.tracker.waited_seconds
        return self.earlier_seconds + seconds_since_stage_start() - excluded_seconds


def training_record(
    setup: Setup, trainer: Trainer, initial_weights_sha256: str
) -> records.TrainingRecord:
    """Return the record of a training that still has its initial weights."""
    run, manifest, published = setup.run, setup.split.manifest, setup.run.published_weights()
    is_channels_last = trainer.state.memory_format is torch.channels_last
    return records.TrainingRecord(
        device=run.device,
        device_kind=setup.device.type,
        experiment=run.experiment,
        precision=effective_precision(setup.device, run.experiment.precision),
        memory_format="channels_last" if is_channels_last else "contiguous",
        parameter_count=sum(weight.numel() for weight in trainer.network.parameters()),
        task=manifest.task,
        image_shape=setup.sample.shape,
        dtype=setup.sample.dtype,
        target_shape=manifest.target_shape,
        class_names=manifest.class_names,
        mean=manifest.mean if setup.sample.is_normalised else (),
        std=manifest.std if setup.sample.is_normalised else (),
        data_sha256=run.data_sha256(),
        decode=manifest.decode,
        samples=manifest.counts,
        published_weights_sha256=published.sha256 if published else None,
        initial_weights_sha256=initial_weights_sha256,
        weights_sha256=initial_weights_sha256,
        custom_code=run.experiment.custom_code,
    )


def process_fields(setup: Setup, clock: JobClock) -> dict[str, Any]:
    cpu = setup.run.host.cpu if setup.run.device == "cpu" else None
    return {
        **made_here(setup.run.host),
        "device_name": cpu.model if cpu else device_name(setup.device),
        "device_count": setup.team.device_count,
        "started_at_unix_seconds": clock.started_at_unix_seconds,
        "startup_seconds": clock.startup_seconds,
        "startup_cpu_seconds": clock.startup_cpu_seconds,
    }
