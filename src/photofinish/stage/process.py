"""The process of a stage: its rank, how long it has run, and how it ends early."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

from photofinish.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    TerminatedError,
    UserError,
)

_TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_STARTED_AT = "PHOTOFINISH_STAGE_STARTED_AT_MONOTONIC_SECONDS"
"""Variable that passes a stage's start to its ranks, which share the monotonic clock."""
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "fish", "ksh", "cmd.exe", "powershell.exe"})
_POLL_SECONDS = 1.0
_GRACE_SECONDS = 10.0


@dataclass(frozen=True)
class Rank:
    """Rank of this process among the processes that train together."""

    number: int
    """Rank from 0."""
    size: int
    local_number: int
    """Rank on this machine, which selects the device."""

    @property
    def is_main(self) -> bool:
        """True on rank 0, the only rank that writes, tracks and prints."""
        return self.number == 0


def own_rank() -> Rank | None:
    """Return this process's rank, or None if torchrun did not start it."""
    if not all(name in os.environ for name in _TORCHRUN_VARIABLES):
        return None
    return Rank(
        int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    )


def seconds_since_process_start() -> float:
    """Return how long this process has run, to a hundredth of a second on Linux."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8")
    except OSError:
        return time.time() - psutil.Process().create_time()
    ticks = int(stat.rpartition(")")[2].split()[19])  # field 22 of proc(5)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def note_start_of_stage(waited_seconds: float) -> None:
    """Pass the stage's start time to its ranks, moved by the time it waited for locks."""
    os.environ[_STARTED_AT] = repr(
        time.monotonic() - seconds_since_process_start() + waited_seconds
    )


def is_started_by_stage() -> bool:
    """Return True for a rank of a stage, False if a user called torchrun."""
    return _STARTED_AT in os.environ and own_rank() is not None


def seconds_since_stage_start() -> float:
    """Return how long the job has run, counted from the start of the stage."""
    if is_started_by_stage():
        return time.monotonic() - float(os.environ[_STARTED_AT])
    return seconds_since_process_start()


def run_stage(main: Callable[[], None]) -> None:
    """Run a stage's main function. Print expected errors without a traceback."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        stop_timer()
        print("interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except TerminatedError as error:
        stop_timer()
        print(f"stopped: {error}", file=sys.stderr)
        sys.exit(EXIT_TERMINATED)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"error: {error.strerror or error}{where}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    finally:
        # While Python shuts down, nothing handles an exception.
        stop_timer()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def stop_timer() -> None:
    """Stop `end_on_sigterm` from raising again."""
    if hasattr(signal, "setitimer"):  # Windows has none
        signal.setitimer(signal.ITIMER_REAL, 0)


def end_on_sigterm() -> None:
    """Make SIGTERM raise TerminatedError in the main thread, as Ctrl-C raises KeyboardInterrupt.

    Python drops an exception that is raised within a `__del__` or a fork hook, where a data loader
    spends part of its time. So the exception is raised every second until the main thread handles
    it. Windows has no such timer, so there it is raised once.
    """
    has_timer = hasattr(signal, "setitimer")
    process = os.getpid()
    signals: list[int] = []
    unraisable = sys.unraisablehook

    def hook_of_others(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, (KeyboardInterrupt, TerminatedError)):
            unraisable(dropped)  # a signal's exception is raised again, so it is not printed

    def end(number: int, frame: FrameType | None) -> None:
        if has_timer and number == signal.SIGALRM:
            if isinstance(sys.exception(), (KeyboardInterrupt, TerminatedError)):
                return
            number = signals[-1]
        elif has_timer and os.getpid() == process:  # else a fork, such as a loader's worker
            signals.append(number)
            # PyTorch's handler would raise if the same Ctrl-C ends a loader's worker.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
        if number == signal.SIGTERM:
            raise TerminatedError("terminated")
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGTERM, end)
    if has_timer:
        signal.signal(signal.SIGALRM, end)
        sys.unraisablehook = hook_of_others
    # A shell's background jobs ignore Ctrl-C.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, end)


def end_with_parent() -> None:
    """End this process on SIGTERM, or once the DVC or launcher that started it has died.

    A killed DVC leaves its stage running, and the next `dvc repro` would start it a second time.
    """
    end_on_sigterm()
    if "DVC_STAGE" in os.environ or own_rank():
        ancestors, count = psutil.Process().parents(), 1
        if not own_rank():  # up to DVC, including shells
            while count < len(ancestors) and ancestors[count - 1].name() in _SHELLS:
                count += 1
        arguments = (ancestors[:count],)
        threading.Thread(target=_end_after, args=arguments, name="lifeline", daemon=True).start()


def _end_after(starters: list[psutil.Process]) -> None:
    """End this process once its parent or one of `starters` has ended. Kill it if that fails."""
    parent = os.getppid()
    while os.getppid() == parent and all(map(_is_alive, starters)):
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(EXIT_TERMINATED)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_group(process: int) -> None:
    """Send SIGTERM to a session leader and to all processes that it started."""
    if hasattr(os, "killpg"):
        os.killpg(process, signal.SIGTERM)
        return
    leader = psutil.Process(process)  # Windows has no groups
    for one in (*leader.children(recursive=True), leader):
        one.terminate()


def kill_tree(leader: int) -> None:
    """Kill a process and all that it started, without time to save anything.

    Python's resource trackers are spared. They remove the semaphores of killed processes, then end.
    """
    try:
        process = psutil.Process(leader)
        # Not by process group, because torchrun starts workers in other groups.
        tree = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    trackers = []
    for one in tree:
        with suppress(psutil.NoSuchProcess):  # it ended by itself meanwhile
            if any("multiprocessing.resource_tracker" in argument for argument in one.cmdline()):
                trackers.append(one)
                continue
            one.kill()
    deadline_seconds = time.monotonic() + _GRACE_SECONDS
    while any(map(_is_alive, trackers)) and time.monotonic() < deadline_seconds:
        time.sleep(0.02)
