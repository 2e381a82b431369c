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
from conftest import ONE_THREAD, ROOT, MakeExperiment, Project, clone_project
from training_stage import TrainingStage, read_until, wait_for

from photofinish.data.packed import PackedSplit
from photofinish.machine.fingerprint import CpuTarget
from photofinish.results.records import Timings, read_record

pytestmark = pytest.mark.slow

_SCRIPTS = sorted((ROOT / "stages").glob("[!_]*.py"))
_EPOCHS = 360  # so many that it can be ended three times, a second or more after it began
_INTERRUPT_AT_IMPORT = """
import os, runpy, signal, sys

def interrupt(event, arguments):
    if event == "import" and arguments[0] == {module!r}:
        os.kill(os.getpid(), signal.SIGINT)

sys.argv[0] = {stage!r}
sys.path.insert(0, os.path.dirname({stage!r}))
sys.addaudithook(interrupt)
runpy.run_path({stage!r}, run_name="__main__")
"""

_SWALLOWED = """
import os, signal, time
from photofinish.stage.process import end_on_sigterm, run_stage

class Loader:
    def __del__(self):
        os.kill(os.getpid(), {signal})

def main():
    end_on_sigterm()
    Loader()  # Python drops what is raised in __del__
    for _ in range(300):
        time.sleep(0.1)
    print("went on")

run_stage(main)
"""
_SHUTS_DOWN = """
import atexit, os
from photofinish.stage.process import end_on_sigterm, run_stage
atexit.register(lambda: os.kill(os.getpid(), {signal}))
run_stage(end_on_sigterm)
"""
_CLEANS_UP_LONG = """
import os, signal, time
from photofinish.stage.process import end_on_sigterm, run_stage

def main():
    end_on_sigterm()
    try:
        os.kill(os.getpid(), {signal})
    finally:
        for _ in range(30):
            time.sleep(0.1)
        print("cleaned up")

run_stage(main)
time.sleep(2)
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
            "experiments": {"short": {**cnn, "epochs": _EPOCHS}},
        }
    )
    project.repro("split@digits")
    return project


@contextmanager
def _training(
    project: Project, said: str
) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
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


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _rows(project: Project, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(project.root / "mlflow.db")) as connection:
        return connection.execute(query).fetchall()


def _status_in_mlflow(project: Project) -> str:
    """Return the status of the only run."""
    [(status,)] = _rows(project, "SELECT status FROM runs")
    return str(status)


def test_a_training_that_outlives_its_dvc_or_is_ended_resumes_as_one_run(
    project: Project,
) -> None:
    with _training(project, "epoch 1/") as (dvc, trainer):
        dvc.kill()
        dvc.wait()
        assert json.loads((project.root / ".dvc" / "tmp" / "rwlock").read_text(encoding="utf-8"))
        # The first training is still about to end.
        with _training(project, "resumes after epoch") as (again, second):
            assert not _runs(trainer)
            second.terminate()
            outputs = [each.communicate()[0] for each in (dvc, again)]
    assert outputs[0].endswith("stopped: terminated\n")
    assert again.returncode != 0
    assert "stopped: terminated\n" in outputs[1]
    assert "exited with 143" in outputs[1]
    assert "Traceback" not in "".join(outputs)
    assert _status_in_mlflow(project) == "KILLED"

    with _training(project, "resumes after epoch") as (dvc, trainer):
        os.killpg(dvc.pid, signal.SIGINT)
        output, _ = dvc.communicate()
    assert not _runs(trainer)
    assert output.count("interrupted\n") == 1
    # dvc prints how its shell ended: with the stage's status, or by the signal if it outlived it.
    assert "exited with 130" in output or f"exited with {-signal.SIGINT}" in output
    assert "Traceback" not in output
    assert _status_in_mlflow(project) == "KILLED"

    output = project.repro("train-cpu@short")
    assert "Stage 'split@digits' didn't change" in output
    assert "short on cpu  resumes after epoch" in output
    steps = "SELECT step FROM metrics WHERE key = 'training_loss' ORDER BY step"
    assert _rows(project, steps) == [(epoch,) for epoch in range(1, _EPOCHS + 1)]
    notes = "SELECT value FROM tags WHERE key = 'mlflow.note.content'"
    assert not [note for (note,) in _rows(project, notes) if "stopped" in note]  # how it had ended
    assert _status_in_mlflow(project) == "FINISHED"
    timings = read_record(
        project.root / "results" / "short" / "cpu" / "timings" / "timings.json", Timings
    )
    assert len(timings.resumed_at_epochs) == 3
    assert len(timings.epochs) == _EPOCHS
    assert timings.total_seconds > sum(epoch.training_seconds for epoch in timings.epochs)


@pytest.mark.parametrize(
    ("kind", "said"), [(signal.SIGINT, "interrupted\n"), (signal.SIGTERM, "stopped: terminated\n")]
)
def test_a_signal_ends_a_stage_also_where_python_drops_the_exception_and_lets_it_clean_up(
    kind: signal.Signals, said: str
) -> None:
    for code, printed in ((_SWALLOWED, ""), (_CLEANS_UP_LONG, "cleaned up\n")):
        command = [sys.executable, "-c", code.format(signal=int(kind))]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stdout) == (128 + kind, printed)
        assert ran.stderr == said


def test_sigterm_while_python_shuts_down_ends_it_without_a_word() -> None:
    code = _SHUTS_DOWN.format(signal=int(signal.SIGTERM))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (-signal.SIGTERM, "")


@pytest.mark.parametrize("module", ["photofinish.stage.process", "torch"])
def test_ctrl_c_during_the_imports_ends_in_one_line(
    tmp_path: Path,
    packed_split: PackedSplit,
    cpu_host: CpuTarget,
    make_experiment: MakeExperiment,
    module: str,
) -> None:
    stage = TrainingStage.prepare(tmp_path, make_experiment(), cpu_host, packed_split.folder)
    interrupted = _INTERRUPT_AT_IMPORT.format(
        module=module, stage=str(ROOT / "stages" / "train.py")
    )
    with stage.start("-c", interrupted) as process:
        output, _ = process.communicate()
    assert (process.returncode, output) == (130, "interrupted\n")


@pytest.mark.parametrize("script", _SCRIPTS, ids=lambda script: str(script.stem))
def test_a_python_without_the_package_or_too_old_is_explained_in_one_line(script: Path) -> None:
    old = (
        "import runpy, sys; sys.version_info = (3, 10, 0); "
        "sys.path.insert(0, {!r}); runpy.run_path({!r})"
    )
    for command, said in (
        ([sys.executable, "-E", "-S", str(script)], "No module named"),
        (
            [sys.executable, "-c", old.format(str(script.parent), str(script))],
            "it is older than Python 3.11",
        ),
    ):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 1
        assert said in ran.stderr
        assert "activate the environment" in ran.stderr
        assert ran.stderr.count("\n") == 1
