"""A run on its device: trained, or gone on with where it was killed, measured, written and tracked.

One process of it leads: it writes, tracks and talks. The others follow, and do all that needs everyone.
"""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from typing import Any, Literal, get_args

import torch

from photofinish.errors import UserError
from photofinish.files import finished_folder, removed_folder, sha256_of_bytes, state_folder, write_summed
from photofinish.machine.energy import Energy, EnergyMeter, added_up, unavailable
from photofinish.machine.host import git_commit, package_versions
from photofinish.machine.load import MachineWatch, doubts, nvidia_gpu_state
from photofinish.measuring.rehearsal import forget_optimizer, warm_up
from photofinish.models.registry import count_parameters
from photofinish.processes import seconds_since_stage_start
from photofinish.results import EpochMetrics, EpochTiming, median_training_seconds, passed_seconds, records
from photofinish.results.learned import rebuilt, weights_of
from photofinish.results.measurements import Overhead, StepsTaken
from photofinish.runs.run import Run, first_trainings, keep, keep_first_training, note_as_taken, take_first_training
from photofinish.runs.setup import (
    FurtherMeasurements,
    Repeats,
    Setup,
    prepared_for,
    train_further_seeds,
    write_seeded,
)
from photofinish.runs.views import TrainingDisplay, write_views
from photofinish.tracking.client import Tracker
from photofinish.training.checkpoint import CheckpointStore, EpochWeights, State, on_cpu, remove_forgotten
from photofinish.training.failures import is_out_of_memory, out_of_memory
from photofinish.training.teams import Team
from photofinish.training.torch_device import device_name, effective_precision, nvidia_uuid
from photofinish.training.trainer import progress_in
from photofinish.wording import seconds

_Purpose = Literal["loop", "display", "saving", "tracking", "watching"]


def lead_training(run: Run, device: torch.device, team: Team, tracker: Tracker, lock_seconds: float) -> None:
    """Train, or go on where a killed run was, and write the results; they are kept until DVC has them.

    `lock_seconds` is how long another process kept this one waiting: no part of what the job takes.
    """
    state = state_folder()
    remove_forgotten([state / "checkpoints", finished_folder(), first_trainings(), removed_folder()], state / "locks")
    with prepared_for(run, device, team):
        checkpoints = CheckpointStore(state / "checkpoints" / run.key())
        taken = take_first_training(run)
        team.from_leader(taken is not None)
        if taken:
            run.try_metrics()
            timings = taken
        else:
            timings = _Leader(run, device, team, tracker, checkpoints, lock_seconds).lead()
            gc.collect()  # the first training's memory is for those that follow
            keep_first_training(run, timings)
        seeds = train_further_seeds(run, device, team)
        write_seeded(run.out / records.LEARNED, seeds)
        seeds_timings = tuple(tuple(progress_in(state).timings) for state in seeds.values())
        timings = timings.model_copy(update={"seeds": seeds_timings})
        # Last of all files: a result that has it is complete.
        records.write_record(run.out / records.TIMED / records.TIMINGS, timings)
        keep(run.key(), run.out)  # from before MLflow's run is finished, which must be found by this result
        if taken:
            note_as_taken(run)
        tracker.training_ended(run.name, run.device, run.out.parent.parent, checkpoints.paths())
        checkpoints.clear()


def follow_training(run: Run, device: torch.device, team: Team) -> None:
    """What the leader does with the others, in the same order."""
    with prepared_for(run, device, team):
        if team.from_leader(None):
            train_further_seeds(run, device, team)
            return
        setup, repeats = Setup(run, device, team), Repeats()
        trainer = setup.new_trainer()
        if state := team.from_leader(None):
            trainer.load_state_dict(state["trainer"])
            repeats = _repeats_in(state)
        warm_up(trainer)
        energy = TeamEnergy(team)
        energy.begin()
        trainer.train(lambda _metrics, _timing: None)
        energy.training_ended()
        team.peak_memory_bytes()
        for _ in setup.repeats(trainer, repeats):
            pass
        setup.measure_further(trainer)
        setup.first_step(trainer.criterion)
        del setup, trainer
        train_further_seeds(run, device, team)


