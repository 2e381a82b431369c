"""A training ends cleanly when killed or interrupted, and resumes to the same bits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import (
    ONE_THREAD,
    ROOT,
    PrepareStage,
    Project,
    clone_project,
    keep_known_code,
)
from training_process import CHECKPOINT_EACH_EPOCH, NEVER, RENAMES, ForkedProcess, KillBefore, Start
from training_stage import TrainingStage, read_until, runs, wait_for

from photofinish.errors import EXIT_INTERRUPTED, EXIT_TERMINATED
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
        keep_known_code(original)
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


def test_killed_before_any_file_operation_it_ends_the_same(make_trainings: MakeTrainings) -> None:
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


def test_a_damaged_checkpoint_is_named_and_the_older_is_used(make_trainings: MakeTrainings) -> None:
    trainings = make_trainings(epochs=5)
    learned = trainings.learn()
    trainings.kill(KillBefore(4, RENAMES))
    older, newest = trainings.checkpoints()
    newest.write_bytes(newest.read_bytes()[:100])
    assert trainings.learn() == learned
    assert f"{newest} is damaged" in trainings.output
    assert str(older) not in trainings.output
    assert "resumes after epoch 2\n" in trainings.output


def test_killed_between_repeats_it_trains_the_missing_ones(make_trainings: MakeTrainings) -> None:
    trainings = make_trainings(epochs=2, repeats=3)
    trainings.kill(KillBefore(5, RENAMES))  # a checkpoint for each epoch of each training
    learned = trainings.learn()
    resumed = [f"repeat {repeat}  resumes after epoch 2" in trainings.output for repeat in (2, 3)]
    assert resumed == [True, False]
    timings = read_record(trainings.times(), TrainingTimes)
    assert [len(repeat) for repeat in timings.repeats] == [2, 2]
    trainings.start_over()
    assert trainings.learn() == learned


def test_killed_it_keeps_to_a_lower_and_a_higher_limit(make_trainings: MakeTrainings) -> None:
    schedule = {"name": "cosine"}  # of all epochs
    settings = {"save_weights": "every_epoch", "repeats": 2, "seeds": 2, "schedule": schedule}
    trainings = make_trainings(epochs=5, **settings)
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


def test_finished_but_not_stored_it_trains_no_epoch_again(make_trainings: MakeTrainings) -> None:
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


SCRIPTS = sorted((ROOT / "stages").glob("[!_]*.py"))
EPOCHS = 240  # so many that it can be ended twice, a second or more after it began
TRAIN = str(ROOT / "stages" / "train.py")
INTERRUPT_AT_IMPORT = f"""
import os, runpy, signal, sys

def interrupt(event, arguments):
    if event == "import" and arguments[0] == {{!r}}:
        os.kill(os.getpid(), signal.SIGINT)

sys.argv[0] = {TRAIN!r}
sys.path.insert(0, os.path.dirname({TRAIN!r}))
sys.addaudithook(interrupt)
runpy.run_path({TRAIN!r}, run_name="__main__")
"""
SWALLOWED = """
class Loader:
    def __del__(self):
        os.kill(os.getpid(), number)

def main():
    end_on_sigterm()
    Loader()  # Python drops what is raised in __del__
    for _ in range(300):
        time.sleep(0.1)
    print("went on")

run_stage(main)
"""
CLEANS_UP_LONG = """
def main():
    end_on_sigterm()
    try:
        os.kill(os.getpid(), number)
    finally:
        for _ in range(15):
            time.sleep(0.1)
        print("cleaned up")

run_stage(main)
"""
LOSES_A_WORKER = """
def fail(number, frame):
    raise RuntimeError("a worker died")

def main():
    end_on_sigterm()
    signal.signal(signal.SIGCHLD, fail)  # as PyTorch's data loader does
    try:
        os.kill(os.getpid(), number)
    finally:
        os.kill(os.getpid(), signal.SIGCHLD)
        print("cleaned up")

run_stage(main)
"""
SHUTS_DOWN = """
atexit.register(lambda: os.kill(os.getpid(), number))
run_stage(end_on_sigterm)
"""
OLD_PYTHON = """
import runpy, sys
sys.version_info = (3, 10, 0)
sys.path.insert(0, {!r})
runpy.run_path({!r})
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Project:
    """One whose data is ready."""
    project = clone_project(tmp_path_factory.mktemp("lifeline") / "project")
    shutil.copy(empty_database, project.root / "mlflow.db")
    cnn = {"dataset": "digits", "model": {"name": "cnn", "channels": [16], "hidden": []}}
    project.write_params(
        {
            "defaults": {"batch_size": 64, "optimizer": {"name": "sgd", "lr": 0.05}},
            "devices": ONE_THREAD,
            "datasets": {"digits": {"source": "digits", "validation": 0.15, "test": 0.15}},
            "experiments": {"short": {**cnn, "epochs": EPOCHS}},
        }
    )
    project.repro("split@digits")
    return project


