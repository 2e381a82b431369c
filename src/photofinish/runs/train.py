"""One training, from its plan to its results. Every rank runs this program; rank 0 writes.

stages/train.py calls `train_rank`. Read `train` and `_train_own_seed` here, `Trainer._epoch` in
training/trainer.py for the loop, `Step` in training/step.py for a step, and `Loss` in
training/losses.py. Checkpoints and limits are in runs/training.py.
"""

from __future__ import annotations

from itertools import chain

from photofinish.files import sha256_of_bytes, state_folder, write_bytes_atomically
from photofinish.results import median_training_seconds, passed_seconds, records
from photofinish.results.learned import weights_of
from photofinish.results.trained import Overhead, StepsTaken
from photofinish.runs.distributed import failures_left_to_the_stage, team_for
from photofinish.runs.run import Run
from photofinish.runs.setup import (
    JobClock,
    Setup,
    process_fields,
    torch_configured,
    training_record,
)
from photofinish.runs.training import (
    CheckpointStore,
    FirstTraining,
    Training,
    prune_checkpoints,
    train_further_seeds,
    train_repeats,
)
from photofinish.stage.process import Rank
from photofinish.tracking.client import NoTracker, Tracker
from photofinish.training.torch_device import NoAcceleratorError, peak_host_memory_bytes
from photofinish.training.world import World


def train_rank(
    run: Run, rank: Rank | None, tracker: Tracker | NoTracker, waited_seconds: float = 0.0
) -> str | None:
    """Train `run` as one of its ranks. Return None, or the reason for a missing device."""
    with failures_left_to_the_stage():
        try:
            with team_for(run, rank) as team:
                train(run, team, tracker, waited_seconds)
        except NoAcceleratorError as error:
            return str(error)
    return None


def train(run: Run, team: World, tracker: Tracker | NoTracker, waited_seconds: float) -> None:
    if team.is_main:
        prune_checkpoints(state_folder() / "checkpoints")
    with torch_configured(run, team):
        timings = _train_own_seed(run, team, tracker, waited_seconds)
        spent_seconds = timings.total_seconds + sum(map(passed_seconds, timings.repeats))
        last_epoch = len(timings.epochs) if timings.epochs_left else None
        seeds = train_further_seeds(run, team, spent_seconds, last_epoch)
    if team.is_main:
        timings = timings.model_copy(update={"seeds": seeds})
        if timings != run.finished_times():
            run.keep_times(timings)
        # Written last: a result with this file is complete.
        records.write_record(run.out / records.TIMINGS_FOLDER / records.TIMINGS, timings)
        checkpoints = CheckpointStore(run.checkpoint_folder()).paths()
        tracker.training_ended(run.name, run.device, run.out.parent.parent, checkpoints)


def _train_own_seed(
    run: Run, team: World, tracker: Tracker | NoTracker, waited_seconds: float
) -> records.TrainingTimes:
    """Train from the experiment's own seed, then train its repeats. Write `model/`."""
    clock = JobClock(tracker, waited_seconds)
    setup = Setup(run, team)
    training = FirstTraining(setup, clock)
    trainer, monitor = training.trainer, setup.load_monitor()
    with training.display.bar:
        training.restore()
        with clock.excluded():
            warm_up = trainer.prepare()
        clock.include(warm_up.first_seconds)
        clock.startup_ended()
        tracker.wait_until_ready()
        epochs_before = trainer.progress.epochs_done
        monitor.begin()
        started_seconds = training.spent_seconds()
        for metrics, timing in training.epochs():
            tracker.epoch_ended(metrics, timing)
            monitor.epoch_ended()
        loop_seconds = training.spent_seconds() - started_seconds
        monitor.training_ended()
        epochs = tuple(trainer.progress.timings)
        overhead = Overhead(
            seconds=max(0.0, loop_seconds - passed_seconds(epochs[epochs_before:])),
            checkpoint_seconds=training.checkpoint_seconds,
        )
        host_bytes = team.all_gather_object(peak_host_memory_bytes())
        peak_memory_bytes = team.peak_memory_bytes()
    with clock.excluded():
        repeats = train_repeats(training, monitor)
    if team.is_main:
        _write_model(training)
    steps, image_count = trainer.steps, setup.training.image_count
    timings = records.TrainingTimes(
        **process_fields(setup, clock),
        data_seconds=setup.data_seconds,
        warm_up_seconds=warm_up.seconds,
        steps_taken=StepsTaken(kind=steps.kind, at_once=steps.at_once, why=steps.why),
        epochs=epochs,
        epochs_left=trainer.epochs_left_out(),
        total_seconds=clock.elapsed_seconds(),
        tracking_seconds=clock.tracker.waited_seconds,
        resumed_at_epochs=training.resumed_at_epochs,
        training_image_count=image_count,
        steps_per_epoch=trainer.steps_per_epoch,
        images_per_second=image_count / median_training_seconds(chain(epochs, *repeats)),
        repeats=repeats,
        overhead=overhead,
        load=tuple(monitor.windows),
        identity=run.identity(),
        peak_memory_bytes=peak_memory_bytes,
        peak_host_memory_bytes=max(filter(None, host_bytes), default=None),
    )
    kept = run.finished_times() if team.is_main else None
    if kept and (kept.epochs, kept.repeats) == (timings.epochs, timings.repeats):
        timings = kept  # this process only writes the result again
    training.display.ended(timings, run.costs.so_far(timings.total_seconds))
    return timings


def _write_model(training: Training) -> None:
    """Write the model. Every file here must have equal bytes for two trainings on one machine."""
    setup, trainer = training.setup, training.trainer
    folder = setup.run.out / records.MODEL
    weights = weights_of(trainer.result)
    write_bytes_atomically(folder / records.WEIGHTS, weights)
    if setup.run.experiment.save_weights == "every_epoch":
        for epoch in range(1, trainer.progress.epochs_done + 1):  # a killed process may leave more
            path = training.epoch_weights(epoch)
            write_bytes_atomically(folder / records.EPOCHS / path.name, path.read_bytes())
    records.write_history(folder, trainer.progress.metrics)
    record = training_record(setup, trainer, training.initial_weights_sha256).model_copy(
        update={"weights_sha256": sha256_of_bytes(weights)}
    )
    records.write_record(folder / records.RECORD, record)