def _repeats_in(state: State) -> Repeats:
    """Those that were done when the checkpoint was written."""
    return [tuple(EpochTiming(**timing) for timing in timings) for timings in state["repeats"]]


class _Leader:
    def __init__(
        self, run: Run, device: torch.device, team: Team, tracker: Tracker, store: CheckpointStore, lock_seconds: float
    ) -> None:
        self._started_at_unix_seconds = time.time() - seconds_since_stage_start()
        self._run, self._device, self._team, self._tracker = run, device, team, tracker
        self._earlier_seconds = 0.0
        """before it was interrupted"""
        self._beside_job_seconds = lock_seconds
        """of this process's time, what is no part of the job: waiting, trials, measuring"""
        self._resumed_at_epochs: tuple[int, ...] = ()
        self._epochs_saved = 0
        """at the last checkpoint, of all repeats"""
        self._repeats: Repeats = []
        self._store = store
        self._epoch_weights = EpochWeights(self._store.folder / records.EPOCHS)
        self._meter = OverheadMeter()
        loader = run.experiment.input
        shares_cores = run.processes > 1 or (loader.name == "loader" and loader.workers > 0)
        gpu_state = nvidia_gpu_state(nvidia_uuid(device))
        self._watch = MachineWatch(gpu_state, own_processes_share_cores=shares_cores)
        self._energy = TeamEnergy(team)
        self._setup = Setup(run, device, team)
        network = self._setup.new_network()
        began_seconds = time.monotonic()
        if run.own_code:
            self._setup.try_out(network)
        run.try_metrics()
        self._beside_job_seconds += time.monotonic() - began_seconds
        self._initial_weights_sha256 = sha256_of_bytes(weights_of(network))
        self._trainer = self._setup.new_trainer(network)
        self._display = TrainingDisplay(f"{run.name} on {run.device}", self._trainer)

    def lead(self) -> records.Timings:
        """Train, measure, and write what was learned; how long it took."""
        with self._display:
            self._resume()
            epochs_before = self._trainer.progress.epochs_done
            warm_up_seconds = warm_up(self._trainer)
            startup_seconds = seconds_since_stage_start() - self._beside_job_seconds
            self._tracker.wait_until_ready()
            self._watch.begin()
            self._energy.begin()
            with self._meter.spent_on("loop"):
                self._trainer.train(self._epoch_ended)
            energy = self._energy.training_ended()
            self._watch.training_ended()
            peak_memory_bytes = self._team.peak_memory_bytes()
            with self._after_training():
                self._repeat()
                self._watch.begin()
                further = self._setup.measure_further(self._trainer)
                first_step = self._setup.first_step(self._trainer.criterion)
                self._watch.look(self._run.experiment.repeats, self._run.experiment.epochs)
            for doubt in doubts(self._watch.windows):
                self._display.say(f"take the times with care: {doubt}")
        self._write_learned(first_step)
        total_seconds = self._elapsed_seconds()
        self._write_views()  # which is no part of the job's time
        return self._timings(
            further,
            startup_seconds=startup_seconds,
            warm_up_seconds=warm_up_seconds,
            total_seconds=total_seconds,
            energy=energy,
            peak_memory_bytes=peak_memory_bytes,
            overhead=self._meter.overhead(passed_seconds(self._trainer.progress.timings[epochs_before:])),
        )

    def _resume(self) -> None:
        """Go on from the last checkpoint, if there is one and all that belongs to it is there."""
        paths = self._store.paths()
        state = self._store.load_latest(
            lambda path: self._display.say(
                f"checkpoint {path} is damaged: "
                + ("training starts over" if path == paths[-1] else "taking the one before it")
            )
        )
        lost = self._epoch_weights.resume(state["epoch_weights_sha256"]) if state else None
        if lost:
            self._display.say(f"{lost} is missing or damaged: training starts over")
            self._store.clear()
            state = None
        if state := self._team.from_leader(state):
            self._trainer.load_state_dict(state["trainer"])
            self._earlier_seconds = state["elapsed_seconds"]
            self._resumed_at_epochs = (*state["resumed_at_epochs"], self._trainer.progress.epochs_done)
            self._repeats = _repeats_in(state)
            self._epochs_saved = self._trainer.progress.epochs_done * (1 + len(self._repeats))
            self._display.say(f"goes on after epoch {self._trainer.progress.epochs_done}")

    def _epoch_ended(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        with self._meter.spent_on("display"):
            self._display.epoch_ended(metrics, timing)
        with self._meter.spent_on("saving"):
            if self._run.experiment.save_weights == "every_epoch":
                self._epoch_weights.save(weights_of(self._trainer.network))
            if self._store.is_due():
                self._save(self._trainer.state_dict(), self._elapsed_seconds())
        with self._meter.spent_on("tracking"):
            self._tracker.epoch_ended(asdict(metrics), asdict(timing))
        with self._meter.spent_on("watching"):
            self._watch.epoch_ended(1, metrics.epoch)

    def _repeat(self) -> None:
        elapsed_seconds = self._elapsed_seconds()
        state = self._trainer.state_dict()
        state["optimizer"] = on_cpu(state["optimizer"])
        self._save(state, elapsed_seconds)  # a run that ends from here on trains no more
        wanted = self._run.experiment.repeats
        if wanted == 1:
            return
        forget_optimizer(self._trainer)  # another trainer needs the memory now
        self._watch.begin()
        for number in self._setup.repeats(self._trainer, self._repeats, self._watch.epoch_ended):
            self._save(state, elapsed_seconds)
            self._watch.training_ended()
            self._display.say(f"repeat {number} of {wanted}: {seconds(passed_seconds(self._repeats[-1]))}")
            self._watch.begin()

    @contextmanager
    def _after_training(self) -> Iterator[None]:
        """Around what is no part of the job: memory that others took since then is no reason to train again."""
        began_seconds = time.monotonic()
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            told = out_of_memory(self._run.name, self._run.experiment, self._team, str(error))
            raise UserError(
                f"{told}. The training itself is done, and kept: where other programs took the memory, end them, and "
                f"the next `dvc repro` measures without training again"
            ) from error
        self._beside_job_seconds += time.monotonic() - began_seconds

    def _save(self, trainer: State, elapsed_seconds: float) -> None:
        state = {
            "trainer": trainer,
            "epoch_weights_sha256": self._epoch_weights.sha256,
            "elapsed_seconds": elapsed_seconds,
            "resumed_at_epochs": list(self._resumed_at_epochs),
            "repeats": [[asdict(timing) for timing in timings] for timings in self._repeats],
        }
        epochs_in_all = trainer["progress"]["epochs_done"] * (1 + len(self._repeats))
        if epochs_in_all > self._epochs_saved:
            self._store.save(epochs_in_all, state)
            self._epochs_saved = epochs_in_all

    def _elapsed_seconds(self) -> float:
        own_seconds = seconds_since_stage_start() - self._beside_job_seconds - self._tracker.waited_seconds
        return self._earlier_seconds + own_seconds

    def _write_learned(self, first_step: records.FirstStep | None) -> None:
        run, manifest, trainer = self._run, self._setup.split.manifest, self._trainer
        folder = run.out / records.LEARNED
        weights, published = weights_of(trainer.network), run.fetched_weights()
        write_summed(folder / records.WEIGHTS, weights)
        self._epoch_weights.copy_to(folder / records.EPOCHS)
        write_summed(folder / records.HISTORY, records.history_csv(trainer.progress.metrics).encode())
        record = records.Training(
            device=run.device,
            device_kind=self._device.type,
            experiment=run.experiment,
            precision=effective_precision(self._device, run.experiment.precision),
            memory_format="channels_last" if trainer.state.memory_format is torch.channels_last else "contiguous",
            parameter_count=count_parameters(trainer.network),
            task=manifest.task,
            image_shape=manifest.shape,
            dtype=manifest.dtype,
            class_names=manifest.class_names,
            mean=manifest.mean,
            std=manifest.std,
            data_sha256=run.data_sha256(),
            published_weights_sha256=published.sha256 if published else None,
            initial_weights_sha256=self._initial_weights_sha256,
            weights_sha256=sha256_of_bytes(weights),
            epoch_weights_sha256=tuple(self._epoch_weights.sha256),
            own_code=run.own_code,
        )
        records.write_record(folder / records.RECORD, record)
        assert first_step is not None  # this process leads
        records.write_record(folder / records.FIRST_STEP, first_step)

    def _timings(self, further: FurtherMeasurements, energy: tuple[Energy, ...], **measured: Any) -> records.Timings:
        if self._resumed_at_epochs:
            energy = unavailable(energy, "the training was interrupted, and only its last part was watched")
        run, device, steps = self._run, self._device, self._trainer.steps
        epochs, image_count = self._trainer.progress.timings, self._setup.training.image_count
        return records.Timings(
            host=run.host,
            host_name=platform.node(),
            device_name=run.host.cpu.model if device.type == "cpu" and run.host.cpu else device_name(device),
            git_commit=git_commit(),
            packages=package_versions(),
            started_at_unix_seconds=self._started_at_unix_seconds,
            data_seconds=self._setup.data_seconds,
            epochs=tuple(epochs),
            tracking_seconds=self._tracker.waited_seconds,
            resumed_at_epochs=self._resumed_at_epochs,
            training_image_count=image_count,
            images_per_second=image_count / median_training_seconds(chain(epochs, *self._repeats)),
            device_count=self._team.device_count,
            repeats=tuple(self._repeats),
            steps_taken=StepsTaken(kind=steps.kind, at_once=steps.at_once, why=steps.why),
            load=tuple(self._watch.windows),
            energy=energy,
            identity=run.identity(),
            **measured,
            **further._asdict(),
        )

    def _write_views(self) -> None:
        run, manifest = self._run, self._setup.split.manifest
        state = self._trainer.network.state_dict()
        network = rebuilt(run.experiment, manifest.shape, len(manifest.class_names), state, manifest.dtype)
        write_views(run.out / records.LEARNED, network, self._setup.whole_batches(), manifest)


class TeamEnergy:
    """The energy of all the team's GPUs; each process measures its own. A CPU has no meter."""

    def __init__(self, team: Team) -> None:
        self._team = team
        uuids = [nvidia_uuid(device) for device in team.devices]
        self._meters = [] if team.devices[0].type == "cpu" else [EnergyMeter(uuids)]

    def begin(self) -> None:
        """Start to count."""
        for meter in self._meters:
            meter.begin()

    def training_ended(self) -> tuple[Energy, ...]:
        """Return the sum over all processes, each of which calls this."""
        everyones = self._team.gather([meter.training_ended() for meter in self._meters])
        return added_up(chain.from_iterable(everyones))


class OverheadMeter:
    """What the training loop spends between its timed passes, by what for."""

    def __init__(self) -> None:
        self._seconds: dict[_Purpose, float] = dict.fromkeys(get_args(_Purpose), 0.0)

    @contextmanager
    def spent_on(self, purpose: _Purpose) -> Iterator[None]:
        """Around what is done for that, inside of the loop; or around the whole loop, its timed passes included."""
        started_seconds = time.perf_counter()
        yield
        self._seconds[purpose] += time.perf_counter() - started_seconds

    def overhead(self, passes_seconds: float) -> Overhead:
        """Given what the loop spent in its timed passes; what is left over is nobody's."""
        named = {f"{purpose}_seconds": seconds for purpose, seconds in self._seconds.items()}
        rest_seconds = named.pop("loop_seconds") - passes_seconds - sum(named.values())
        return Overhead(passes_seconds=passes_seconds, rest_seconds=max(0.0, rest_seconds), **named)
