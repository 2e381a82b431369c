"""What a team shares, for real and on this machine alone: an SSH server as DVC's remote, MLflow on PostgreSQL."""

from __future__ import annotations

import os
import shutil
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

SSHD_CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
PasswordAuthentication no
UsePAM no
PidFile none
Subsystem sftp internal-sftp
"""
_IS_ROOT = os.geteuid() == 0
_AS_POSTGRES = ("runuser", "-u", "postgres", "--") if _IS_ROOT else ()
"""which refuses to run as root"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(address: str) -> bool:
    """Whether something listens there; or, of a web server, is healthy."""
    with suppress(OSError):
        if address.startswith("http"):
            return bool(urllib.request.urlopen(f"{address}/health", timeout=5))  # noqa: S310
        socket.create_connection(("127.0.0.1", int(address)), timeout=5).close()
        return True
    return False


@contextmanager
def running(
    *command: str, address: str, folder: Path, ending: int = signal.SIGKILL
) -> Iterator[None]:
    """A server, from when it answers to its end by that signal."""
    with (folder / "server.log").open("ab") as log:
        server = subprocess.Popen(command, cwd="/", stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(lambda: answers(address) or server.poll() is not None)
        assert server.poll() is None, (folder / "server.log").read_text(encoding="utf-8")
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, ending)
        server.wait(30)


@contextmanager
def ssh_server(folder: Path) -> Iterator[dict[str, str]]:
    """As DVC's settings have it: a remote in `folder`, by a key of its own."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("no sshd: Debian's openssh-server has it")
    pytest.importorskip("dvc_ssh")
    for key in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True
        )
    port = free_port()
    config = folder / "sshd_config"
    config.write_text(SSHD_CONFIG.format(port=port, folder=folder), encoding="utf-8")
    if _IS_ROOT:
        Path("/run/sshd").mkdir(exist_ok=True)  # which Debian's start of the service makes
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    (remote := folder / "remote").mkdir()
    with running(program, "-D", "-e", "-f", str(config), address=str(port), folder=folder):
        yield {"url": f"ssh://{user}@127.0.0.1:{port}{remote}", "keyfile": str(folder / "user")}


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """The address of an empty database."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        pytest.skip("no PostgreSQL: Debian's postgresql has it")
    pytest.importorskip("psycopg2")
    made = [*_AS_POSTGRES, "mktemp", "--directory", "--tmpdir=/tmp"]  # where its user may look, too
    data = subprocess.run(made, cwd="/", capture_output=True, text=True, check=True).stdout.strip()
    init = [
        *_AS_POSTGRES,
        str(programs[-1]),
        "-D",
        data,
        "--username=postgres",
        "--auth=trust",
        "--no-sync",
    ]
    subprocess.run(init, cwd="/", capture_output=True, check=True)
    port = free_port()
    settings = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off")
    command = [*_AS_POSTGRES, str(programs[-1].with_name("postgres")), "-D", data, "-p", str(port)]
    try:
        command += [f"-c{each}" for each in settings]
        with running(
            *command, address=str(port), folder=folder, ending=signal.SIGQUIT
        ):  # which leaves no memory behind
            yield f"postgresql+psycopg2://postgres@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(data)


@contextmanager
def mlflow_server(folder: Path, database: str) -> Iterator[str]:
    """Its address; artifacts go through it."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        database,
        "--artifacts-destination",
        str(folder / "artifacts"),
    ]
    with running(*command, address=address, folder=folder):
        yield address
