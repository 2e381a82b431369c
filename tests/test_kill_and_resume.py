"""A training that is killed outright, at whatever moment, goes on where it was and ends with the same bits."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from conftest import ONE_THREAD, MakeExperiment, clone_project
from training_process import NEVER, RENAMES, KillBefore, train
from training_stage import TrainingStage, contents, read_until, wait_for

from photofinish.data.packed import PackedSplit
from photofinish.files import sha256_of_bytes
from photofinish.machine.fingerprint import CpuHost
from photofinish.results.records import Timings, Training, read_record

pytestmark = pytest.mark.slow

_MOMENTS = 20
_EPOCHS_WITH_MLFLOW = 300
_DVC_STAGE = "train-cpu@small"
_SMALL_CNN = {"name": "cnn", "channels": (8, 16), "hidden": (16,)}


class Trainings:
    """Training processes in one folder, forked from one that has torch imported already."""

    def __init__(self, context: ForkServerContext, stage: TrainingStage) -> None:
        self._context, self.stage, self.folder = context, stage, stage.folder
        self.dvc_stage: str | None = None

    def start(self, kill: KillBefore = NEVER) -> BaseProcess:
        """As dvc does, which deletes a stage's outs before it runs."""
        shutil.rmtree(self.folder / "results", ignore_errors=True)
        (self.folder / "output.txt").write_text("", encoding="utf-8")
        arguments = (self.folder, self.stage.data, self.stage.out, kill, self.dvc_stage)
        process = self._context.Process(target=train, args=arguments)
        process.start()
        return process

    def learn(self) -> dict[str, bytes]:
        """Run to the end; what was learned."""
        process = self.start()
        process.join()
        assert process.exitcode == 0, self.output()
        assert self.checkpoints() == []
        return self.stage.learned()

    def kill(self, kill: KillBefore) -> None:
        process = self.start(kill)
        process.join()
        assert process.exitcode == -signal.SIGKILL, kill

    def start_over(self) -> None:
        shutil.rmtree(self.folder / ".photofinish", ignore_errors=True)

    def output(self) -> str:
        return (self.folder / "output.txt").read_text(encoding="utf-8")

    def checkpoints(self) -> list[Path]:
        """The oldest first."""
        return sorted((self.folder / ".photofinish" / "checkpoints").rglob("*.pt"))


MakeTrainings = Callable[..., Trainings]


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServerContext]:
    context = multiprocessing.get_context("forkserver")
    # What takes long to import, the optimizers' first use of torch._dynamo included.
    context.set_forkserver_preload(["pytest", "photofinish.runs.stage", "photofinish.runs.train", "torch._dynamo"])
    yield context
    from multiprocessing.forkserver import _forkserver

    _forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture
def make_trainings(
    fork_server: ForkServerContext,
    tmp_path: Path,
    packed_split: PackedSplit,
    cpu_host: CpuHost,
    make_experiment: MakeExperiment,
) -> MakeTrainings:
    def make(**overrides: Any) -> Trainings:
        experiment = make_experiment(**overrides)
        return Trainings(fork_server, TrainingStage.prepare(tmp_path, experiment, cpu_host, packed_split.folder))

    return make


def test_killed_before_any_of_its_operations_on_files_it_ends_with_the_same_bits(make_trainings: MakeTrainings) -> None:
    trainings = make_trainings(epochs=3)
    learned = trainings.learn()
    trainings.start_over()
    assert trainings.learn() == learned  # without making the machine's lock, as every one below
    operations = (trainings.folder / "operations.txt").read_text(encoding="utf-8").splitlines()
    assert operations.count("os.rename") == 3 + 2 * (6 + 1)  # checkpoints; learned, timed, each file with its sha256
    for number, operation in enumerate(operations, start=1):
        trainings.start_over()
        trainings.kill(KillBefore(number))
        assert trainings.learn() == learned, f"killed before operation {number}, {operation}"


def test_killed_at_any_moment_it_ends_with_the_same_bits(make_trainings: MakeTrainings) -> None:
    trainings = make_trainings(model=_SMALL_CNN, epochs=60, schedule={"name": "cosine"})
    learned, resumed = trainings.learn(), 0
    for moment in range(_MOMENTS):
        trainings.start_over()
        process = trainings.start()
        while process.is_alive() and trainings.output().count("\n") < moment * 60 // _MOMENTS:
            process.join(0.001)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert trainings.learn() == learned, f"killed at moment {moment}"
        resumed += "goes on after epoch" in trainings.output()
    assert resumed >= _MOMENTS - 2


def _flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [_flip_a_bit, _cut, _empty])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    make_trainings: MakeTrainings, damage: Callable[[Path], None]
) -> None:
    trainings = make_trainings(epochs=5)
    learned = trainings.learn()
    trainings.kill(KillBefore(4, RENAMES))
    older, newest = trainings.checkpoints()
    damage(newest)
    assert trainings.learn() == learned
    assert f"{newest} is damaged" in trainings.output()
    assert str(older) not in trainings.output()
    assert "goes on after epoch 2\n" in trainings.output()


