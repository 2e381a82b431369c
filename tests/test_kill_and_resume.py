"""A killed training resumes from its last checkpoint and ends with the same bits."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PrepareStage
from training_process import CHECKPOINT_EACH_EPOCH, NEVER, RENAMES, ForkedProcess, KillBefore, Start
from training_stage import TrainingStage

from photofinish.results.records import TrainingTimes, read_record

pytestmark = pytest.mark.slow

DVC_STAGE = "train-cpu@small"


class Trainings:
    """Training processes in one folder, with a checkpoint after every epoch."""

    def __init__(self, stage: TrainingStage) -> None:
        self.stage, self.folder, self.output = stage, stage.folder, ""
        self.environment: dict[str, str] = {}

    def start(self, kill: KillBefore = NEVER) -> ForkedProcess:
        """Start the stage as dvc does, which deletes its outs first."""
        shutil.rmtree(self.folder / "results", ignore_errors=True)
        return self.stage.fork(Start(settings=CHECKPOINT_EACH_EPOCH, kill=kill), **self.environment)

    def learn(self) -> dict[str, bytes]:
        """Run to the end; what was learned."""
        process = self.start()
        self.output, _ = process.communicate()
        assert process.returncode == 0, self.output
        return self.stage.learned()

    def kill(self, kill: KillBefore) -> None:
        """Start a first training and kill it."""
        self.start_over()
        process = self.start(kill)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, kill

    def set_limit(self, seconds: float | None) -> None:
        file = self.folder / "small.json"
        plan = json.loads(file.read_bytes()) | {"time_limit_seconds": seconds}
        file.write_text(json.dumps(plan), encoding="utf-8")

    def original(self) -> Path:
        """Make this folder a copy of a project, and return the project's folder."""
        (self.folder / ".dvc").mkdir(exist_ok=True)
        original = self.folder / "original"
        original.mkdir(exist_ok=True)
        return original

    def times(self) -> Path:
        return self.stage.out / "timings" / "timings.json"

    def start_over(self) -> None:
        shutil.rmtree(self.folder / ".photofinish", ignore_errors=True)

    def checkpoints(self) -> list[Path]:
        """The oldest first."""
        return sorted((self.folder / ".photofinish" / "checkpoints").rglob("*.pt"))


MakeTrainings = Callable[..., Trainings]


@pytest.fixture
def make_trainings(prepare_stage: PrepareStage) -> MakeTrainings:
    return lambda **settings: Trainings(prepare_stage(**settings))


def test_killed_before_any_file_operation_it_ends_with_the_same_bits(
    make_trainings: MakeTrainings,
) -> None:
    trainings = make_trainings(epochs=2, save_weights="every_epoch")
    learned = trainings.learn()
    files = [f"epochs/epoch-{epoch:04d}.safetensors" for epoch in (1, 2)]
    assert [name for name in learned if name.startswith("epochs/")] == files
    assert learned[files[-1]] == learned["weights.safetensors"] != learned[files[0]]
    trainings.start_over()
    assert trainings.learn() == learned  # without making the machine's lock, as every one below
    operations = (trainings.folder / "operations.txt").read_text(encoding="utf-8").splitlines()
    # Checkpoints and weights of two epochs, then the results: all are renamed into place.
    assert operations.count("os.rename") >= 2 + 2 + 6
    for number, operation in enumerate(operations, start=1):
        trainings.start_over()
        trainings.kill(KillBefore(number))
        assert trainings.learn() == learned, f"killed before operation {number}, {operation}"


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    make_trainings: MakeTrainings,
) -> None:
    trainings = make_trainings(epochs=5)
    learned = trainings.learn()
    trainings.kill(KillBefore(4, RENAMES))
    older, newest = trainings.checkpoints()
    newest.write_bytes(newest.read_bytes()[:100])
    assert trainings.learn() == learned
    assert f"{newest} is damaged" in trainings.output
    assert str(older) not in trainings.output
    assert "resumes after epoch 2\n" in trainings.output


