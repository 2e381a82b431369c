"""Processes that are killed leave no semaphores and no temporary folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def semaphores() -> set[int]:
    return {entry.inode() for entry in os.scandir("/dev/shm")}  # noqa: S108


@pytest.mark.skipif(sys.platform != "linux", reason="no folder shows the semaphores")
def test_a_killed_program_with_spawned_workers_leaves_nothing_behind(tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS, encoding="utf-8")
    (folder := tmp_path / "temporary").mkdir()
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
            assert list(folder.iterdir())
        finally:
            kill_tree(process.pid)
    assert not own & semaphores()
    assert not list(folder.iterdir())
