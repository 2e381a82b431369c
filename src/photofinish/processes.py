"""A stage as a process: its rank among several, its start, and how it ends before its time."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

from photofinish.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, TerminatedError


def seconds_since_process_start() -> float:
    """How long this process has run, to a hundredth of a second; psutil adds its start to a boot time in whole ones."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8")
    except OSError:
        return time.time() - psutil.Process().create_time()
    ticks = int(stat.rpartition(")")[2].split()[19])  # of the fields after the name in brackets; see proc(5)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


_GIVEN_BY_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_STARTED_AT = "PHOTOFINISH_STAGE_STARTED_AT_MONOTONIC_SECONDS"
"""by the clock that nobody sets, which all processes of a machine share"""


@dataclass(frozen=True)
class Rank:
    """The place of this process among several that train together."""

    number: int
    """among all processes, from 0; 0 leads: it alone writes, tracks and talks"""
    size: int
    """how many processes there are"""
    local_number: int
    """among those of this machine: which of its devices is used"""

    def __str__(self) -> str:
        return f"process {self.number} of {self.size}"


def own_rank() -> Rank | None:
    """This process's place in its group; None where there is no group: the stage as dvc starts it."""
    if not all(name in os.environ for name in _GIVEN_BY_TORCHRUN):
        return None
    return Rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"]))


def note_start_of_stage(waited_seconds: float) -> None:
    """Tell the processes that the stage is about to start what came before them: it is part of the job's time, but for
    the time it waited its turn."""
    os.environ[_STARTED_AT] = repr(time.monotonic() - seconds_since_process_start() + waited_seconds)


def is_started_by_stage() -> bool:
    """Whether the stage speaks to the user. Else torchrun was called by hand, and all they hear is this process."""
    return _STARTED_AT in os.environ and own_rank() is not None


def seconds_since_stage_start() -> float:
    """How long the job has run: with several processes, since the one that started them began."""
    if is_started_by_stage():
        return time.monotonic() - float(os.environ[_STARTED_AT])
    return seconds_since_process_start()


_POLL_SECONDS = 1.0
_GRACE_SECONDS = 2.5
_ENDINGS: dict[int, tuple[str, int]] = {
    signal.SIGTERM: ("stopped: terminated", EXIT_TERMINATED),
    signal.SIGINT: ("interrupted", EXIT_INTERRUPTED),
}
_importing = threading.Event()
"""Set while a stage imports, when a signal ends it at once: torch aborts, with a page of its own, at an exception in
the midst of its import. MLflow's process closes a run when the pipe to it ends."""
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "fish", "ksh"})


def end_on_sigterm() -> None:
    """Make SIGTERM raise in the main thread, so that locks are let go and trackers told, as with Ctrl-C.

    Python runs its handlers between two steps of the main thread, which a native call may keep busy for minutes:
    waiting for another process, say. Where the main thread doesn't hear in time, the process ends all the same.
    """
    heard = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        """Raise what ends the stage: TerminatedError, or as Python does itself, KeyboardInterrupt."""
        heard.set()
        if _importing.is_set():
            _end_at_once(number)
        if number == signal.SIGTERM:
            raise TerminatedError("terminated")
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # else whoever started it wants it deaf
        signal.signal(signal.SIGINT, end)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # written to at once, whatever the main thread is doing
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a child's signals aren't ours
    threading.Thread(target=_insist, args=(reader, heard), name="insist", daemon=True).start()


def _insist(signals: int, heard: threading.Event) -> None:
    """End the process if a signal to end, read from the pipe `signals`, isn't heard."""
    while (number := os.read(signals, 1)[0]) not in _ENDINGS:
        pass
    if not heard.wait(_GRACE_SECONDS):
        _end_at_once(number)


def _end_at_once(number: int) -> None:
    """Without a word where the stage is to speak for this process."""
    text, status = _ENDINGS[number]
    if not is_started_by_stage():
        os.write(sys.stderr.fileno(), f"{text}\n".encode())
    os._exit(status)


def end_with_parent() -> None:
    """Have SIGTERM end this process in order, and send it that soon after the dvc that started it has died.

    DVC leaves its stage running when it is killed, and the next `dvc repro` would start a second one beside it.
    Without dvc nothing is sent, unless it is one of several that train together: those end with what started them.
    """
    end_on_sigterm()
    if "DVC_STAGE" in os.environ or own_rank():
        threading.Thread(target=_watch, args=(_up_to_first_non_shell(),), name="lifeline", daemon=True).start()


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


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import a stage's modules without garbage collection. What they made stays, and is never looked through again:
    with torch's half a million objects, that would take tenths of a second in the midst of training."""
    was_enabled = gc.isenabled()
    gc.disable()
    _importing.set()
    try:
        yield
    finally:
        _importing.clear()
        gc.freeze()
        if was_enabled:
            gc.enable()