def test_killed_between_repeats_it_trains_only_the_missing_ones(
    make_trainings: MakeTrainings,
) -> None:
    trainings = make_trainings(epochs=2, repeats=3)
    trainings.kill(KillBefore(5, RENAMES))  # a checkpoint for each epoch of each training
    learned = trainings.learn()
    resumed = [f"repeat {repeat}  resumes after epoch 2" in trainings.output for repeat in (2, 3)]
    assert resumed == [True, False]
    timings = read_record(trainings.times(), TrainingTimes)
    assert [len(repeat) for repeat in timings.repeats] == [2, 2]
    trainings.start_over()
    assert trainings.learn() == learned


def test_killed_it_ends_at_once_by_a_lower_limit_and_goes_on_with_a_higher_one(
    make_trainings: MakeTrainings,
) -> None:
    trainings = make_trainings(epochs=5, save_weights="every_epoch", repeats=2, seeds=2)
    trainings.environment["DVC_STAGE"] = DVC_STAGE
    whole = trainings.learn()
    trainings.set_limit(600.0)
    trainings.kill(KillBefore(8, RENAMES))  # each epoch's weights, then its checkpoint

    trainings.set_limit(1e-9)
    limited = trainings.learn()
    assert "small on cpu  resumes after epoch 3\n" in trainings.output
    assert "small on cpu  3 of 5 epochs, " in trainings.output
    epochs = [name for name in limited if name.startswith("epochs/")]
    assert epochs == [f"epochs/epoch-000{epoch}.safetensors" for epoch in (1, 2, 3)]
    assert all(limited[name] == whole[name] for name in epochs)
    assert limited["weights.safetensors"] == whole[epochs[-1]]
    assert whole["history.csv"].startswith(limited["history.csv"])
    timings = read_record(trainings.times(), TrainingTimes)
    assert (len(timings.epochs), timings.epochs_left) == (3, 2)
    assert [len(each) for each in (*timings.repeats, *timings.seeds)] == [3, 3]
    assert trainings.learn() == limited
    assert read_record(trainings.times(), TrainingTimes) == timings

    trainings.set_limit(600.0)
    assert trainings.learn() == whole
    resumed = [f"{part}  resumes after epoch 3\n" for part in ("cpu", "repeat 2", "seed 1")]
    assert all(line in trainings.output for line in resumed)
    trainings.set_limit(1e-9)
    assert trainings.learn() == whole
    assert "resumes after epoch 5\n" in trainings.output


def test_killed_before_dvc_stored_the_result_it_trains_no_epoch_again(
    make_trainings: MakeTrainings,
) -> None:
    trainings = make_trainings(epochs=3, save_weights="every_epoch")
    trainings.environment |= {"DVC_STAGE": DVC_STAGE, "DVC_EXP_NAME": "first"}
    learned = trainings.learn()
    timings = read_record(trainings.times(), TrainingTimes)
    trainings.environment["DVC_EXP_NAME"] = "again"  # after a kill while DVC stored the result
    assert trainings.learn() == learned
    assert "cpu  resumes after epoch 3\n" in trainings.output
    assert (
        read_record(trainings.times(), TrainingTimes) == timings
    )  # so that MLflow has one run of it
    trainings.environment["DVC_ROOT"] = str(trainings.original())
    times = []
    for name, is_first in (("one", True), ("two", True), ("two", False), ("one", False)):
        trainings.environment["DVC_EXP_NAME"] = name  # of two experiments, each in a copy
        assert trainings.learn() == learned
        assert ("resumes" in trainings.output) != is_first
        line = "cpu  trains again, so that its times are no copies of one's\n"
        assert (line in trainings.output) == (name == "two" and is_first)
        times.append(read_record(trainings.times(), TrainingTimes))
    assert times[2:] == [times[1], times[0]]
    del trainings.environment["DVC_ROOT"], trainings.environment["DVC_EXP_NAME"]
    lock = trainings.folder / "dvc.lock"
    lock.write_text(f"stages:\n  {DVC_STAGE}:\n    outs: 1\n", encoding="utf-8")
    assert trainings.learn() == learned
    assert "resumes" not in trainings.output
