"""Many machines: which worker may run what, clones, one spread for real, and a team's clones."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import warm_python
from conftest import ONE_THREAD, Project, clone_project, commit_all
from distributed import Scheduler
from mlflow import MlflowClient
from services import WARNS, mlflow_server
from training_stage import read_until, wait_for

from photofinish.errors import EXIT_INTERRUPTED, UserError
from photofinish.git import git
from photofinish.machine.fingerprint import Machine
from photofinish.remote.worker import CODE, clone_at, code_version, committed, key_of, warn_if_open
from photofinish.tracking import mlflow_worker

LIKE_LAB = {"OMP_NUM_THREADS": "1", "OMP_DYNAMIC": "false"}
"""Variables of the fingerprint: with these, this machine is the one called lab."""


def machine_with(cores: int) -> Machine:
    """This machine with another number of cores."""
    here = Machine.here()
    return here.model_copy(
        update={"cpu": replace(here.cpu, usable_cores=cores, cgroup_cores_limit=None)}
    )


# -- who may run what ----------


def test_only_alike_machines_have_the_same_keys() -> None:
    lab = machine_with(96)
    assert key_of(lab, "cpu") == key_of(machine_with(96), "cpu") != key_of(machine_with(64), "cpu")
    without_gpu = lab.model_copy(update={"accelerators": {"cuda": "none"}})
    assert key_of(without_gpu, "cpu") == key_of(lab, "cpu")
    assert key_of(without_gpu, "gpu") != key_of(lab, "gpu")


# -- clones ----------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ".dvc").mkdir(parents=True)
    (folder / "dvc.yaml").write_text("stages: {}\n", encoding="utf-8")
    (folder / ".dvc/config").write_text(
        "[core]\n    remote = near\n['remote \"near\"']\n    url = ../../near\n", encoding="utf-8"
    )
    commit_all(folder)
    return folder


def test_a_clone_has_the_commit_and_the_projects_cache(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "deep" / "down" / "clone"
    clone_at(repository, clone, git(repository, "rev-parse", "HEAD"))
    settings = (clone / ".dvc/config.local").read_text(encoding="utf-8")
    assert f"url = {tmp_path / 'near'}" in settings
    assert f"dir = {repository / '.dvc/cache'}" in settings
    clone_at(repository, clone, newest := commit_all(repository))
    assert git(clone, "rev-parse", "HEAD") == newest
    with pytest.raises(UserError, match=r"the commit aaaaaaaaaaaa is not in .*git push"):
        clone_at(repository, clone, "a" * 40)
    (repository / "dvc.lock").write_text("made by dvc", encoding="utf-8")
    assert committed(repository) == newest
    (repository / "net.py").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"net\.py"):
        committed(repository)


def test_an_unfinished_clone_does_not_change_the_project_around_it(repository: Path) -> None:
    clone = repository / ".photofinish" / "worker"
    (clone / ".git").mkdir(parents=True)
    (repository / "dvc.yaml").write_text("stages: {}  # not committed yet\n", encoding="utf-8")
    with pytest.raises(UserError, match="not a git repository"):
        clone_at(repository, clone, git(repository, "rev-parse", "HEAD"))
    assert "not committed" in (repository / "dvc.yaml").read_text(encoding="utf-8")


# -- who can reach a worker ----------


def own_address() -> str:
    """An address of this machine by which others may reach it."""
    every = chain.from_iterable(psutil.net_if_addrs().values())
    addresses = [each.address for each in every if each.family is socket.AF_INET]
    others = [address for address in addresses if not address.startswith("127.")]
    return others[0] if others else pytest.skip("this machine has no network")


def running_in(folder: Path) -> list[psutil.Process]:
    """Return the processes whose folder is this one, or below it."""
    running = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or is another user's
            if Path(process.cwd()).is_relative_to(folder):
                running.append(process)
    return running


def listened_at(processes: Iterable[psutil.Process]) -> set[str]:
    """Addresses at which these processes listen."""
    sockets = chain.from_iterable(each.net_connections("inet") for each in processes)
    return {each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN}


async def serve_a_head(host: str, folder: Path, code: str) -> tuple[set[str], str]:
    """Start a head, and a worker for it. Return where the worker listens, and what it prints."""
    (folder / "stages").mkdir()
    (folder / "stages/plan.py").touch()
    command = [warm_python.executable(), "-m", "photofinish", "worker"]
    options = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    async with Scheduler(host=host, port=0, **options) as head:
        head.task_metadata[CODE] = code
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen([*command, head.address], cwd=folder, text=True, **both) as worker:
            while not head.workers and worker.poll() is None:
                await asyncio.sleep(0.05)
            listening = listened_at(psutil.Process(int(e.pid)) for e in head.workers.values())
            worker.terminate()
            return listening, worker.communicate()[0]


def test_a_worker_listens_where_its_head_does_and_warns_if_others_can(tmp_path: Path) -> None:
    host = own_address()
    listening, printed = asyncio.run(serve_a_head(host, tmp_path, code_version()))
    assert listening == {"127.0.0.1", host}
    assert f"anyone who can reach tcp://{host}" in printed


def test_a_worker_with_other_code_is_refused(tmp_path: Path) -> None:
    listening, printed = asyncio.run(serve_a_head("127.0.0.1", tmp_path, "of last week"))
    assert not listening
    assert "another version of photofinish or Dask" in printed


def test_only_an_open_address_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    for address in ("tcp://127.0.0.1:1", "tcp://localhost:1", "tcp://[::1]:1", "tls://10.0.0.5:1"):
        warn_if_open(address)
    assert capsys.readouterr().out == ""
    for address in ("tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://10.0.0.5:1"):
        warn_if_open(address)
        assert address in capsys.readouterr().out


# -- for real ----------

PARAMS: dict[str, Any] = {
    "defaults": {"epochs": 1, "batch_size": 128, "optimizer": {"name": "sgd", "lr": 0.1}},
    "devices": {"cpu": {"machine": "lab"}},
    "datasets": {"digits": {"source": "digits", "validation": 0.15, "test": 0.15}},
    "experiments": {
        "small": {"dataset": "digits", "model": "linear"},
        "diverging": {
            "dataset": "digits",
            "model": {"name": "mlp", "hidden": [8]},
            "optimizer": {"name": "sgd", "lr": 1e30},
        },
    },
}
StartWorker = Callable[[str], subprocess.Popen[str]]


def warm_path(project: Project) -> str:
    return warm_python.path(project.environment["PATH"])


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A committed project that knows a machine called lab, with a DVC remote in a folder."""
    folder = tmp_path_factory.mktemp("fleet")
    project = clone_project(folder / "head").without_mlflow()
    project.environment["CUDA_VISIBLE_DEVICES"] = ""
    recorded = project.run("python", "-m", "photofinish", "machine", "lab", **LIKE_LAB)
    assert recorded.returncode == 0, recorded.stderr
    project.write_params(PARAMS)
    added = project.run("dvc", "remote", "add", "--default", "shared", str(folder / "remote"))
    assert added.returncode == 0, added.stderr
    project.commit()
    return project


