"""One training, from its plan to its results. Every rank runs this program; rank 0 writes.

Read `train` here and `Trainer` in training/trainer.py to understand a training.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict

import torch

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes, state_folder
from photofinish.machine.load import LoadMonitor, load_warnings, nvidia_gpu_state
from photofinish.processes import Rank, seconds_since_stage_start
from photofinish.profiling.scratch import forget_optimizer, warm_up
from photofinish.results import passed_seconds, records
from photofinish.results.learned import weights_of
from photofinish.runs.distributed import failures_left_to_the_stage, team_for
from photofinish.runs.meters import EnergyOfAllRanks, OverheadMeter
from photofinish.runs.profile import profile, record_first_step
from photofinish.runs.repeats import train_further_seeds, train_repeats, write_further_seeds
from photofinish.runs.resume import Job, RunCheckpoints
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup, configured
from photofinish.runs.views import TrainingDisplay
from photofinish.runs.write import timings_record, write_model, write_training_views
from photofinish.tracking.client import Tracker
from photofinish.training.checkpoint import CheckpointStore, on_cpu, prune_checkpoints
from photofinish.training.failures import is_out_of_memory, out_of_memory
from photofinish.training.torch_device import NoAcceleratorError, nvidia_uuid
from photofinish.training.trainer import Trainer, progress_in
from photofinish.training.world import World
from photofinish.wording import seconds


def train_rank(run: Run, rank: Rank | None, tracker: Tracker | None = None, waited_seconds: float = 0.0) -> str | None:
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


def train(run: Run, device: torch.device, team: World, tracker: Tracker | None, waited_seconds: float) -> None:
    """Train, measure and write the results, from the last checkpoint on if there is one."""
    if team.rank == 0:
        prune_checkpoints(state_folder() / "checkpoints")
    with configured(run, device, team):
        timings = _train_own_seed(run, device, team, tracker, waited_seconds)
        seeds = train_further_seeds(run, device, team, run.checkpoint_folder())
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
    is_main = team.rank == 0
    started_at_unix_seconds = time.time() - seconds_since_stage_start()
    job = Job(tracker, waited_seconds)

    setup = Setup(run, device, team)
    network = setup.new_network()
    with job.excluded():
        if is_main:
            setup.check_custom_code(network)
            run.check_metrics()
    initial_weights_sha256 = sha256_of_bytes(weights_of(network))
    trainer = setup.new_trainer(network)
    display = TrainingDisplay(f"{run.name} on {run.device}", trainer)
    checkpoints = RunCheckpoints(run, trainer, job)
    watch = LoadMonitor(nvidia_gpu_state(nvidia_uuid(device)), own_processes_share_cores=_shares_cores(run))
    energy_meter = EnergyOfAllRanks(team)

    with display if is_main else nullcontext():
        checkpoints.restore(team, display)
        epochs_before = trainer.progress.epochs_done
        warm_up_seconds = warm_up(trainer)
        startup_seconds = seconds_since_stage_start() - job.excluded_seconds
        if tracker:
            tracker.wait_until_ready()
        watch.begin()
        energy_meter.begin()

        meter = OverheadMeter()
        for metrics, timing in trainer.epochs():
            if tracker:
                with meter.spent_on("display"):
                    display.epoch_ended(metrics, timing)
                with meter.spent_on("saving"):
                    checkpoints.epoch_ended()
                with meter.spent_on("tracking"):
                    tracker.epoch_ended(asdict(metrics), asdict(timing))
                with meter.spent_on("watching"):
                    watch.epoch_ended(1, metrics.epoch)
        new_timings = trainer.progress.timings[epochs_before:]
        overhead = meter.overhead(passed_seconds(new_timings))

        energy = energy_meter.training_ended()
        watch.training_ended()
        peak_memory_bytes = team.peak_memory_bytes()
        with job.excluded(), _out_of_memory_explained(run, team):
            _train_repeats(setup, trainer, checkpoints, watch, display)
            watch.begin()
            measured = profile(setup, trainer)
            first_step = record_first_step(setup, trainer)
            watch.look(run.experiment.repeats, run.experiment.epochs)
        if not is_main:
            return None
        for doubt in load_warnings(watch.windows):
            display.say(f"take the times with care: {doubt}")

    assert first_step is not None
    epoch_weights = checkpoints.epoch_weights
    write_model(run, setup, trainer, epoch_weights, initial_weights_sha256, first_step)
    total_seconds = job.elapsed_seconds()
    write_training_views(run, setup, trainer)
    return timings_record(
        run,
        setup,
        trainer,
        job,
        energy,
        started_at_unix_seconds=started_at_unix_seconds,
        startup_seconds=startup_seconds,
        warm_up_seconds=warm_up_seconds,
        total_seconds=total_seconds,
        peak_memory_bytes=peak_memory_bytes,
        overhead=overhead,
        load=tuple(watch.windows),
        **measured._asdict(),
    )


def _train_repeats(
    setup: Setup,
    trainer: Trainer,
    checkpoints: RunCheckpoints,
    watch: LoadMonitor,
    display: TrainingDisplay,
) -> None:
    """Train the repeats that are missing, and save a checkpoint after the training and each."""
    is_main, count = setup.team.rank == 0, setup.run.experiment.repeats
    job = checkpoints.job
    elapsed_seconds = job.elapsed_seconds()
    state = trainer.state_dict()
    state["optimizer"] = on_cpu(state["optimizer"])
    if is_main:
        checkpoints.save(state, elapsed_seconds)
    if count == 1:
        return
    forget_optimizer(trainer)
    watch.begin()
    for number in train_repeats(setup, trainer, job.repeats, watch.epoch_ended):
        if is_main:
            checkpoints.save(state, elapsed_seconds)
            took_seconds = passed_seconds(job.repeats[-1])
            display.say(f"repeat {number} of {count}: {seconds(took_seconds)}")
        watch.training_ended()
        watch.begin()


@contextmanager
def _out_of_memory_explained(run: Run, team: World) -> Iterator[None]:
    """Say that the training itself is safe if a measurement after it runs out of memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        message = out_of_memory(run.name, run.experiment, team, str(error))
        raise UserError(
            f"{message}. The training itself is done and kept. Where other programs took the "
            f"memory, end them: the next `dvc repro` measures without training again"
        ) from error


def _shares_cores(run: Run) -> bool:
    """Return True if the run has several processes that compete for the cores."""
    loader = run.experiment.input
    return run.processes > 1 or (loader.name == "loader" and loader.workers > 0)