def test_with_every_checkpoint_damaged_each_is_named_and_training_starts_over(make_trainings: MakeTrainings) -> None:
    trainings = make_trainings(epochs=5)
    learned = trainings.learn()
    trainings.kill(KillBefore(4, RENAMES))
    damaged = trainings.checkpoints()
    assert len(damaged) == 2
    for path in damaged:
        _flip_a_bit(path)
    assert trainings.learn() == learned
    assert all(f"{path} is damaged" in trainings.output() for path in damaged)
    assert "goes on" not in trainings.output()


def test_with_every_epochs_weights_killed_before_any_of_its_renames_it_ends_with_the_same_bits(
    make_trainings: MakeTrainings,
) -> None:
    trainings = make_trainings(epochs=3, save_weights="every_epoch")
    learned = trainings.learn()
    files = [f"epochs/epoch-{epoch:04d}.safetensors" for epoch in (1, 2, 3)]
    assert [name for name in learned if name.startswith("epochs/")] == files
    assert learned[files[-1]] == learned["weights.safetensors"] != learned[files[0]]
    record = read_record(trainings.stage.out / "learned" / "record.json", Training)
    assert list(record.epoch_weights_sha256) == [sha256_of_bytes(learned[file]) for file in files]
    renames = (trainings.folder / "operations.txt").read_text(encoding="utf-8").splitlines().count("os.rename")
    assert renames == (3 + 3) + (2 * 6 + 3 + 1) + 2
    for number in range(1, renames + 1):
        trainings.start_over()
        trainings.kill(KillBefore(number, RENAMES))
        assert trainings.learn() == learned, f"killed before rename {number}"


def test_killed_among_its_repeats_it_repeats_no_more_than_is_missing(make_trainings: MakeTrainings) -> None:
    trainings = make_trainings(epochs=2, repeats=3)
    learned = trainings.learn()
    for number in (3, 4, 5):  # checkpoints: two epochs, two repeats; then results
        trainings.start_over()
        trainings.kill(KillBefore(number, RENAMES))
        assert trainings.learn() == learned, f"killed before rename {number}"
        timings = read_record(trainings.stage.out / "timed" / "timings.json", Timings)
        assert [len(repeat) for repeat in timings.repeats] == [2, 2]
        repeated = [f"repeat {repeat} of 3" in trainings.output() for repeat in (2, 3)]
        assert repeated == {3: [True, True], 4: [False, True], 5: [False, False]}[number]


def test_with_the_weights_of_an_earlier_epoch_damaged_training_starts_over(make_trainings: MakeTrainings) -> None:
    trainings = make_trainings(epochs=4, save_weights="every_epoch")
    learned = trainings.learn()
    trainings.kill(KillBefore(7, RENAMES))  # before the fourth epoch's weights
    damaged = next((trainings.folder / ".photofinish" / "checkpoints").rglob("epoch-0002.safetensors"))
    _flip_a_bit(damaged)
    assert trainings.learn() == learned
    assert f"{damaged} is missing or damaged: training starts over" in trainings.output()
    assert "goes on" not in trainings.output()


def test_a_run_that_was_killed_is_not_resumed_with_other_settings(make_trainings: MakeTrainings) -> None:
    make_trainings(epochs=5).kill(KillBefore(4, RENAMES))
    changed = make_trainings(epochs=5, seed=1)
    process = changed.start()
    process.join()
    assert process.exitcode == 0
    assert "epoch 1/5" in changed.output()
    assert "goes on" not in changed.output()


def test_killed_three_times_with_mlflow_it_is_one_run_with_every_epoch_once(
    make_trainings: MakeTrainings, tmp_path: Path
) -> None:
    undisturbed = make_trainings(model=_SMALL_CNN, epochs=_EPOCHS_WITH_MLFLOW)
    killed = TrainingStage(undisturbed.folder, undisturbed.stage.data, tmp_path / "killed" / "small" / "cpu")
    for epoch in (10, 150, 250):
        with killed.start_with_a_checkpoint_each_epoch() as process:
            read_until(process, f"epoch {epoch}/")
            process.kill()
        assert process.returncode == -signal.SIGKILL
    with killed.start_with_a_checkpoint_each_epoch() as process:
        read_until(process, "goes on after epoch")
        output, _ = process.communicate()
    assert process.returncode == 0, output
    assert killed.learned() == undisturbed.learn()
    assert _rows(killed.folder, "SELECT status FROM runs") == [("FINISHED",)]
    steps = _rows(killed.folder, "SELECT step FROM metrics WHERE key = 'training_loss' ORDER BY step")
    assert steps == [(epoch,) for epoch in range(1, _EPOCHS_WITH_MLFLOW + 1)]
    assert _rows(killed.folder, "SELECT value FROM tags WHERE key = 'mlflow.note.content'") == []
    checkpoints = sorted((killed.folder / "mlruns").rglob("checkpoints/epoch-*.pt"))
    assert [path.name.split(".")[0] for path in checkpoints] == [
        f"epoch-{epoch:06}" for epoch in (_EPOCHS_WITH_MLFLOW - 1, _EPOCHS_WITH_MLFLOW)
    ]
    timings = read_record(killed.out / "timed" / "timings.json", Timings)
    assert len(timings.resumed_at_epochs) == 3
    assert len(timings.epochs) == _EPOCHS_WITH_MLFLOW
    assert timings.total_seconds > sum(epoch.training_seconds for epoch in timings.epochs)


