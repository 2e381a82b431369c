"""What a training and a measurement have alike: split, batches, networks, clock and records."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from photofinish.config.experiment import Experiment
from photofinish.custom.reference import is_reference
from photofinish.data import PartName
from photofinish.data.packed import PackedSplit
from photofinish.errors import ConfigError
from photofinish.machine.load import LoadMonitor, nvidia_gpu_state
from photofinish.models.custom import check_same_network
from photofinish.models.registry import build_model
from photofinish.results import records
from photofinish.results.trained import made_here
from photofinish.runs.run import Run
from photofinish.stage.process import seconds_since_stage_start
from photofinish.tracking.client import NoTracker, Tracker
from photofinish.training.batches import Batches, part_of
from photofinish.training.custom_check import fails_in_channels_last, validate_custom_model
from photofinish.training.failures import failures_explained, nondeterminism_explained
from photofinish.training.input_paths import make_batches
from photofinish.training.loading import LoadedSamples, SampleKind
from photofinish.training.losses import CustomStep, Loss, step_with_a_loss
from photofinish.training.optimizer import build_optimizers
from photofinish.training.torch_device import (
    configure_torch_for,
    device_name,
    effective_precision,
    nvidia_uuid,
)
from photofinish.training.trainer import Trainer
from photofinish.training.world import World


@contextmanager
def torch_configured(run: Run, team: World) -> Iterator[None]:
    """Configure torch for the run. In this block, errors have the experiment's name."""
    experiment = run.experiment
    runs_custom_code = bool(experiment.custom_code)
    with (
        failures_explained(run.name, experiment, team, runs_custom_code=runs_custom_code),
        nondeterminism_explained(experiment),
    ):
        configure_torch_for(experiment, team.devices[0], run.host.threads or 1)
        yield


class Setup:
    """Data of a run in one process, and a factory of networks and trainers."""

    def __init__(self, run: Run, team: World) -> None:
        self.run, self.team, self.device = run, team, team.devices[0]
        clock = team.clock()
        started_seconds = clock.now_seconds()
        self.split = PackedSplit(run.data)
        self.training = self.batches("train", run.experiment)
        has_validation = "validation" in self.split.manifest.counts
        self.validation = self.batches("validation", run.experiment) if has_validation else None
        manifest, settings = self.split.manifest, run.experiment.input
        self.sample = SampleKind(manifest.shape, manifest.dtype, is_normalised=True)
        """Sample as the network gets it, after eval_transform and collate."""
        if settings.name == "loader" and (settings.eval_transform or settings.collate):
            part = part_of(self.split, "test")
            self.sample = LoadedSamples(part, settings, run.experiment.seed).kind()
        self.data_seconds = clock.now_seconds() - started_seconds
        self._needs_contiguous: bool | None = None

    def new_network(
        self, excluded: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> nn.Module:
        """Build the network with its initial weights, on the CPU.

        The first call tries a custom network in channels_last, within `excluded`.
        """
        run, sample = self.run, self.sample
        model, precision = run.experiment.model, run.experiment.precision
        classes = len(self.split.manifest.class_names)
        weights = None
        if (published := run.published_weights()) and run.weights:
            weights = run.weights / published.file
        with self._experiment_named():
            network = build_model(
                model, sample.shape, classes, run.experiment.seed, weights, sample.dtype
            )
        if self._needs_contiguous is None:
            with excluded():
                self._needs_contiguous = is_reference(model.name) and fails_in_channels_last(
                    network, self.device, precision, sample.shape, sample.dtype
                )
        if self._needs_contiguous:
            network.needs_contiguous = True  # type: ignore[assignment]
        return network

    def check_custom_code(self, network: nn.Module) -> None:
        """Raise UserError if a custom network or loss fails, or differs between two builds."""
        if not self.run.experiment.custom_code:
            return
        experiment, manifest = self.run.experiment, self.split.manifest
        check_same_network(experiment.model.name, network, self.new_network)
        with self._experiment_named():
            criterion = Loss.of(experiment, manifest.task, self.device)
        batch = self.training.first()
        outputs = len(manifest.class_names)
        check = partial(validate_custom_model, experiment, network, criterion, batch, outputs)
        check(step_with_a_loss(experiment))
        if experiment.step and experiment.validation_step:
            optimizers = build_optimizers(experiment.optimizer, copy.deepcopy(network))
            if len(optimizers) == 1:  # a step of several needs them
                check(CustomStep(experiment.step))

    def new_trainer(self, network: nn.Module | None = None) -> Trainer:
        network = self.new_network() if network is None else network
        with self._experiment_named():
            return Trainer(
                self.run.experiment,
                network,
                self.training,
                self.validation,
                self.device,
                self.team,
                self.split.manifest.task,
                len(self.split.manifest.class_names),
                self.run.experiment.monitored,
            )

    def batches(self, name: PartName, experiment: Experiment) -> Batches:
        return make_batches(
            experiment, part_of(self.split, name), self.device, self.team.rank, self.team.size
        )

    def load_monitor(self) -> LoadMonitor:
        loader = self.run.experiment.input
        has_workers = loader.name == "loader" and loader.workers > 0
        gpu_state = nvidia_gpu_state(nvidia_uuid(self.device))
        shares_cores = self.run.host.processes > 1 or has_workers
        return LoadMonitor(gpu_state, own_processes_share_cores=shares_cores)

    @contextmanager
    def _experiment_named(self) -> Iterator[None]:
        """Add the experiment's name to a ConfigError, which only has the key."""
        try:
            yield
        except ConfigError as error:
            run = self.run
            raise ConfigError(
                f"experiments.{run.name}.{error}. "
                f"Its samples come from datasets.{run.experiment.dataset}"
            ) from error


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
    run = setup.run
    manifest = setup.split.manifest
    published = setup.run.published_weights()
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
