"""One training, from its plan to its results. Every rank runs this program; rank 0 writes.

Read `train` here and `Trainer` in training/trainer.py to understand a training.
"""

from __future__ import annotations

import platform
import time
from contextlib import nullcontext
from itertools import chain
from typing import Any

import torch

from photofinish.files import (
    sha256_of_bytes,
    sha256_of_file,
    state_folder,
    write_bytes_atomically,
)
from photofinish.machine.energy import EnergyMeter, added_up, unavailable
from photofinish.machine.host import git_commit, package_versions
from photofinish.machine.load import LoadMonitor, load_warnings, nvidia_gpu_state
from photofinish.models.registry import count_parameters
from photofinish.processes import Rank, seconds_since_stage_start
from photofinish.profiling.attribution import profile
from photofinish.profiling.first_step import first_batch, first_step
from photofinish.results import median_training_seconds, passed_seconds, records
from photofinish.results.learned import weights_of
from photofinish.results.measurements import Overhead, StepsTaken
from photofinish.runs.distributed import failures_left_to_the_stage, team_for
from photofinish.runs.job import Job
from photofinish.runs.repeats import train_further_seeds, train_repeats, write_further_seeds
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup
from photofinish.runs.views import TrainingDisplay
from photofinish.tracking.client import Tracker
from photofinish.training.checkpoint import CheckpointStore, prune_checkpoints
from photofinish.training.custom_step import step_with_a_loss
from photofinish.training.failures import failures_explained
from photofinish.training.state import progress_in
from photofinish.training.torch_device import (
    NoAcceleratorError,
    configure_torch,
    device_name,
    effective_precision,
    nvidia_uuid,
)
from photofinish.training.trainer import Trainer
from photofinish.training.world import World


def train_rank(
    run: Run, rank: Rank | None, tracker: Tracker | None = None, waited_seconds: float = 0.0
) -> str | None:
    """Train `run` as this rank of it. Return None, or why the device is missing.

    Rank 0 gets a `tracker`. `waited_seconds` passed before this process got its locks.
    """
    with failures_left_to_the_stage():
        try:
            with team_for(run, rank) as (device, team):
                train(run, device, team, tracker, waited_seconds)
        except NoAcceleratorError as error:
            return str(error)
    return None


def train(
    run: Run, device: torch.device, team: World, tracker: Tracker | None, waited_seconds: float
) -> None:
    """Train, measure and write the results, from the last checkpoint on if there is one."""
    experiment, host = run.experiment, run.host
    if team.rank == 0:
        prune_checkpoints(state_folder() / "checkpoints")
    with failures_explained(run.name, experiment, team, runs_custom_code=bool(run.custom_code)):
        configure_torch(
            device,
            experiment.precision,
            host.threads or 1,
            deterministic=experiment.deterministic,
        )
        timings = _train_own_seed(run, device, team, tracker, waited_seconds)
        spent_seconds = 0.0
        if timings:
            spent_seconds = timings.total_seconds + passed_seconds(chain(*timings.repeats))
        folder = run.checkpoint_folder()
        seeds = train_further_seeds(run, device, team, folder, spent_seconds)
    if timings is None or tracker is None:  # not rank 0
        return
    write_further_seeds(run.out / records.MODEL, seeds)
    epochs = tuple(tuple(progress_in(state).timings) for state in seeds.values())
    timings = timings.model_copy(update={"seeds": epochs})
    # The last file to be written: a result that has it is complete.
    records.write_record(run.out / records.TIMINGS_FOLDER / records.TIMINGS, timings)
    checkpoints = CheckpointStore(run.checkpoint_folder()).paths()
    tracker.training_ended(run.name, run.device, run.out.parent.parent, checkpoints)


