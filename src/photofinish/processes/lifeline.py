"""How a training process ends before its time: on a signal, or when the dvc that started it is gone."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType

import psutil

from photofinish.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, TerminatedError
from photofinish.processes.ranks import own_rank

_POLL_SECONDS = 1.0
_GRACE_SECONDS = 2.5
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "fish", "ksh"})


def end_on_sigterm() -> None:
    """SIGTERM raises in the main thread, so that locks are let go and trackers told, as with Ctrl-C.

    Python runs its handlers between two steps of the main thread, which a native call may keep busy for minutes:
    waiting for another process, say. Where the main thread doesn't hear in time, the process ends all the same.
    """
    heard = threading.Event()

    def raise_terminated(_signal: int, _frame: FrameType | None) -> None:
        heard.set()
        raise TerminatedError("terminated")

    def raise_interrupted(number: int, frame: FrameType | None) -> None:
        heard.set()
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGTERM, raise_terminated)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started it wants it deaf
        signal.signal(signal.SIGINT, raise_interrupted)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # written to at once, whatever the main thread is doing
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a child's signals aren't ours
    threading.Thread(target=_insist, args=(reader, heard), name="insist", daemon=True).start()


def _insist(signals: int, heard: threading.Event) -> None:
    """End the process if a signal to end, read from the pipe `signals`, isn't heard."""
    endings = {
        signal.SIGTERM: ("stopped: terminated", EXIT_TERMINATED),
        signal.SIGINT: ("interrupted", EXIT_INTERRUPTED),
    }
    while (number := os.read(signals, 1)[0]) not in endings:
        pass
    if not heard.wait(_GRACE_SECONDS):
        text, status = endings[signal.Signals(number)]
        os.write(sys.stderr.fileno(), f"{text}\n".encode())
        os._exit(status)


def end_with_parent() -> None:
    """End this process soon after the dvc that started it has died.

    DVC leaves its stage running when it is killed, and the next `dvc repro` would start a second one beside it.
    A process that was not started by dvc is left alone, unless it is one of several that train together: those end
    with what started them.
    """
    if "DVC_STAGE" in os.environ or own_rank():
        chain = _up_to_first_non_shell()
        threading.Thread(target=_watch, args=(chain,), name="lifeline", daemon=True).start()


def dvc_began_at_unix_seconds() -> float | None:
    """When the dvc that started this process began; None where another program did."""
    return _up_to_first_non_shell()[-1].create_time() if "DVC_STAGE" in os.environ else None


def _up_to_first_non_shell() -> list[psutil.Process]:
    """dvc runs a stage through a shell, which may or may not have replaced itself by the command."""
    chain: list[psutil.Process] = []
    for ancestor in psutil.Process().parents():
        chain.append(ancestor)
        if ancestor.name() not in _SHELLS:
            break
    return chain


def _watch(chain: list[psutil.Process]) -> None:
    parent = os.getppid()
    while os.getppid() == parent and all(_is_alive(process) for process in chain):
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)  # a long native call may keep the main thread from hearing the signal
    os._exit(EXIT_TERMINATED)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
