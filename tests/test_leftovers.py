"""Processes that are killed or interrupted leave no semaphores and no temporary folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from training_stage import wait_for

from photofinish.errors import EXIT_INTERRUPTED
from photofinish.stage.process import kill_tree

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
def folder() -> Iterator[Path]:
    """Make a temporary folder whose name is short: the path of a socket has 107 characters."""
    with tempfile.TemporaryDirectory(dir=os.environ["TMPDIR"]) as name:
        yield Path(name)


def semaphores() -> set[int]:
    return {entry.inode() for entry in os.scandir("/dev/shm")}  # noqa: S108


@pytest.mark.skipif(sys.platform != "linux", reason="no folder shows the semaphores")
def test_a_killed_program_with_spawned_workers_leaves_no_semaphores(
    tmp_path: Path, folder: Path
) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder)},
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
def test_ctrl_c_on_a_stage_with_spawned_workers_leaves_no_folder_and_is_noted_once(
    tmp_path: Path, folder: Path, method: str
) -> None:
    script = tmp_path / "stage.py"
    script.write_text(STAGE.replace('"spawn"', repr(method)), encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder)},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == EXIT_INTERRUPTED
    assert errors.count("interrupted\n") == 1
    wait_for(lambda: not list(folder.iterdir()))