def _train_own_seed(
    run: Run, device: torch.device, team: World, tracker: Tracker | None, waited_seconds: float
) -> records.Timings | None:
    """Train from the experiment's own seed and write `model/`. Return the timings on rank 0."""
    experiment, is_main = run.experiment, team.rank == 0
    started_at_unix_seconds = time.time() - seconds_since_stage_start()
    job = Job(run, tracker, waited_seconds)

    # Batches, network, trainer.
    setup = Setup(run, device, team)
    network = setup.new_network()
    with job.excluded():
        if is_main:
            setup.check_custom_code(network)
    initial_weights_sha256 = sha256_of_bytes(weights_of(network))
    trainer = setup.new_trainer(network)
    display = TrainingDisplay(run.title, trainer)
    loader = experiment.input
    shares_cores = run.host.processes > 1 or (loader.name == "loader" and loader.workers > 0)
    gpu_state = nvidia_gpu_state(nvidia_uuid(device))
    load = LoadMonitor(gpu_state, own_processes_share_cores=shares_cores)
    is_cpu = device.type == "cpu"
    energy_meters = [] if is_cpu else [EnergyMeter([nvidia_uuid(gpu) for gpu in team.devices])]

    with display if is_main else nullcontext():
        # Checkpoint, warm-up.
        if is_main and (path := setup.loaders_path()):
            display.say(path)
        job.restore(trainer, team, display)
        epochs_before = trainer.progress.epochs_done
        with job.excluded():
            warm_up_seconds = trainer.prepare()
        startup_seconds = seconds_since_stage_start() - job.excluded_seconds
        if tracker:
            tracker.wait_until_ready()
        load.begin()
        for energy_meter in energy_meters:
            energy_meter.begin()

        # The training. The overhead of its loop is recorded.
        started_seconds = time.perf_counter()
        for metrics, timing in trainer.epochs():
            if tracker:
                display.epoch_ended(metrics, timing, run.costs.so_far(job.elapsed_seconds()))
                job.epoch_ended(trainer, metrics.epoch)
                tracker.epoch_ended(metrics, timing)
                load.epoch_ended(1, metrics.epoch)
                job.check_budget(trainer)
        loop_seconds = time.perf_counter() - started_seconds
        passes_seconds = passed_seconds(trainer.progress.timings[epochs_before:])
        energy = team.all_gather_object(
            [energy_meter.training_ended() for energy_meter in energy_meters]
        )
        load.training_ended()
        peak_memory_bytes = team.peak_memory_bytes()

        # Measurements of the trained network. They can't change what it learned.
        with job.excluded():
            train_repeats(setup, trainer, job, load, display)
            load.begin()
            profiled = profile(trainer, setup.resident_batches)
            batch = first_batch(setup.training, team)
            if batch is not None:
                network, labels = setup.new_network(), setup.split.labels("train")
                precision, seed = experiment.precision, experiment.seed
                loss, step = trainer.criterion, step_with_a_loss(experiment)
                given = experiment.input
                first = first_step(
                    network,
                    loss,
                    batch,
                    device,
                    precision,
                    labels,
                    seed,
                    step,
                    is_collated=given.name == "loader" and given.collate is not None,
                )
            load.sample(experiment.repeats, experiment.epochs)
        if batch is None:  # not rank 0
            return None
        for warning in load_warnings(load.windows):
            display.say(f"take the times with care: {warning}")

    # Results.
    _write_model(setup, trainer, job, initial_weights_sha256, first)
    total_seconds = job.elapsed_seconds()
    energies = added_up(chain.from_iterable(energy))
    if job.resumed_at_epochs:
        energies = unavailable(energies, "only the last part of the training was measured")
    return _timings(
        setup,
        trainer,
        job,
        started_at_unix_seconds=started_at_unix_seconds,
        startup_seconds=startup_seconds,
        warm_up_seconds=warm_up_seconds,
        total_seconds=total_seconds,
        peak_memory_bytes=peak_memory_bytes,
        overhead=Overhead(
            passes_seconds=passes_seconds, seconds=max(0.0, loop_seconds - passes_seconds)
        ),
        energy=energies,
        load=tuple(load.windows),
        **profiled._asdict(),
    )


def _write_model(
    setup: Setup,
    trainer: Trainer,
    job: Job,
    initial_weights_sha256: str,
    first_step: records.FirstStep,
) -> None:
    """Write what was learned. Nothing here may differ between two trainings on one machine."""
    run, manifest = setup.run, setup.split.manifest
    folder = run.out / records.MODEL
    weights, published = weights_of(trainer.result), run.published_weights()
    write_bytes_atomically(folder / records.WEIGHTS, weights)
    epoch_weights = sorted(job.epoch_weights_folder.glob("epoch-*.safetensors"))
    for path in epoch_weights:
        write_bytes_atomically(folder / records.EPOCHS / path.name, path.read_bytes())
    records.write_history(folder, trainer.progress.metrics)
    is_channels_last = trainer.state.memory_format is torch.channels_last
    record = records.Training(
        device=run.device,
        device_kind=setup.device.type,
        experiment=run.experiment,
        precision=effective_precision(setup.device, run.experiment.precision),
        memory_format="channels_last" if is_channels_last else "contiguous",
        parameter_count=count_parameters(trainer.network),
        task=manifest.task,
        image_shape=setup.sample.shape,
        dtype=setup.sample.dtype,
        target_shape=manifest.target_shape,
        class_names=manifest.class_names,
        mean=manifest.mean if setup.sample.is_normalised else (),
        std=manifest.std if setup.sample.is_normalised else (),
        data_sha256=run.data_sha256(),
        published_weights_sha256=published.sha256 if published else None,
        initial_weights_sha256=initial_weights_sha256,
        weights_sha256=sha256_of_bytes(weights),
        epoch_weights_sha256=tuple(map(sha256_of_file, epoch_weights)),
        custom_code=run.custom_code,
    )
    records.write_record(folder / records.RECORD, record)
    records.write_record(folder / records.FIRST_STEP, first_step)


def _timings(setup: Setup, trainer: Trainer, job: Job, **measured: Any) -> records.Timings:
    """Return the record of how long the training took. `measured` are further fields of it."""
    run, device, steps = setup.run, setup.device, trainer.steps
    cpu = run.host.cpu if device.type == "cpu" else None
    epochs, image_count = trainer.progress.timings, setup.training.image_count
    median_epoch_seconds = median_training_seconds(chain(epochs, *job.repeats))
    return records.Timings(
        host=run.host,
        host_name=platform.node(),
        device_name=cpu.model if cpu else device_name(device),
        git_commit=git_commit(),
        packages=package_versions(),
        data_seconds=setup.data_seconds,
        epochs=tuple(epochs),
        tracking_seconds=job.tracker.waited_seconds if job.tracker else 0.0,
        resumed_at_epochs=job.resumed_at_epochs,
        training_image_count=image_count,
        images_per_second=image_count / median_epoch_seconds,
        device_count=setup.team.device_count,
        repeats=tuple(job.repeats),
        steps_taken=StepsTaken(kind=steps.kind, at_once=steps.at_once, why=steps.why),
        identity=run.identity(),
        **measured,
    )