@pytest.fixture
def start_worker(head: Project, address: str) -> Iterator[StartWorker]:
    """Start a worker like lab, in a clone of this name."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str) -> subprocess.Popen[str]:
        root = head.root.with_name(name)
        if not root.exists():
            head.git("clone", "--quiet", ".", str(root))
        project = Project(root, head.environment | LIKE_LAB | {"PYTHONPATH": str(root / "src")})
        command = ("python", "-m", "photofinish", "worker", address)
        started.append(project.start(*command, PATH=warm_path(head)))
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()


@pytest.mark.slow
def test_another_machine_trains_and_evaluates_though_a_worker_is_killed_and_a_failure_is_reported(
    head: Project, address: str, start_worker: StartWorker
) -> None:
    workers = {name: start_worker(name) for name in ("first", "second")}
    command = ("python", "-m", "photofinish", "spread", "--listen", address)
    spreading = head.start(*command, PATH=warm_path(head))
    clones = {name: head.root.with_name(name) / ".photofinish/worker" for name in workers}
    wait_for(
        lambda: any(clone.is_dir() for clone in clones.values()) or spreading.poll() is not None
    )
    assert spreading.poll() is None, spreading.communicate()[0]
    next(workers[name] for name, clone in clones.items() if clone.is_dir()).kill()
    output, _ = spreading.communicate()
    assert spreading.returncode == 1, output
    assert "trainings to run: 2" in output
    assert output.count("small on cpu of lab: done") == 1, output
    assert output.count("diverging on cpu of lab: failed: ") == 1
    assert "evaluation of small: done" in output

    head.write_params({**PARAMS, "experiments": SMALL})
    head.commit()
    head.repro("plan")
    again = head.run(*command)
    assert "trainings to run: 0" in again.stdout, again.stderr
    assert "Running stage 'evaluate@small'" not in again.stdout
    assert (head.root / "report/index.html").is_file()
    evaluation = json.loads(
        (head.root / "results/small/evaluation/evaluation.json").read_text(encoding="utf-8")
    )
    assert set(evaluation["devices"]) == {"cpu"}


@pytest.mark.slow
def test_the_head_trains_its_own_and_ctrl_c_ends_all_it_started(
    head: Project, address: str
) -> None:
    endless = {"dataset": "digits", "model": "linear", "epochs": 1_000_000}
    head.write_params({**PARAMS, "devices": ONE_THREAD, "experiments": {"endless": endless}})
    head.commit()
    command = ("python", "-m", "photofinish", "spread", "--listen", address)
    with head.start(*command, PATH=warm_path(head)) as spreading:
        read_until(spreading, "epoch 1/")
        started = running_in(head.root)
        assert any("stages/train.py" in process.cmdline() for process in started)
        assert listened_at(started) == {"127.0.0.1"}
        spreading.send_signal(signal.SIGINT)
        output, _ = spreading.communicate()
    assert spreading.returncode == EXIT_INTERRUPTED, output
    wait_for(lambda: not running_in(head.root))


SMALL = {"small": PARAMS["experiments"]["small"]}
TEAM_PARAMS = {**PARAMS, "devices": ONE_THREAD, "experiments": SMALL}
RESULT, REPORT = "results/small/cpu/timings/timings.json", "report/index.html"


class Team(NamedTuple):
    first: Project
    second: Project
    pulled: str
    """Output of the second one's pull."""
    tracking: str

    def runs(self) -> dict[str, str]:
        """Return the names of all runs, by run id."""
        client = MlflowClient(self.tracking)
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        return {run.info.run_id: run.info.run_name for run in client.search_runs(experiments)}


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[Team]:
    """Two clones: the first has trained, committed and pushed, the second has pulled."""
    folder = tmp_path_factory.mktemp("team")
    shutil.copy(empty_database, folder / "server.db")
    with mlflow_server(folder) as tracking:
        first = clone_project(folder / "first" / "project")
        first.environment.update({"MLFLOW_TRACKING_URI": tracking, "CUDA_VISIBLE_DEVICES": ""})
        first.write_params(TEAM_PARAMS)
        join(first, folder / "remote")
        first.repro()
        sync_in(first)
        first.commit()
        assert first.run("dvc", "push", "--run-cache").returncode == 0
        root = folder / "second" / "project"
        first.git("clone", "--quiet", ".", str(root))
        second = Project(root, first.environment | {"PYTHONPATH": str(root / "src")})
        join(second, folder / "remote")
        yield Team(first, second, second.repro("--pull"), tracking)


def join(project: Project, remote: Path) -> None:
    """Add a remote as `dvc remote add --default --local` does, four times as fast."""
    text = f"[core]\nremote = shared\n['remote \"shared\"']\nurl = {remote}\n"
    (project.root / ".dvc/config.local").write_text(text, encoding="utf-8")


def sync_in(project: Project) -> None:
    """Bring MLflow up to date in this process, which has imported it already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project.root)
        for name in ("MLFLOW_TRACKING_URI", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "PATH"):
            patch.setenv(name, project.environment[name])
        mlflow_worker.bring_up_to_date(5000)


@pytest.mark.slow
@WARNS
def test_a_fresh_clone_shows_all_without_training_and_mlflow_has_each_once(team: Team) -> None:
    before = team.runs()
    assert "Running stage 'train" not in team.pulled
    for file in (RESULT, REPORT):
        assert (team.second.root / file).read_bytes() == (team.first.root / file).read_bytes()
    sync_in(team.second)
    assert team.runs() == before
    assert len(before) == 2
