"""Several processes learn what one does, within rounding, and are killed in every way."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
import recipe
import torch
from conftest import MakeExperiment
from rank_process import run_rank
from torch import nn
from training_process import FORK_SERVER, STAGE, ForkedProcess, Start
from training_stage import TrainingStage, read_until, runs, wait_for

from photofinish.data.packed import PackedSplit
from photofinish.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED, ConfigError
from photofinish.machine.fingerprint import CpuTarget
from photofinish.results.records import TrainingTimes, read_record
from photofinish.runs.run import Run
from photofinish.training.state import AveragedWeights
from photofinish.training.world import DataParallelWorld

GENTLE = {"name": "sgd", "lr": 0.003, "momentum": 0.9}
CNN = {"name": "cnn", "channels": (4, 6), "padding": 1, "hidden": (8,)}
PLATEAU = {"name": "reduce_on_plateau", "patience": 0}
ONE_CYCLE = {"name": "one_cycle", "max_lr": 0.05}
DOUBLING = {"name": f"{recipe.__file__}:doubling"}
FREEZING = {"name": f"{recipe.__file__}:two_rates", "lr": 0.003}
Train = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def train(make_experiment: MakeExperiment, packed_split: PackedSplit, tmp_path: Path) -> Train:
    """Train with several processes, and return the observations and the result of each rank."""

    def together(processes: int, case: str = "plain", **settings: Any) -> list[dict[str, Any]]:
        experiment = make_experiment(**settings)
        folder = tmp_path / f"{case}-{processes}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        ranks = [
            FORK_SERVER.Process(
                target=run_rank,
                args=(folder, rank, processes, experiment, packed_split.folder, case),
            )
            for rank in range(processes)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(120)
            assert rank.exitcode == 0
        return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(processes)]

    return together


def assert_close(one: dict[str, Any], other: dict[str, Any]) -> None:
    torch.testing.assert_close(other["weights"], one["weights"], rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(one["metrics"], other["metrics"], strict=True):
        assert theirs.training_loss == pytest.approx(ours.training_loss, rel=1e-5)
        assert theirs.validation_loss == pytest.approx(ours.validation_loss, rel=1e-5)
        assert theirs.validation_accuracy == ours.validation_accuracy
        assert theirs.learning_rate == ours.learning_rate


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["metrics"] == other["metrics"]
    torch.testing.assert_close(one["weights"], other["weights"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("processes", "batch_size", "changes"),
    [  # of 72 images
        (2, 16, {}),
        (2, 35, {"model": CNN}),
        (3, 71, {"input": {"name": "loader"}}),  # fewer images than processes in the last batch
        (2, 35, {"input": {"name": "loader"}, "schedule": PLATEAU, "epochs": 4}),
        (2, 16, {"optimizer": {"name": "adamw", "lr": 0.01}, "schedule": ONE_CYCLE}),
        (2, 16, {"precision": "fp16"}),
        (2, 35, {"batch_transform": DOUBLING}),
        (2, 35, {"model": {"name": "mlp", "hidden": (8, 8)}, "optimizer": FREEZING, "ema": 0.9}),
    ],
    ids=["plain", "channels last", "loader", "plateau", "one cycle", "fp16", "doubled", "frozen"],
)
def test_several_processes_learn_what_one_learns_from_the_same_batches(
    train: Train, processes: int, batch_size: int, changes: dict[str, Any]
) -> None:
    settings = {"optimizer": GENTLE, "batch_size": batch_size, **changes}
    [alone], ranks = train(1, **settings), train(processes, **settings)
    if "precision" not in changes:
        assert_close(alone, ranks[0])
    steps = zip(*(rank["labels"] for rank in ranks), strict=True)
    assert [sorted(chain.from_iterable(step)) for step in steps] == [
        sorted(labels) for labels in alone["labels"]
    ]
    assert sum(rank["validation_images"] for rank in ranks) == alone["validation_images"]
    for rank in ranks[1:]:
        assert_same(rank, ranks[0])


def test_repeating_and_resuming_with_three_processes_gives_the_same_bits(train: Train) -> None:
    once, again, resumed = (
        train(3, case, optimizer=GENTLE) for case in ("dropout", "dropout", "dropout resumed")
    )
    for other in (again, resumed):
        assert_same(other[0], once[0])


OWN_WEIGHTED = """
import torch
def weighted(outputs, targets):
    weights = torch.tensor([1.0, 5.0, 0.2])[targets]
    losses = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
    return (weights * losses).sum(), weights.sum()
