"""A training ends soon after its DVC, and cleanly on Ctrl-C and SIGTERM. The next resumes it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import ONE_THREAD, ROOT, PrepareStage, Project, clone_project
from training_stage import read_until, runs, wait_for

from photofinish.errors import EXIT_INTERRUPTED, EXIT_TERMINATED
from photofinish.results.records import TrainingTimes, read_record

pytestmark = pytest.mark.slow

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


def test_a_training_that_outlives_its_dvc_or_is_interrupted_resumes_as_one_run(
    project: Project,
) -> None:
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
    ids=[
        "swallowed",
        "terminated",
        "cleans up",
        "terminated, cleans up",
        "loses a worker",
        "shuts down",
    ],
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
def test_ctrl_c_during_the_imports_ends_in_one_line(
    prepare_stage: PrepareStage, module: str
) -> None:
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
