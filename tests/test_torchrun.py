"""Two processes train under torchrun's launcher and are killed in every way.

Each start takes many seconds, so one training is killed in all ways.
"""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from conftest import MakeExperiment
from services import free_port
from training_process import STAGE, ForkedProcess, Start
from training_stage import TrainingStage, read_until, wait_for

from photofinish.data.packed import PackedSplit
from photofinish.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED
from photofinish.machine.fingerprint import CpuTarget
from photofinish.results.records import Timings, read_record

pytestmark = pytest.mark.slow

_EPOCHS = 90  # so many that it can be ended three times
_CNN = {"name": "cnn", "channels": (8, 16), "hidden": (16,)}

_CHECKPOINT_EACH_EPOCH = f"""
import runpy, sys, photofinish.training.checkpoint
photofinish.training.checkpoint.CHECKPOINT_SECONDS = 0
sys.path[:0] = {[str(STAGE.parent), str(Path(__file__).parent)]!r}
{{also}}
runpy.run_path({str(STAGE)!r}, run_name="__main__")
"""
_WITHOUT_MLFLOW = """
import photofinish.runs.stage
from training_process import NoTracker
photofinish.runs.stage.Tracker = NoTracker
"""

MakeStage = Callable[..., TrainingStage]


@pytest.fixture(scope="module")
def make_stage(
    tmp_path_factory: pytest.TempPathFactory,
    packed_split: PackedSplit,
    cpu_host: CpuTarget,
    make_experiment: MakeExperiment,
) -> MakeStage:
    """A stage in a folder of its own: `make_stage("a", processes=2, epochs=3)`."""

    def make(name: str, processes: int = 2, **overrides: object) -> TrainingStage:
        settings = {
            "optimizer": {"name": "sgd", "lr": 0.003},
            "model": _CNN,
            "epochs": _EPOCHS,
            **overrides,
        }
        host = cpu_host.model_copy(update={"processes": processes})
        folder = tmp_path_factory.mktemp(name)
        return TrainingStage.prepare(folder, make_experiment(**settings), host, packed_split.folder)

    return make


@pytest.fixture(scope="module")
def undisturbed(make_stage: MakeStage) -> TrainingStage:
    """Train with two processes to the end."""
    stage = make_stage("undisturbed")
    with stage.fork(Start(mlflow=True)) as process:
        begun_at_unix_seconds = time.time()
        output = process.stdout.read()
    assert process.returncode == 0, output
    timings = read_record(stage.out / "timings" / "timings.json", Timings)
    # Starting the processes, which takes half a second of the launcher's alone, is part of the job.
    assert timings.started_at_unix_seconds < begun_at_unix_seconds + 0.25
    return stage


def _ranks_of(process: ForkedProcess) -> list[psutil.Process]:
    """Return the processes in the order of their ranks."""
    children = psutil.Process(process.pid).children()
    found = [child for child in children if "RANK" in child.environ()]
    return sorted(found, key=lambda child: int(child.environ()["RANK"]))


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _statuses_in_mlflow(stage: TrainingStage) -> list[str]:
    with closing(sqlite3.connect(stage.folder / "mlflow.db")) as connection:
        return [status for (status,) in connection.execute("SELECT status FROM runs")]


@contextmanager
def _training(
    stage: TrainingStage, said: str, *, mlflow: bool = False
) -> Iterator[tuple[ForkedProcess, list[psutil.Process]]]:
    """The stage's process and its ranks, once an epoch has ended since it said that."""
    code = _CHECKPOINT_EACH_EPOCH.format(also="" if mlflow else _WITHOUT_MLFLOW)
    with stage.fork(Start(ranks=("-c", code))) as process:
        read_until(process, said)
        read_until(process, "  loss ")
        ranks = _ranks_of(process)
        try:
            yield process, ranks
        finally:
            for each in ranks:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            if process.returncode is None:
                process.kill()


def _said(process: ForkedProcess) -> list[str]:
    """But for the epochs."""
    return [line for line in process.stdout.read().splitlines() if "epoch" not in line]


def _wait_for_all_to_end(process: ForkedProcess, ranks: list[psutil.Process]) -> float:
    return wait_for(lambda: process.returncode is not None and not any(map(_runs, ranks)))


def test_ranks_killed_in_every_way_all_end_and_resume_with_the_same_bits(
    make_stage: MakeStage, undisturbed: TrainingStage
) -> None:
    stage, said = make_stage("killed"), "resumes after epoch"
    with _training(stage, "epoch 1/", mlflow=True) as (process, ranks):
        ranks[0].kill()
        _wait_for_all_to_end(process, ranks)
        *_, message = _said(process)
    assert process.returncode == EXIT_FAILED
    assert message.startswith("error: process 0 of 2 (counted from 0) was killed by SIGKILL")

    with _training(stage, said) as (process, ranks):
        process.send_signal(signal.SIGINT)
        _wait_for_all_to_end(process, ranks)
        assert (process.returncode, _said(process)) == (EXIT_INTERRUPTED, ["interrupted"])

    with _training(stage, said) as (process, ranks):
        # The other rank then waits in a collective, where Python handles no signal.
        ranks[1].suspend()
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: not _runs(ranks[0]))
        _wait_for_all_to_end(process, ranks)
        assert (process.returncode, _said(process)) == (EXIT_TERMINATED, ["stopped: terminated"])

    output, _ = stage.fork(Start(mlflow=True)).communicate()
    assert "resumes after epoch" in output
    assert f"epoch {_EPOCHS}/{_EPOCHS}" in output
    assert stage.learned() == undisturbed.learned()
    assert _statuses_in_mlflow(stage) == ["FINISHED"]


def test_torchrun_by_hand_on_two_machines_gives_the_same_bits(
    make_stage: MakeStage, undisturbed: TrainingStage
) -> None:
    """Two folders stand for two machines. Only the first one's process writes."""
    first, second = make_stage("first"), make_stage("second")
    group = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1"]
    group += ["--master-port", str(free_port())]
    with ExitStack() as stack:
        torchrun = "-m", "torch.distributed.run", *group, "--node-rank"
        nodes = [
            stack.enter_context(stage.start(*torchrun, str(rank), str(STAGE)))
            for rank, stage in enumerate((first, second))
        ]
        outputs = [node.communicate()[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert first.learned() == undisturbed.learned()
    assert not second.out.exists()


def test_the_processes_end_soon_after_the_stage_that_started_them_was_killed(
    make_stage: MakeStage,
) -> None:
    stage = make_stage("endless", epochs=100_000)
    with _training(stage, "epoch 1/") as (process, ranks):
        process.kill()
        wait_for(lambda: not any(map(_runs, ranks)))
    assert process.returncode == -signal.SIGKILL