def test_dvc_repro_killed_with_all_it_started_goes_on_the_next_time(tmp_path: Path) -> None:
    project = clone_project(tmp_path / "project")
    project.write_params(
        {
            "defaults": {"epochs": 120, "batch_size": 64, "optimizer": {"name": "sgd", "lr": 0.05}},
            "devices": ONE_THREAD,
            "datasets": {"digits": {"source": "digits", "validation": 0.15, "test": 0.15}},
            "experiments": {"killed": {"dataset": "digits", "model": {"name": "cnn", "channels": [16], "hidden": []}}},
        }
    )
    learned = project.root / "results" / "killed" / "cpu" / "learned"
    with project.start("dvc", "repro") as process:
        read_until(process, "epoch 1/120")
        wait_for(lambda: [*(project.root / ".photofinish" / "checkpoints").rglob("epoch-*.pt")])
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    output = project.repro()
    assert "Stage 'split@digits' didn't change" in output
    assert "killed on cpu  goes on after epoch" in output
    assert (project.root / "report" / "index.html").is_file()
    resumed = contents(learned)
    assert list((project.root / ".photofinish" / "finished").iterdir()) == []
    for _ in range(2):  # the second finds what the first one kept until DVC had it
        assert "epoch 1/120" in project.repro("--force", "--single-item", "train-cpu@killed")
    assert contents(learned) == resumed


def test_a_result_that_dvc_does_not_have_yet_is_handed_over_and_one_that_it_has_is_trained_anew(
    make_trainings: MakeTrainings,
) -> None:
    trainings = make_trainings(epochs=3, save_weights="every_epoch")
    trainings.dvc_stage = _DVC_STAGE
    trainings.learn()
    result = contents(trainings.stage.out)
    trainings.learn()
    assert "its result is taken" in trainings.output()
    assert contents(trainings.stage.out) == result  # and took the same time
    (trainings.folder / "dvc.lock").write_text(f"stages: {{{_DVC_STAGE}: {{outs: [md5: 1]}}}}", encoding="utf-8")
    learned = trainings.learn()
    assert "epoch 1/3" in trainings.output()
    assert {f"learned/{name}": data for name, data in learned.items()}.items() <= result.items()
    assert len(list((trainings.folder / ".photofinish" / "finished").glob("*/*"))) == 1


def test_killed_after_its_last_file_it_trains_no_more(make_trainings: MakeTrainings) -> None:
    trainings = make_trainings(epochs=3)
    trainings.dvc_stage = _DVC_STAGE
    learned = trainings.learn()
    trainings.start_over()
    assert trainings.learn() == learned  # without making the machine's lock, as every one below
    operations = (trainings.folder / "operations.txt").read_text(encoding="utf-8").splitlines()
    last_file = max(number for number, operation in enumerate(operations, start=1) if operation == "os.rename")
    for number in (last_file + 1, (last_file + len(operations)) // 2, len(operations)):
        trainings.start_over()
        trainings.kill(KillBefore(number))
        assert trainings.learn() == learned, f"killed before operation {number}, {operations[number - 1]}"
        assert "epoch 1/3" not in trainings.output()


def test_a_damaged_copy_of_a_result_is_not_handed_over(make_trainings: MakeTrainings) -> None:
    trainings = make_trainings(epochs=2)
    trainings.dvc_stage = _DVC_STAGE
    learned = trainings.learn()
    [history] = (trainings.folder / ".photofinish" / "finished").rglob("history.csv")
    _flip_a_bit(history)
    assert trainings.learn() == learned
    assert "epoch 1/2" in trainings.output()


def test_a_result_that_is_handed_over_stays_one_run_in_mlflow(make_trainings: MakeTrainings) -> None:
    stage = make_trainings(epochs=2).stage
    for said in ("epoch 1/2", "its result is taken"):
        shutil.rmtree(stage.folder / "results", ignore_errors=True)
        with stage.start(DVC_STAGE=_DVC_STAGE) as process:
            output, _ = process.communicate()
        assert process.returncode == 0, output
        assert said in output
        assert _rows(stage.folder, "SELECT status FROM runs") == [("FINISHED",)]
    assert _rows(stage.folder, "SELECT key FROM tags WHERE key = 'photofinish.restored'") == []


def _rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "mlflow.db")) as connection:
        return connection.execute(query).fetchall()
