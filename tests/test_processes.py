"""Processes: files and locks, when they began, what they record, and what they leave."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import ROOT, commit_all
from training_stage import read_until, wait_for

from photofinish import files
from photofinish.errors import EXIT_INTERRUPTED, UserError
from photofinish.files import project_root
from photofinish.machine.host import git_commit
from photofinish.stage.locks import exclusive, exclusive_machine, machine_lock
from photofinish.stage.process import kill_tree, note_start_of_stage, seconds_since_stage_start

FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("step", "error"),
    [("fsync", FULL), ("replace", FULL), ("fsync", KeyboardInterrupt("made up"))],
    ids=str,
)
def test_a_failed_or_interrupted_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, step, Mock(side_effect=error))
    with pytest.raises(type(error), match=re.escape(str(error))):
        files.write_bytes_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_equal_values_give_identical_json_below_any_folder(tmp_path: Path) -> None:
    path = tmp_path / "a" / "a.json"
    files.write_json_atomically(path, {"b": 1, "a": "größe"})
    files.write_json_atomically(tmp_path / "b.json", {"a": "größe", "b": 1})
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_mode & 0o777 == 0o644
    assert text == '{\n  "a": "größe",\n  "b": 1\n}\n'
    assert (tmp_path / "b.json").read_text(encoding="utf-8") == text


def test_an_unwritable_folder_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(files.state_folder().iterdir()) == []
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(UserError, match=r"\.photofinish can't be written: make the project's"):
        files.state_folder()


_HOLD = """
import os, sys, time
from pathlib import Path
from photofinish.stage.locks import exclusive, exclusive_machine

names = sys.argv[1:]
with exclusive(Path(), *names) if names else exclusive_machine("training small"):
    if os.fork() == 0:
        time.sleep(60)  # a child must not keep the lock
        os._exit(0)
    print("held", flush=True)
    sys.stdin.readline()
"""
Hold = Callable[..., subprocess.Popen[str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def hold(folder: Path, request: pytest.FixtureRequest) -> Hold:
    """Start a process that holds these names, or the machine, until it reads a line.

    Each has a TMPDIR of its own, as jobs of a cluster have.
    """

    def start(*names: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", _HOLD, *names],
            cwd=folder,
            env=os.environ | {"TMPDIR": tempfile.mkdtemp(dir=folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

        def end() -> None:
            with process, suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        request.addfinalizer(end)
        return process

    return start


@pytest.mark.parametrize("wanted", [("results/a",), ("results/c", "results/b")])
def test_a_second_writer_waits_with_a_message_and_fails(
    folder: Path, hold: Hold, wanted: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    read_until(hold("results/a", "results/b"), "held")
    refused = pytest.raises(UserError, match=wanted[-1])
    with refused, exclusive(folder, *wanted, patience_seconds=0.1):
        pytest.fail("it was let in")
    assert capsys.readouterr().err == f"waiting for the process that is using {wanted[-1]}\n"
    with exclusive(folder, "results/c"):  # the lock of something else
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("names", [("results/a", "results/b"), ()], ids=["writer", "machine"])
@pytest.mark.parametrize("end", ["done", "killed"])
def test_a_process_that_waits_goes_on_when_the_first_ends_or_is_killed(
    hold: Hold, names: tuple[str, ...], end: str
) -> None:
    read_until(first := hold(*names), "held")
    second = hold(*reversed(names))
    assert second.stderr is not None
    waiting = second.stderr.readline()
    assert waiting.startswith("waiting for ")
    if not names:
        assert f"process {first.pid} (training small): only one timed run at a time" in waiting
    if end == "killed":
        first.kill()
    else:
        assert first.stdin is not None
        first.stdin.write("\n")
        first.stdin.flush()
    read_until(second, "held")


def test_the_machines_lock_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr("platform.node", lambda: "lab")
    assert machine_lock() == tmp_path / ".local" / "state" / "photofinish" / "lab.lock"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("what", ["a file", "a folder"])
def test_an_unwritable_lock_is_named(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    if what == "a file":  # in the folder's place
        machine_lock().parent.write_text("", encoding="utf-8")
    else:
        machine_lock().mkdir(parents=True)
    with exclusive_machine("trains") as waited_seconds:  # the training goes on
        assert waited_seconds == 0
    note = capsys.readouterr().err
    assert str(machine_lock()) in note
    assert "XDG_STATE_HOME" in note


SPAWNS = """
import multiprocessing, time
from multiprocessing.connection import Listener

def listen(lock):
    with lock, Listener(family="AF_UNIX"):  # as a loader's worker sends tensors
        print("listens", flush=True)
        time.sleep(600)

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    lock = spawn.Lock()
    worker = spawn.Process(target=listen, args=(lock,))
    worker.start()
    worker.join()
"""

STAGE = f"""
import sys
sys.path.insert(0, {str(ROOT / "stages")!r})
from _start import run_stage
from photofinish.stage.process import end_on_sigterm

def main():
    end_on_sigterm()
    wait()

{SPAWNS.replace('if __name__ == "__main__":', "def wait():")}
if __name__ == "__main__":
    run_stage(main)
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Make a temporary folder whose name is short: the path of a socket has 107 characters."""
    with tempfile.TemporaryDirectory(dir=os.environ["TMPDIR"]) as name:
        yield Path(name)


def semaphores() -> set[int]:
    return {entry.inode() for entry in os.scandir("/dev/shm")}  # noqa: S108


@pytest.mark.skipif(sys.platform != "linux", reason="no folder shows the semaphores")
def test_a_killed_program_leaves_no_semaphores(tmp_path: Path, short_folder: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(short_folder)},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listens\n"
            maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8").splitlines()
            own = {int(line.split()[4]) for line in maps if "/sem." in line}
            assert own & semaphores()
        finally:
            kill_tree(process.pid)
    assert not own & semaphores()


@pytest.mark.skipif(sys.platform != "linux", reason="sends Ctrl-C to a group")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_an_interrupted_stage_says_so_once_and_leaves_no_folder(
    tmp_path: Path, short_folder: Path, method: str
) -> None:
    script = tmp_path / "stage.py"
    script.write_text(STAGE.replace('"spawn"', repr(method)), encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(short_folder)},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == EXIT_INTERRUPTED
    assert errors.count("interrupted\n") == 1
    wait_for(lambda: not list(short_folder.iterdir()))


def test_setting_the_clock_does_not_change_a_jobs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("os.environ", os.environ.copy())
    note_start_of_stage(0.0)
    before_seconds = seconds_since_stage_start()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert seconds_since_stage_start() >= before_seconds


def test_a_changed_commit_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("params.yaml", "dvc.lock"):
        Path(file).write_text("one: 1", encoding="utf-8")
    head = commit_all(tmp_path)
    assert git_commit() == head
    Path("dvc.lock").write_text("one: 2", encoding="utf-8")
    assert git_commit() == head
    Path("params.yaml").write_text("one: 2", encoding="utf-8")
    assert git_commit() == f"{head}-dirty"
    Path("photofinish").mkdir()
    monkeypatch.chdir("photofinish")  # with the user's code around it
    assert git_commit() == f"{head}-dirty"
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(".git")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit() is None


def test_the_project_is_dvcs_or_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert project_root() == tmp_path.resolve()
    copied = tmp_path / "copy" / "photofinish"  # of `dvc exp run --temp`, in a folder of its own
    copied.mkdir(parents=True)
    (copied.parent / ".dvc").mkdir()
    monkeypatch.chdir(copied)
    assert project_root() == tmp_path.resolve() / "photofinish"
    monkeypatch.delenv("DVC_ROOT")
    assert project_root() == Path.cwd()
