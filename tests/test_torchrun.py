"""The stage under the real torchrun: two processes over gloo, on one machine and as two nodes, killed in every way."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, MakeExperiment
from training_stage import TrainingStage, read_until, wait_for

from photofinish.data.packed import PackedSplit
from photofinish.machine.fingerprint import CpuHost
from photofinish.results.records import Timings, read_history, read_record

pytestmark = pytest.mark.slow

_LONG = {"model": {"name": "cnn", "channels": (8, 16), "hidden": (16,)}, "epochs": 60}
_ENDLESS = {**_LONG, "epochs": 100_000}
_MOST_SECONDS_AFTER_A_KILL = 30.0

MakeStage = Callable[..., TrainingStage]


@pytest.fixture
def make_stage(
    tmp_path: Path, packed_split: PackedSplit, cpu_host: CpuHost, make_experiment: MakeExperiment
) -> MakeStage:
    """A stage in a folder of its own: `make_stage("a", processes=2, epochs=3)`."""

    def make(name: str, processes: int = 2, **overrides: object) -> TrainingStage:
        experiment = make_experiment(**{"optimizer": {"name": "sgd", "lr": 0.003}, **overrides})
        host = cpu_host.model_copy(update={"processes": processes})
        return TrainingStage.prepare(tmp_path / name, experiment, host, packed_split.folder)

    return make


def _finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def _ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """In the order of their ranks."""
    found = [
        child
        for child in psutil.Process(process.pid).children()
        if "RANK" in child.environ() and "worker" not in "".join(child.cmdline())
    ]
    return sorted(found, key=lambda child: int(child.environ()["RANK"]))


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _statuses_in_mlflow(stage: TrainingStage) -> list[str]:
    with closing(sqlite3.connect(stage.folder / "mlflow.db")) as connection:
        return [status for (status,) in connection.execute("SELECT status FROM runs")]


@contextmanager
def _training(stage: TrainingStage) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """The stage's process and its ranks, once there is a checkpoint."""
    with stage.start_with_a_checkpoint_each_epoch() as process:
        read_until(process, "epoch 2/")
        ranks = _ranks_of(process)
        try:
            yield process, ranks
        finally:
            for each in (*ranks, process):
                if each.is_running() if isinstance(each, psutil.Process) else each.poll() is None:
                    each.kill()


def test_two_processes_say_as_much_as_one_and_learn_the_same_within_rounding_and_again_the_same_bits(
    make_stage: MakeStage,
) -> None:
    alone, two, again = make_stage("alone", 1), make_stage("two"), make_stage("again")
    outputs = []
    for stage in (alone, two, again):
        with stage.start() as process:
            outputs.append(_finish(process))
    without_speeds = [re.sub(r"[\d,]+ images/s|.*take the times with care.*\n", "", output) for output in outputs]
    assert without_speeds[0] == without_speeds[1] == without_speeds[2]
    assert two.learned() == again.learned()
    for ours, theirs in zip(*(read_history(stage.out / "learned") for stage in (alone, two)), strict=True):
        assert theirs.training_loss == pytest.approx(ours.training_loss, rel=1e-5)
        assert theirs.validation_accuracy == ours.validation_accuracy
    counts = [read_record(stage.out / "timed" / "timings.json", Timings) for stage in (alone, two)]
    assert [(timings.device_count, timings.host.processes) for timings in counts] == [(1, 1), (2, 2)]
    assert counts[1].startup_seconds > counts[0].startup_seconds  # starting the processes is part of the job


def test_a_mistake_about_the_network_ends_all_processes_with_its_key_and_the_status_of_a_mistake(
    make_stage: MakeStage,
) -> None:
    with make_stage("wrong", model={"name": "lenet"}).start() as process:
        output, _ = process.communicate()
    assert process.returncode == 2
    assert "error: experiments.small.model lenet needs images of at least 16x16 pixels" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("killed", [0, 1])
