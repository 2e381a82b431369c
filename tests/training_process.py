"""Training stages in processes forked from one with torch imported, which saves seconds each."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Self

import warm_python

from photofinish.tracking import client

if TYPE_CHECKING:
    from photofinish.results.measured import Measured
    from photofinish.runs.run import Run

STAGE = Path(__file__).parent.parent / "stages" / "train.py"
FILE_OPERATIONS = frozenset({"os.remove", "os.rename", "os.rmdir", "shutil.rmtree"})
RENAMES = frozenset({"os.rename"})

FORK_SERVER = multiprocessing.get_context("forkserver")
# Slow imports, with torch._dynamo, which the optimizers import. Tests' modules aren't found there.
_STAGES = [f"photofinish.runs.{name}" for name in ("stage", "train")]
FORK_SERVER.set_forkserver_preload(["pytest", "torch._dynamo", *_STAGES])


@dataclass(frozen=True)
class KillBefore:
    """The process kills itself just before its n-th operation on files, counted from 1."""

    number: int
    operations: frozenset[str] = FILE_OPERATIONS


NEVER = KillBefore(0)


@dataclass(frozen=True)
class Start:
    """Settings for a forked stage."""

    mlflow: bool = False
    """Use MLflow, whose start takes most of the time of a test that kills dozens of trainings."""
    settings: dict[str, object] = field(default_factory=dict)
    """Values of module attributes, by their full names."""
    ranks: tuple[str, ...] = ()
    """Arguments with which Python starts several processes, instead of the stage's script."""
    kill: KillBefore = NEVER


WITHOUT_MLFLOW = Start()
CHECKPOINT_EACH_EPOCH: dict[str, object] = {
    "photofinish.runs.training.CHECKPOINT_SECONDS": 0.0,
    "photofinish.runs.training.CHECKPOINT_TIMES": 0,
}


class NoTracker(client.NoTracker):
    """Stands for the stage's tracker, and does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None: ...

    def start(self, *_arguments: object) -> None: ...


def train_here(run: Run) -> None:
    """Train as the stage does, on the CPU in this process and without MLflow."""
    from photofinish.runs.train import train
    from photofinish.training.torch_device import CPU
    from photofinish.training.world import World

    train(run, World(CPU), client.NoTracker(), 0.0)


def measure_here(run: Run, seconds: float | None = 0.1) -> Measured:
    """Measure as the stage does, on the CPU in this process. Return the record as written."""
    from photofinish.config.experiment import step_settings
    from photofinish.measure.measure import measure
    from photofinish.results import measured as records
    from photofinish.training.torch_device import CPU
    from photofinish.training.world import World

    steps = replace(run, experiment=step_settings(run.experiment))
    measured = measure(steps, World(CPU), seconds, run.experiment.epochs, 0.0)
    assert measured
    records.write_measured(run.out / records.MEASURED_FOLDER, measured)
    written = records.read_measured(run.out / records.MEASURED_FOLDER / records.MEASURED)
    assert isinstance(written, records.Measured)
    return written


class ForkedProcess:
    """A process and what it prints, with as much of Popen's ways as the tests use."""

    def __init__(
        self, folder: Path, arguments: list[str], environment: Mapping[str, str], start: Start
    ) -> None:
        from conftest import keep_known_code  # which no fork imports

        keep_known_code(folder)
        reader, writer = FORK_SERVER.Pipe(duplex=False)
        python = warm_python.executable() if start.mlflow else sys.executable
        run = folder, arguments, dict(environment), start, python, writer
        self._process = FORK_SERVER.Process(target=_run, args=run)
        self._process.start()
        writer.close()
        self.stdout = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()
        assert self._process.pid
        self.pid: int = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.wait()
        self.stdout.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self.returncode

    def communicate(self) -> tuple[str, None]:
        with self:
            return self.stdout.read(), None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    folder: Path,
    arguments: list[str],
    environment: dict[str, str],
    start: Start,
    python: str,
    output: Connection,
) -> None:
    """Run the stage's script, and the programs that it starts with `python`.

    At its end, it writes its file operations to `operations.txt`.
    """
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.executable = python
    sys.path.insert(0, str(STAGE.parent))
    from photofinish.runs import stage

    # However busy the machine is, no stage loses its patience with another.
    patient: dict[str, object] = {"photofinish.stage.locks._PATIENCE_SECONDS": 600.0}
    for name, value in (patient | start.settings).items():
        module, _, setting = name.rpartition(".")
        setattr(importlib.import_module(module), setting, value)
    if not start.mlflow:
        stage.Tracker = NoTracker  # type: ignore[assignment, misc]
    seen: list[str] = []

    def note(event: str, _arguments: tuple[object, ...]) -> None:
        if event in start.kill.operations:
            seen.append(event)
            if len(seen) == start.kill.number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.argv = [str(STAGE), *arguments]
    # Several processes are run by this.
    sys.orig_argv = [sys.executable, *(start.ranks or (str(STAGE),)), *arguments]
    sys.addaudithook(note)
    runpy.run_path(str(STAGE), run_name="__main__")
    operations = "\n".join(seen)
    (folder / "operations.txt").write_text(operations, encoding="utf-8")
