"""Many machines: which worker gets what, what is told of it, and one spread for real."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from conftest import Project
from fleet_parts import BOX, LAB, LIKE_LAB, A, Client, arrival, handing_out, like_this_with, make_head, task
from photofinish.fleet.trainings import HERE, Trainings
from training_stage import wait_for

from photofinish.errors import MistakeError, UserError
from photofinish.files import state_folder
from photofinish.fleet import jobs, spread, worker
from photofinish.fleet.jobs import clone_at, committed, git
from photofinish.fleet.spread import missing_of, require_remote, scheduler_at
from photofinish.fleet.worker import WORKER, key_of, require_dask
from photofinish.locks import sole_writer
from photofinish.machine.fingerprint import Machine


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(monkeypatch)


def running(trainings: Trainings) -> list[str]:
    """What the table shows of each machine."""
    columns = trainings.table().columns
    return [str(cell) for cell in next(column for column in columns if column.header == "running").cells]


# -- who gets what -------------------------------------------------------------------------------------


def test_machines_that_are_alike_have_the_same_keys_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert key_of(LAB, "cpu") == key_of(like_this_with(96), "cpu") != key_of(BOX, "cpu")
    other_gpu = LAB.model_copy(update={"accelerators": {"cuda": "none"}})
    assert key_of(other_gpu, "cpu") == key_of(LAB, "cpu")
    assert key_of(other_gpu, "gpu") != key_of(LAB, "gpu")
    before = key_of(LAB, "cpu")
    monkeypatch.setattr(worker, "fleet_code", lambda: "another")
    assert key_of(LAB, "cpu") != before


def test_a_worker_that_gets_nothing_is_told_why(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    with Trainings(client, [task("first")], "a worker there") as trainings:
        trainings.hear(arrival("lab-1", LAB))
        trainings.hear(arrival("box-1", BOX))
        trainings.hear(arrival("old-1", LAB, code="of last week"))
    told = capsys.readouterr().out
    assert "lab-1 is here" in told
    assert "box-1 is refused: it isn't lab (cpu.usable_cores: 96, not 64" in told
    assert "old-1 is refused: its photofinish or Dask is another" in told


def test_a_machine_without_a_worker_is_told_once_and_again_when_its_last_one_is_gone(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    with handing_out(client, task("first")) as trainings:
        trainings.look([])
        trainings.look([])
        assert capsys.readouterr().out.count("lab has no worker: waiting for a worker there (Ctrl-C") == 1
        trainings.look([A])
        assert running(trainings) == ["first 0:00"]
        trainings.look([])
        told = capsys.readouterr().out
        assert "first: a is gone; it goes to another worker" in told
        assert "lab has no worker" in told
        assert ([each.job.title for each in trainings.open], running(trainings)) == (["first"], [""])


def test_what_has_failed_is_told_apart_from_what_is_done(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    with handing_out(client, task("first"), task("second")) as trainings:
        trainings.look([A])
        client.given_now()[0].status = "finished"
        trainings.look([A])
        client.given_now()[0].fail("the loss is no longer finite")
        assert not trainings.look([A])
        assert (trainings.open, trainings.failed) == ([], ["second"])
    assert "second: failed: the loss is no longer finite" in capsys.readouterr().out


def test_what_trains_is_still_open_so_that_its_worker_is_wanted(client: Client) -> None:
    trainings = handing_out(client, task("first"), task("second"))
    trainings.look([A])
    assert [each.job.title for each in trainings.open] == ["first", "second"]


def test_a_training_that_two_projects_lack_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lacked = {None: [task("first"), task("second")], "lab": [task("second"), task("third")]}
    monkeypatch.setattr(spread.Project, "missing", lambda project, _commit: lacked[project.further])
    projects = [spread.Project(Path()), spread.Project(Path(), "lab")]
    assert [each.job.title for each in missing_of(projects, "")] == ["first", "second", "third"]


def test_on_a_further_machine_relative_paths_start_at_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        assert settings["env"]["DVC_ROOT"] == str(tmp_path.resolve())
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(UserError, match="dvc repro --pull evaluate failed"):
        spread.Project(Path("clone"), "lab").bring_back()


@pytest.mark.parametrize(
    "address", ["10.0.0.5:8786", "tcp://localhost:99999", "http://10.0.0.5:8786", "tcp://10.0.0.5"]
)
def test_what_is_no_address_of_a_head_is_told_before_anything_is_done(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program, option in ((spread, ["--listen"]), (worker, [])):
        monkeypatch.setattr("sys.argv", ["program", *option, address])
        with pytest.raises(MistakeError, match=f"{address}: a head's address is as tcp://name:8786"):
            program.main()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Dask leaves a socket open
def test_an_address_that_is_in_use_is_refused_in_a_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        told = f"{address} can't be listened at: .*Address already in use; is there another `make spread`"
        with pytest.raises(UserError, match=told), scheduler_at(address):
            pass
    gc.collect()


@pytest.mark.skipif(not socket.has_ipv6, reason="a machine without IPv6")
def test_a_head_listens_at_an_address_of_ipv6_too() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as free:
        address = f"tcp://[::1]:{free.getsockname()[1]}"
    with scheduler_at(address) as (_, reached_at):
        assert reached_at == address


def test_a_worker_says_why_it_cannot_reach_a_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker.time, "sleep", lambda _seconds: sys.exit())
    with pytest.raises(SystemExit):
        worker.serve("tls://127.0.0.1:1", None, None)  # without a certificate
    assert "not taken: TLS expects" in capsys.readouterr().out


def test_where_the_clone_has_a_worker_already_the_head_starts_no_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    here = task("small", Machine.here(), HERE)
    with sole_writer(state_folder() / "locks", WORKER), spread.worker_here([here], "tcp://head:1") as started:
        assert started is None
    assert "it must be one for tcp://head:1" in capsys.readouterr().out


def test_nothing_that_dask_logs_is_shown() -> None:
    """Among it, where the head ends while a worker speaks, a traceback at the highest level there is."""
    loggers = ("distributed.scheduler", "distributed.client", "distributed.gc", "distributed.worker")
    script = (
        "import dask, logging; from photofinish.fleet.worker import DASK\n"
        f"dask.config.set(DASK); import distributed\nfor name in {loggers}: logging.getLogger(name).critical(name)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout + ran.stderr == ""


def test_without_dask_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.util, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match="python -m pip install distributed"):
        require_dask()


# -- clones --------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ".dvc").mkdir(parents=True)
    (folder / "dvc.yaml").write_text("stages: {}\n", encoding="utf-8")
    (folder / ".dvc/config").write_text(
        "[core]\n    remote = near\n['remote \"near\"']\n    url = ../../near\n", encoding="utf-8"
    )
    for arguments in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "1"],
    ):
        git(folder, *arguments)
    return folder


def test_changes_that_are_not_committed_are_refused_by_name(repository: Path) -> None:
    (repository / "dvc.lock").write_text("made by dvc", encoding="utf-8")
    assert committed(repository) == git(repository, "rev-parse", "HEAD")
    (repository / "net.py").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"net\.py"):
        committed(repository)


def test_a_clone_comes_to_the_commit_with_the_projects_remotes_and_cache(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "deep" / "down" / "clone"
    clone_at(repository, clone, git(repository, "rev-parse", "HEAD"))
    settings = (clone / ".dvc/config.local").read_text(encoding="utf-8")
    assert f"url = {tmp_path / 'near'}" in settings
    assert f"dir = {repository / '.dvc/cache'}" in settings
    git(repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "2")
    clone_at(repository, clone, (newest := git(repository, "rev-parse", "HEAD")))
    assert git(clone, "rev-parse", "HEAD") == newest
    with pytest.raises(UserError, match=r"the commit aaaaaaaaaaaa is not in .*git push"):
        clone_at(repository, clone, "a" * 40)


def test_a_clone_that_was_cut_off_is_not_taken_for_the_project_around_it(repository: Path) -> None:
    clone = repository / ".photofinish" / "worker"
    (clone / ".git").mkdir(parents=True)
    (repository / "dvc.yaml").write_text("stages: {}  # not committed yet\n", encoding="utf-8")
    with pytest.raises(UserError, match="not a git repository"):
        clone_at(repository, clone, git(repository, "rev-parse", "HEAD"))
    assert "not committed" in (repository / "dvc.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("core.analytics=false\n", "has no default DVC remote"),
        ("remote.a.url=/a\ncore.remote=a\nremote.b.url=https://b\ncore.remote=b\n", "HTTP carries no run-cache"),
        ("remote.a.url=/a\ncore.remote=a\n", None),
    ],
)
def test_a_remote_that_carries_results_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, config: str, problem: str | None
) -> None:
    told = subprocess.CompletedProcess("dvc", 0, config)
    monkeypatch.setattr(subprocess, "run", lambda *_arguments, **_settings: told)
    with pytest.raises(UserError, match=problem) if problem else nullcontext():
        require_remote()


def test_what_the_remote_does_not_take_is_told_to_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC is replaced by one that trains, and fails to push."""
    (tmp_path / "dvc").mkdir()
    (tmp_path / "dvc/__init__.py").touch()
    (tmp_path / "dvc/__main__.py").write_text("import sys; print(*sys.argv[1:], file=open('pulled', 'a'))\n")
    (tmp_path / "dvc/cli.py").write_text(
        "def main(command):\n"
        "    if command[0] == 'push':\n"
        "        print('ERROR: 7 files failed to upload', flush=True)\n"
        "        return 1\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match=r"7 files failed to upload\. It is trained, and kept on its machine"):
        jobs.train(task("first").job)
    assert (tmp_path / "pulled").read_text() == "pull --force data/splits/digits\n"  # it starts from no weights
    with pytest.raises(UserError):
        jobs.train(task("second").job.model_copy(update={"weights": None}))
    assert (tmp_path / "pulled").read_text().endswith("pull --force data/splits/digits data/weights/second\n")


# -- for real ------------------------------------------------------------------------------------------

PARAMS: dict[str, Any] = {
    "defaults": {"epochs": 1, "batch_size": 128, "optimizer": {"name": "sgd", "lr": 0.1}},
    "devices": {"cpu": {"machine": "lab"}},
    "datasets": {"digits": {"source": "digits", "validation": 0.15, "test": 0.15}},
    "experiments": {"small": {"dataset": "digits", "model": "linear"}},
}


@pytest.fixture
def address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def head(tmp_path: Path) -> Project:
    return make_head(tmp_path / "head", PARAMS)


@pytest.fixture
def workers(head: Project, address: str) -> Iterator[dict[Path, subprocess.Popen[str]]]:
    """Two of lab, by the clones that they are to train in."""
    started = {}
    for name in ("first", "second"):
        root = head.root.with_name(name)
        head.git("clone", "--quiet", ".", str(root))
        project = Project(root, head.environment | LIKE_LAB | {"PYTHONPATH": str(root / "src")})
        started[root / ".photofinish/worker"] = project.start("python", "-m", "photofinish.fleet.worker", address)
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_another_machines_training_is_done_there_though_a_worker_is_killed_and_comes_back_once(
    head: Project, address: str, workers: dict[Path, subprocess.Popen[str]]
) -> None:
    command = ("python", "-m", "photofinish.fleet.spread", "--listen", address)
    spread = head.start(*command)
    wait_for(lambda: any(clone.is_dir() for clone in workers) or spread.poll() is not None)
    next(process for clone, process in workers.items() if clone.is_dir()).kill()
    told, _ = spread.communicate()
    assert spread.returncode == 0, told
    assert "1 to be trained" in told
    assert told.count("small on cpu of lab: done by") == 1
    assert (head.root / "report/index.html").is_file()
    again = head.run(*command)
    assert "0 to be trained" in again.stdout, again.stderr
