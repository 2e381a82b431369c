"""Two processes train under torchrun's launcher and are killed in every way.

Each start takes many seconds, so one training is killed in all ways.
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from conftest import MakeExperiment
from training_process import STAGE, ForkedProcess, Start
from training_stage import TrainingStage, read_until, runs, wait_for

from photofinish.data.packed import PackedSplit
from photofinish.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED
from photofinish.machine.fingerprint import CpuTarget
from photofinish.results.records import TrainingTimes, read_record

pytestmark = pytest.mark.slow

EPOCHS = 90  # so many that it can be ended three times
CHECKPOINT_EACH_EPOCH = f"""
import runpy, sys, photofinish.runs.stage, photofinish.training.checkpoint
photofinish.training.checkpoint.CHECKPOINT_SECONDS = 0
photofinish.training.checkpoint.CHECKPOINT_TIMES = 0
sys.path[:0] = {[str(STAGE.parent), str(Path(__file__).parent)]!r}
from training_process import NoTracker
photofinish.runs.stage.Tracker = NoTracker
runpy.run_path({str(STAGE)!r}, run_name="__main__")
"""
MakeStage = Callable[..., TrainingStage]


@pytest.fixture(scope="module")
def make_stage(
    tmp_path_factory: pytest.TempPathFactory,
    packed_split: PackedSplit,
    cpu_host: CpuTarget,
    make_experiment: MakeExperiment,
    empty_database: Path,
) -> MakeStage:
    """A stage of two processes in a folder of its own: `make_stage("a", epochs=3)`."""

    def make(name: str, epochs: int = EPOCHS) -> TrainingStage:
        experiment = make_experiment(
            optimizer={"name": "sgd", "lr": 0.003},
            model={"name": "cnn", "channels": (8, 16), "hidden": (16,)},
            epochs=epochs,
        )
        host = cpu_host.model_copy(update={"processes": 2})
        folder = tmp_path_factory.mktemp(name)
        shutil.copy(empty_database, folder)
        return TrainingStage.prepare(folder, experiment, host, packed_split.folder)

    return make


@pytest.fixture(scope="module")
def undisturbed(make_stage: MakeStage) -> TrainingStage:
    """Train with two processes to the end."""
    stage = make_stage("undisturbed")
    with forked(stage, is_warm=True) as process:
        begun_at_unix_seconds = time.time()
        output = process.stdout.read()
    assert process.returncode == 0, output
    timings = read_record(stage.out / "timings" / "timings.json", TrainingTimes)
    # Starting the processes, which takes half a second of the launcher's alone, is part of the job.
    assert timings.started_at_unix_seconds < begun_at_unix_seconds + 0.25
    return stage


def forked(stage: TrainingStage, *, is_warm: bool, **environment: str) -> ForkedProcess:
    """Start the stage, whose ranks write a checkpoint after each epoch and nothing to MLflow.

    Warm ranks start sooner, but have another parent and can't be suspended.
    """
    script = stage.folder / "rank.py"
    script.write_text(CHECKPOINT_EACH_EPOCH, encoding="utf-8")
    return stage.fork(Start(mlflow=is_warm, ranks=(str(script),)), **environment)


@contextmanager
def training(
    stage: TrainingStage, said: str, *, is_warm: bool = False, **environment: str
) -> Iterator[tuple[ForkedProcess, list[psutil.Process]]]:
    """The stage's process and its ranks in order, once it said that and an epoch has ended."""
    before = set(stage.folder.rglob("epoch-*.pt"))
    with forked(stage, is_warm=is_warm, **environment) as process:
        if said:
            read_until(process, said)
        wait_for(lambda: set(stage.folder.rglob("epoch-*.pt")) - before)
        children = psutil.Process(process.pid).children()
        ranks = [child for child in children if "RANK" in child.environ()]
        ranks.sort(key=lambda child: int(child.environ()["RANK"]))
        try:
            yield process, ranks
        finally:
            for each in ranks:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            if process.returncode is None:
                process.kill()


def said_in_the_end(process: ForkedProcess, ranks: list[psutil.Process]) -> list[str]:
    """Wait for all to end, and return what was printed but the epochs."""
    wait_for(lambda: process.returncode is not None and not any(map(runs, ranks)))
    return [line for line in process.stdout.read().splitlines() if "epoch" not in line]


def test_ranks_killed_in_every_way_all_end_and_resume_with_the_same_bits(
    make_stage: MakeStage, undisturbed: TrainingStage
) -> None:
    stage, said = make_stage("killed"), "resumes after epoch"
    with training(stage, "", is_warm=True) as (process, ranks):
        ranks[0].kill()
        *_, message = said_in_the_end(process, ranks)
    assert process.returncode == EXIT_FAILED
    assert message.startswith("error: process 0 of 2 (counted from 0) was killed by SIGKILL")

    with training(stage, said, is_warm=True) as (process, ranks):
        process.send_signal(signal.SIGINT)
        assert said_in_the_end(process, ranks) == ["interrupted"]
    assert process.returncode == EXIT_INTERRUPTED

    with training(stage, said, TORCH_ELASTIC_SHUTDOWN_TIMEOUT="1") as (process, ranks):
        # The other rank then waits in a collective, where Python handles no signal.
        ranks[1].suspend()
        process.send_signal(signal.SIGTERM)
        assert said_in_the_end(process, ranks) == ["stopped: terminated"]
    assert process.returncode == EXIT_TERMINATED

    output, _ = stage.fork(Start(mlflow=True)).communicate()
    assert said in output
    assert f"  {EPOCHS} epochs, " in output
    assert stage.learned() == undisturbed.learned()
    with closing(sqlite3.connect(stage.folder / "mlflow.db")) as connection:
        assert connection.execute("SELECT status FROM runs").fetchall() == [("FINISHED",)]


def test_the_processes_end_soon_after_the_stage_that_started_them_was_killed(
    make_stage: MakeStage,
) -> None:
    with training(make_stage("endless", epochs=100_000), "epoch 1/") as (process, ranks):
        process.kill()
        wait_for(lambda: not any(map(runs, ranks)))
    assert process.returncode == -signal.SIGKILL
