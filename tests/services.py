"""A free port, and an MLflow server on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from training_stage import wait_for

WARNS = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore:.*unpickl.*", "ignore::DeprecationWarning"
)
"""Mark of tests with a store: sqlite3 and MLflow's readers of old formats warn about themselves."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(address: str) -> bool:
    """Return True if the web server answers."""
    with suppress(OSError):
        return bool(urllib.request.urlopen(f"{address}/health", timeout=5))  # noqa: S310
    return False


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Give the address of a server that also stores artifacts."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'server.db'}"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "server.log").open("ab") as log:
        server = subprocess.Popen(command, cwd="/", stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(lambda: answers(address) or server.poll() is not None)
        assert server.poll() is None, (folder / "server.log").read_text(encoding="utf-8")
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)