"""


def test_a_weighted_loss_is_divided_by_the_batchs_weight(train: Train, tmp_path: Path) -> None:
    (tmp_path / "losses.py").write_text(OWN_WEIGHTED, encoding="utf-8")
    built_in = {"name": "cross_entropy", "weight": (1.0, 5.0, 0.2)}
    own = {"name": f"{tmp_path}/losses.py:weighted"}
    settings = {"optimizer": GENTLE, "batch_size": 71, "epochs": 2}
    [alone], ranks = train(1, loss=built_in, **settings), train(3, loss=own, **settings)
    assert_close(alone, ranks[0])
    [in_fives] = train(1, loss=own, validation_batch_size=5, **settings)
    assert_close(alone, in_fives)


def test_dropout_draws_from_another_stream_in_each_process(train: Train) -> None:
    [alone], ranks = train(1, "dropout"), train(2, "dropout")
    first, second, single = (
        each["drawn"][::5] for each in (*ranks, alone)
    )  # at the first of five steps an epoch
    assert first == single
    assert not set(first) & set(second)


def test_a_loss_that_is_not_finite_in_one_process_ends_all_with_one_message(train: Train) -> None:
    ranks = train(2, "not finite in rank 1")
    assert "epoch 1, at step 2 of 5. The training has diverged" in ranks[1]["error"]
    assert ranks[0]["error"] == ranks[1]["error"]


def test_a_batch_with_fewer_images_than_processes_is_an_error_that_names_both_keys(
    make_experiment: MakeExperiment, cpu_host: CpuTarget, tmp_path: Path
) -> None:
    host = cpu_host.model_copy(update={"processes": 4})
    run = Run("tiny", "cpu", make_experiment(batch_size=3), host, tmp_path, tmp_path)
    with pytest.raises(
        ConfigError, match=r"experiments\.tiny\.batch_size is 3, but 4 .*devices\.cpu\.processes"
    ):
        run.check()


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 35, "accumulate": 17},  # 18 and 17 images
        {"batch_size": 15, "accumulate": 5, "batch_transform": DOUBLING},  # 16 and 14
    ],
    ids=["odd", "doubled"],
)
def test_uneven_shares_have_equally_many_parts(train: Train, settings: dict[str, Any]) -> None:
    ranks = train(2, "dropout", optimizer=GENTLE, **settings)
    assert len(ranks[0]["drawn"]) == len(ranks[1]["drawn"])
    assert_same(*ranks)


def test_averaged_weights_share_the_process_group_which_cannot_be_copied() -> None:
    group = threading.Lock()
    network = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2, process_group=group))
    averaged = AveragedWeights(network, 0.9).network
    assert averaged[1].process_group is group  # type: ignore[index]
    assert averaged[1] is not network[1]  # type: ignore[index]


# -- DataParallel, whose GPUs are made up ----------


def test_data_parallel_uses_its_devices_and_keeps_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(nn, "DataParallel", wrap := Mock())
    devices = (torch.device("cuda", 1), torch.device("cuda", 0))
    team, network = DataParallelWorld(devices, devices[1]), nn.Linear(2, 2)
    assert team.parallel(network) is wrap.return_value
    wrap.assert_called_once_with(network, list(devices), devices[1])
    assert (team.device_count, team.size, list(network.state_dict())) == (2, 1, ["weight", "bias"])


EPOCHS = 90  # so many that it can be ended three times
CHECKPOINT_EACH_EPOCH = f"""
import runpy, sys, photofinish.runs.stage, photofinish.runs.training
photofinish.runs.training.CHECKPOINT_SECONDS = 0
photofinish.runs.training.CHECKPOINT_TIMES = 0
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


@pytest.mark.slow
def test_ranks_killed_in_all_ways_resume(make_stage: MakeStage, undisturbed: TrainingStage) -> None:
    # Each start takes many seconds, so one training is killed in all ways.
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


@pytest.mark.slow
def test_the_processes_end_soon_after_their_stage_was_killed(make_stage: MakeStage) -> None:
    with training(make_stage("endless", epochs=100_000), "epoch 1/") as (process, ranks):
        process.kill()
        wait_for(lambda: not any(map(runs, ranks)))
    assert process.returncode == -signal.SIGKILL
