"""The same training from further seeds: how far apart are networks that chance alone tells apart?

Each is trained after the experiment's own, when the device has its memory back, with checkpoints of its own. The last
of them stays: with more `seeds`, or after a kill, only those of them are trained that are missing. The experiment's own
training is then taken from what is kept of it, with the times that it took.
"""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from photofinish.errors import UserError
from photofinish.files import add_sums, sha256_of_bytes, state_folder, write_bytes_atomically
from photofinish.measuring.rehearsal import warm_up
from photofinish.results import records
from photofinish.results.epochs import EpochMetrics, EpochTiming
from photofinish.results.finished import is_whole
from photofinish.results.learned import packed_weights, seed_weights
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup
from photofinish.runs.watching import TrainingDisplay
from photofinish.training.checkpoint import CheckpointStore, State, on_cpu
from photofinish.training.teams import Team
from photofinish.training.trainer import NonFiniteLossError, Trainer, progress_in


@dataclass(frozen=True)
class Seeded:
    """What came of one seed."""

    seed: int
    weights: bytes
    metrics: list[EpochMetrics]
    timings: list[EpochTiming]


def first_trainings() -> Path:
    """Where the last training of each experiment on each device is kept, for another number of `seeds`."""
    return state_folder() / "first"


def keep_first_training(run: Run, timings: records.Timings) -> None:
    """What was just learned from the experiment's own seed, and the times it took, in place of what was before."""
    kept = _kept(run)
    shutil.rmtree(kept.parent, ignore_errors=True)
    with suppress(OSError):  # no links there, or no room: it is trained anew, then
        shutil.copytree(run.out / records.LEARNED, kept / records.LEARNED, copy_function=os.link)
        records.write_record(kept / records.TIMED / records.TIMINGS, timings)


def take_first_training(run: Run) -> records.Timings | None:
    """Put in place what the same experiment, with another number of `seeds`, learned from its own, if that is there;
    the times that it took then, to be written when all else is there. With the same number, it is to train again."""
    kept, learned, seeds = _kept(run), run.out / records.LEARNED, run.experiment.seeds
    try:
        timings = records.read_record(kept / records.TIMED / records.TIMINGS, records.Timings)
        record = records.read_record(kept / records.LEARNED / records.RECORD, records.Training)
        if record.experiment.seeds == seeds or not is_whole(kept / records.LEARNED):
            return None
    except UserError:
        return None
    shutil.rmtree(learned, ignore_errors=True)
    shutil.copytree(kept / records.LEARNED, learned)
    experiment = record.experiment.model_copy(update={"seeds": seeds})
    records.write_record(learned / records.RECORD, record.model_copy(update={"experiment": experiment}))
    print(
        f"{run.name} on {run.device}: from seed {experiment.seed} it was trained before, with seeds: "
        f"{record.experiment.seeds}; that is taken, with the times it took then"
    )
    return timings.model_copy(update={"identity": run.identity()})


def note_as_taken(run: Run) -> None:
    """Once all is there: who wants the same number of `seeds` again, asks for a training."""
    record = records.read_record(run.out / records.LEARNED / records.RECORD, records.Training)
    records.write_record(_kept(run) / records.LEARNED / records.RECORD, record)


def _kept(run: Run) -> Path:
    """Where that is which is the same with any number of seeds."""
    alone = replace(run, experiment=run.experiment.model_copy(update={"seeds": 1}))
    return first_trainings() / f"{run.name}-{run.device}" / alone.key()


def train_further_seeds(run: Run, device: torch.device, team: Team) -> list[Seeded]:
    """Train from each seed after the experiment's own, or take what was trained before; all of a team do so."""
    return [_train(run, run.experiment.seed + number, device, team) for number in range(1, run.experiment.seeds)]


def write_seeded(learned: Path, seeded: list[Seeded]) -> None:
    """The weights and the history of each, beside the experiment's own."""
    runs = []
    for each in seeded:
        path, digest = seed_weights(learned, each.seed), sha256_of_bytes(each.weights)
        add_sums(learned, {str(path.relative_to(learned)): digest})
        write_bytes_atomically(path, each.weights)
        runs.append(records.SeedRun(seed=each.seed, weights_sha256=digest, history=tuple(each.metrics)))
    if runs:
        records.write_record(learned / f"{records.SEEDS}.json", records.FurtherSeeds(runs=tuple(runs)))


def _train(run: Run, seed: int, device: torch.device, team: Team) -> Seeded:
    alone = {"seed": seed, "seeds": 1, "repeats": 1, "save_weights": "last"}
    run = replace(run, experiment=run.experiment.model_copy(update=alone))
    store = CheckpointStore(state_folder() / "checkpoints" / run.identity())
    state = team.from_leader(_last_checkpoint(run, store) if team.rank == 0 else None)
    if state is None or progress_in(state).epochs_done < run.experiment.epochs:
        trainer = Setup(run, device, team).new_trainer()
        if state:
            trainer.load_state_dict(state)
        warm_up(trainer)
        _train_on(trainer, run, store if team.rank == 0 else None)
        state = on_cpu(trainer.state_dict()) | {"optimizer": {}}  # which no further epoch needs
        if team.rank == 0:
            store.save(run.experiment.epochs, state)
    done = progress_in(state)
    return Seeded(seed, packed_weights(state["network"]), done.metrics, done.timings)


def _last_checkpoint(run: Run, store: CheckpointStore) -> State | None:
    seed = run.experiment.seed
    return store.load_latest(lambda path: print(f"{run.name}, seed {seed}: checkpoint {path} is damaged: not taken"))


def _train_on(trainer: Trainer, run: Run, store: CheckpointStore | None) -> None:
    """To the end; only who leads has a store, and tells of it."""
    seed, epochs = run.experiment.seed, run.experiment.epochs
    display = TrainingDisplay(
        f"{run.name} on {run.device}, seed {seed}",
        epochs=epochs,
        steps_per_epoch=trainer.steps_per_epoch,
        images=trainer.training.image_count,
        steps_done=lambda: trainer.steps_done,
    )

    def epoch_ended(metrics: EpochMetrics, timing: EpochTiming) -> None:
        if store is None:
            return
        display.epoch_ended(metrics, timing)
        if store.is_due() and metrics.epoch < epochs:
            store.save(metrics.epoch, trainer.state_dict())

    try:
        with display if store else nullcontext():
            trainer.train(epoch_ended)
    except NonFiniteLossError as error:
        raise NonFiniteLossError(f"from seed {seed}, {error}") from error