def test_one_killed_process_ends_all_with_one_clear_message_and_the_next_run_ends_with_the_same_bits(
    make_stage: MakeStage, killed: int
) -> None:
    undisturbed, stage = make_stage("undisturbed", **_LONG), make_stage("killed", **_LONG)
    with undisturbed.start() as process:
        _finish(process)
    with _training(stage) as (process, ranks):
        ranks[killed].kill()
        seconds = wait_for(lambda: process.poll() is not None, most_seconds=60)
        assert process.stdout
        output = process.stdout.read()
    print(f"all ended {seconds:.1f} s after rank {killed} was killed")
    assert process.returncode == 1
    assert not any(map(_runs, ranks))
    [said] = [line for line in output.splitlines() if "epoch" not in line]
    assert said.startswith(f"error: process {killed} of 2 (counted from 0) was killed by SIGKILL")
    assert said.endswith("Run `dvc repro` again: it goes on from the last checkpoint")
    wait_for(lambda: _statuses_in_mlflow(stage)[0] in ("FAILED", "KILLED"))
    with stage.start() as process:
        assert "goes on after epoch" in _finish(process)
    assert stage.learned() == undisturbed.learned()
    assert _statuses_in_mlflow(stage) == ["FINISHED"]


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_processes_end_soon_after_the_stage_that_started_them(make_stage: MakeStage, kind: signal.Signals) -> None:
    stage = make_stage("endless", **_ENDLESS)
    with _training(stage) as (process, ranks):
        process.send_signal(kind)
        process.wait(_MOST_SECONDS_AFTER_A_KILL)
        wait_for(lambda: not any(map(_runs, ranks)), most_seconds=_MOST_SECONDS_AFTER_A_KILL)
        assert process.stdout
        said = [line for line in process.stdout.read().splitlines() if "epoch" not in line]
    if kind == signal.SIGKILL:
        assert process.returncode == -kind
    else:
        expected = {signal.SIGTERM: (143, ["stopped: terminated"]), signal.SIGINT: (130, ["interrupted"])}
        assert (process.returncode, said) == expected[kind]
    # The first process may hear of the signal first, or of the end of the other.
    wait_for(lambda: _statuses_in_mlflow(stage)[0] in ("FAILED", "KILLED"))


def test_a_process_that_hangs_in_native_code_ends_with_the_others(make_stage: MakeStage) -> None:
    stage = make_stage("stopped", **_ENDLESS)
    with _training(stage) as (process, ranks):
        ranks[1].suspend()  # so that the other waits for it in a collective, where Python hears no signal
        process.terminate()
        wait_for(lambda: not _runs(ranks[0]), most_seconds=_MOST_SECONDS_AFTER_A_KILL)
        wait_for(lambda: process.poll() is not None and not _runs(ranks[1]), most_seconds=60)
    assert process.returncode == 143


def test_a_mistake_is_told_once_and_nothing_is_left_behind(make_stage: MakeStage) -> None:
    stage = make_stage("mistaken", 3, batch_size=2)
    with stage.start() as process:
        output, _ = process.communicate()
    assert process.returncode == 2
    assert output.startswith("error: experiments.small.batch_size is 2, and 3 devices or processes share each batch")
    assert not stage.out.exists()


def test_a_fault_in_every_process_is_told_once(make_stage: MakeStage) -> None:
    stage = make_stage("diverged", optimizer={"name": "sgd", "lr": 1e30})
    with stage.start() as process:
        output, _ = process.communicate()
    assert process.returncode == 1
    assert output.count("the loss is no longer finite") == output.count("\n") == 1, output
    assert _statuses_in_mlflow(stage) == ["FAILED"]


def test_two_nodes_started_by_hand_learn_what_two_processes_of_one_node_learn(make_stage: MakeStage) -> None:
    together, apart, other = make_stage("together"), make_stage("apart"), make_stage("other")
    with together.start() as process:
        _finish(process)
    outputs = _two_nodes(apart, other)
    assert apart.learned() == together.learned()
    assert not other.out.exists()
    assert "epoch 3/3" in outputs[0]
    assert outputs[1] == ""


def test_nodes_with_different_data_are_refused_by_name(make_stage: MakeStage, tmp_path: Path) -> None:
    one, other = make_stage("one"), make_stage("other")
    shutil.copytree(one.data, tmp_path / "changed")
    manifest = tmp_path / "changed" / "manifest.json"
    manifest.write_text(manifest.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    outputs = _two_nodes(one, TrainingStage(other.folder, tmp_path / "changed", other.out), status=1)
    assert all(re.search(r"error: process 1 \(on .*\) has other data \(data/splits\) than", text) for text in outputs)
    assert not one.out.exists()


def _two_nodes(first: TrainingStage, second: TrainingStage, status: int = 0) -> list[str]:
    """Run torchrun twice, as on two machines with a project folder each; what each of them said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "DVC_"))}
    with ExitStack() as stack:
        nodes = []
        for rank, stage in enumerate((first, second)):
            command = [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
                *("--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", str(port)),
                *(str(ROOT / "stages" / "train.py"), *stage.arguments()),
            ]
            environment = {
                name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "DVC_"))
            }
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            nodes.append(stack.enter_context(subprocess.Popen(command, cwd=stage.folder, env=environment, **pipes)))  # type: ignore[call-overload]
        outputs = [node.communicate()[0] for node in nodes]
    assert [node.returncode for node in nodes] == [status, status], outputs
    return outputs
