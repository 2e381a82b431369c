"""A Python with torch and MLflow imported, which forks for each call.

The suite starts hundreds of programs, and imports take most of their time: one project test takes
14 instead of 46 CPU seconds. A server imports once and waits at a socket. The `python` in front of
PATH lets it fork. The fork runs the script or module with the caller's folder, environment and
files. A killed caller ends its fork, but not what that started: such programs need a cold Python.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import logging
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_FOLDER = "WARM_PYTHON"
"""Variable with the folder of the served `python`."""
_PROGRAMS = "dvc", "photofinish"
"""Programs that it runs as modules, too."""
_TAKE_LONG = (
    "distributed", "dvc.cli", "dvc.repo.reproduce", "dvc.scm", "matplotlib.figure",
    "mlflow.pytorch", "mlflow.store.tracking.sqlalchemy_store", "pandas", "sklearn.datasets",
    "torchvision",
)  # fmt: skip
_CALLED = """\
#!{base} -IS
import json, os, signal, socket, sys

if sys.argv[1:2] != ["-m"] and (sys.argv[1:] or ["-"])[0].startswith("-"):  # options of Python's
    os.execv("{python}", ["{python}", *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect("{address}")
where = [os.getcwd(), dict(os.environ), os.getsid(0), os.getpgid(0), [*os.sched_getaffinity(0)]]
call = json.dumps([sys.argv, *where]).encode()
socket.send_fds(server, [len(call).to_bytes(4, "big")], [0, 1, 2])
server.sendall(call)
answers = server.makefile()
process = int(answers.readline())
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: os.kill(process, number))
status = int(answers.readline())
if status < 0:
    if status != -signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


def executable() -> str:
    """Return the path of a warm Python, or of this one if the system has no pidfd_open."""
    if not hasattr(os, "pidfd_open"):
        return sys.executable
    if _FOLDER not in os.environ:
        start()
    return str(Path(os.environ[_FOLDER]) / "python")


def path(folders: str) -> str:
    """Return PATH with a warm Python in front."""
    return f"{Path(executable()).parent}{os.pathsep}{folders}"


def start() -> None:
    """Start the server, which ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    called, address = folder / "python", folder / "socket"
    base = Path(sys.executable).resolve()
    text = _CALLED.format(base=base, python=sys.executable, address=address)
    called.write_text(text, encoding="utf-8")
    for name in _PROGRAMS:
        program = f'#!/bin/sh\nexec {called} -m {name} "$@"\n'
        (folder / name).write_text(program, encoding="utf-8")
    for file in (called, *(folder / name for name in _PROGRAMS)):
        file.chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    command, pipe = [sys.executable, __file__, str(address)], subprocess.PIPE
    server = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe)
    atexit.register(shutil.rmtree, folder)
    atexit.register(server.communicate)
    assert server.stdout
    assert server.stdout.readline(), "it did not start"
    os.environ[_FOLDER] = str(folder)


class Call(NamedTuple):
    """Command and state of a caller, which a fork takes over."""

    command: list[str]
    folder: str
    environment: dict[str, str]
    session: int
    group: int
    cores: list[int]


def _import_what_takes_long() -> None:
    for name in _TAKE_LONG:
        with suppress(ModuleNotFoundError):  # a GPU machine has torch, and not all of these
            importlib.import_module(name)
    torch = importlib.import_module("torch")
    torch.optim.SGD([torch.zeros(1, requires_grad=True)]).zero_grad()  # imports torch's compiler


def _fork_for_each_call(listener: socket.socket) -> Call:
    """Fork for each call, and return in the forks only. A killed caller ends its fork."""
    running = selectors.DefaultSelector()
    running.register(listener, selectors.EVENT_READ)
    running.register(sys.stdin, selectors.EVENT_READ)
    while True:
        for key, _ in running.select():
            if key.fileobj is sys.stdin:
                sys.exit()
            if key.fileobj is listener:
                connection, _ = listener.accept()
                length, files, _, _ = socket.recv_fds(connection, 4, 3)
                with connection.makefile("rb") as sent:
                    text = sent.read(int.from_bytes(length, "big"))
                if not text.endswith(b"]"):  # the caller was killed meanwhile
                    for file in (connection.detach(), *files):
                        os.close(file)
                    continue
                call = Call(*json.loads(text))
                if (process := os.fork()) == 0:
                    running.close()  # else garbage collection closes a later file of its number
                    _take_on(call, files)
                    return call
                for file in files:
                    os.close(file)
                with suppress(BrokenPipeError):  # then the connection says so, too
                    connection.sendall(f"{process}\n".encode())
                ended = os.pidfd_open(process)
                running.register(ended, selectors.EVENT_READ, (process, ended, connection))
                running.register(connection, selectors.EVENT_READ, (process, ended, connection))
            elif key.fileobj in running.get_map():
                process, ended, connection = key.data
                if key.fileobj is connection:
                    os.kill(process, signal.SIGKILL)
                status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                for one in (ended, connection):
                    running.unregister(one)
                os.close(ended)
                with connection, suppress(BrokenPipeError):
                    connection.sendall(f"{status}\n".encode())


def _take_on(call: Call, files: list[int]) -> None:
    """Take over the caller's files, folder, environment and process group."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    if call.session == os.getsid(0):
        os.setpgid(0, call.group)
    else:
        os.setsid()
    os.sched_setaffinity(0, call.cores)
    os.chdir(call.folder)
    os.environ.clear()
    os.environ.update(call.environment)
    tempfile.tempdir = None  # the caller's variables decide


def _run(command: list[str], environment: dict[str, str]) -> None:
    sys.executable, *arguments = sys.orig_argv = command
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    folders = [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]
    is_module = arguments[0] == "-m"
    first = Path.cwd() if is_module else Path(arguments[0]).resolve().parent
    sys.path[:1] = [str(first), *folders]
    sys.argv = arguments[is_module:]
    customs = [Path(folder, "sitecustomize.py") for folder in folders]
    for custom in list(filter(Path.is_file, customs))[:1]:
        runpy.run_path(str(custom))  # as a Python that starts does
    if arguments[:2] == ["-m", "dvc"]:
        logging.root.handlers.clear()  # MLflow's, which prints DVC's errors with a traceback
    if is_module:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


def main() -> None:
    """Serve, and run the call in a fork."""
    status = 1

    def end() -> None:
        sys.stdout.flush()
        os._exit(status)  # Python needs half a second to free modules

    atexit.register(end)  # the handler registered first is called last
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(64)
    print("it listens, and answers once all is imported", flush=True)
    _import_what_takes_long()
    assert threading.active_count() == 1, "a fork has but one thread"
    gc.freeze()
    call = _fork_for_each_call(listener)
    try:
        _run(call.command, call.environment)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise


if __name__ == "__main__":
    main()