@contextmanager
def training(project: Project, said: str) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """Start dvc, and give it and its training once that printed `said` and saved a checkpoint."""
    checkpoints = project.root / ".photofinish" / "checkpoints"
    before = set(checkpoints.rglob("epoch-*.pt"))
    with project.start("dvc", "repro", "train-cpu@short") as dvc:
        try:
            read_until(dvc, said)
            wait_for(lambda: set(checkpoints.rglob("epoch-*.pt")) - before)
            [trainer] = [
                process
                for process in psutil.Process(dvc.pid).children(recursive=True)
                if "stages/train.py" in process.cmdline()
                and process.name() not in ("sh", "bash", "zsh")
            ]
            yield dvc, trainer
        finally:
            with suppress(ProcessLookupError):
                os.killpg(dvc.pid, signal.SIGKILL)


def rows(project: Project, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(project.root / "mlflow.db")) as connection:
        return connection.execute(query).fetchall()


def test_a_training_that_outlives_dvc_or_is_interrupted_resumes_as_one(project: Project) -> None:
    with training(project, "Running stage 'train-cpu@short'") as (dvc, trainer):
        dvc.kill()
        dvc.wait()
        assert json.loads((project.root / ".dvc" / "tmp" / "rwlock").read_text(encoding="utf-8"))
        # The first training is still about to end.
        with training(project, "resumes after epoch") as (again, second):
            assert not runs(trainer)
            os.killpg(again.pid, signal.SIGINT)
            outputs = [each.communicate()[0] for each in (dvc, again)]
    assert outputs[0].endswith("stopped: terminated\n")
    assert not runs(second)
    assert outputs[1].count("interrupted\n") == 1
    # dvc prints how its shell ended: with the stage's status, or by the signal if it outlived it.
    assert "exited with 130" in outputs[1] or f"exited with {-signal.SIGINT}" in outputs[1]
    assert "Traceback" not in "".join(outputs)
    assert rows(project, "SELECT status FROM runs") == [("KILLED",)]

    output = project.repro("train-cpu@short")
    assert "Stage 'split@digits' didn't change" in output
    assert "short on cpu  resumes after epoch" in output
    steps = "SELECT step FROM metrics WHERE key = 'training_loss' ORDER BY step"
    assert rows(project, steps) == [(epoch,) for epoch in range(1, EPOCHS + 1)]
    notes = "SELECT value FROM tags WHERE key = 'mlflow.note.content'"
    assert not [note for (note,) in rows(project, notes) if "stopped" in note]  # how it had ended
    assert rows(project, "SELECT status FROM runs") == [("FINISHED",)]
    timings = read_record(project.root / "results/short/cpu/timings/timings.json", TrainingTimes)
    assert len(timings.resumed_at_epochs) == 2
    assert len(timings.epochs) == EPOCHS
    assert timings.total_seconds > sum(epoch.training_seconds for epoch in timings.epochs)


INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.mark.parametrize(
    ("code", "kind", "status", "printed", "said"),
    [
        (SWALLOWED, INT, EXIT_INTERRUPTED, "", "interrupted\n"),
        (SWALLOWED, TERM, EXIT_TERMINATED, "", "stopped: terminated\n"),
        (CLEANS_UP_LONG, INT, EXIT_INTERRUPTED, "cleaned up\n", "interrupted\n"),
        (CLEANS_UP_LONG, TERM, EXIT_TERMINATED, "cleaned up\n", "stopped: terminated\n"),
        (LOSES_A_WORKER, INT, EXIT_INTERRUPTED, "cleaned up\n", "interrupted\n"),
        (SHUTS_DOWN, TERM, -TERM, "", ""),
    ],
    ids=["swallowed", "ended", "cleans up", "ended, cleans up", "loses a worker", "shuts down"],
)
def test_a_signal_ends_a_stage_wherever_it_arrives_and_lets_it_clean_up(
    code: str, kind: signal.Signals, status: int, printed: str, said: str
) -> None:
    imports = "from photofinish.stage.process import end_on_sigterm, run_stage\n"
    start = f"import atexit, os, signal, time\n{imports}number = {int(kind)}\n"
    command = [sys.executable, "-c", start + code]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (status, printed, said)


@pytest.mark.parametrize("module", ["photofinish.stage.process", "torch"])
def test_ctrl_c_during_imports_ends_in_one_line(prepare_stage: PrepareStage, module: str) -> None:
    with prepare_stage().start("-c", INTERRUPT_AT_IMPORT.format(module)) as process:
        output, _ = process.communicate()
    assert (process.returncode, output) == (EXIT_INTERRUPTED, "interrupted\n")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.stem))
def test_a_python_without_the_package_or_too_old_is_explained_in_one_line(script: Path) -> None:
    for arguments, said in (
        (("-E", "-S", str(script)), "No module named"),
        (("-c", OLD_PYTHON.format(str(script.parent), str(script))), "older than Python 3.11"),
    ):
        command = [sys.executable, *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 1
        assert said in ran.stderr
        assert "activate the environment" in ran.stderr
        assert ran.stderr.count("\n") == 1
