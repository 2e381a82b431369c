"""How a training process ends before its time: on a signal, or when the dvc that started it is gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

import psutil

from photofinish.errors import EXIT_TERMINATED, TerminatedError

_POLL_SECONDS = 1.0
_GRACE_SECONDS = 2.5
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "fish", "ksh"})


def end_on_sigterm() -> None:
    """SIGTERM raises in the main thread, so that locks are let go and trackers told, as with Ctrl-C."""

    def raise_terminated(_signal: int, _frame: FrameType | None) -> None:
        raise TerminatedError("terminated")

    signal.signal(signal.SIGTERM, raise_terminated)


def end_with_parent() -> None:
    """End this process soon after the dvc that started it has died.

    DVC leaves its stage running when it is killed, and the next `dvc repro` would start a second one beside it.
    A process that was not started by dvc is left alone.
    """
    if "DVC_STAGE" in os.environ:
        chain = _up_to_first_non_shell()
        threading.Thread(target=_watch, args=(chain,), name="lifeline", daemon=True).start()


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
