"""Start one process for each device through torchrun, wait for them, and tell in one sentence how they failed.

This runs what the command `torchrun` runs, in the stage's own process: its processes are then children of the stage,
and why one ended is known here instead of being printed by torchrun at length.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from photofinish.errors import EXIT_MISTAKE, EXIT_PEER_LOST, MistakeError, TerminatedError, UserError
from photofinish.processes.ranks import note_start_of_stage

_SHUTDOWN_SECONDS = "10"
"""A process that is told to end does so within 3 seconds (see lifeline); what is left after this is killed."""


def launch(processes: int, threads: int, waited_seconds: float) -> None:
    """Run this process's own command again, so many times, as the ranks of one group; return when all are done."""
    note_start_of_stage(waited_seconds)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # else torchrun sets 1, and says so
    signal.set_wakeup_fd(-1)  # torchrun handles signals from here on, and never keeps the main thread busy
    logging.disable(logging.CRITICAL)  # what torchrun logs about a failure is said below in one sentence
    group = ["--standalone", "--nproc-per-node", str(processes), "--shutdown-timeout", _SHUTDOWN_SECONDS]
    command = ["--no-python", sys.executable, *sys.orig_argv[1:]]
    try:
        torchrun.run(torchrun.parse_args([*group, *command]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        raise _explained(error.failures, processes) from None
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise TerminatedError("terminated") from None


def _explained(failures: dict[int, ProcessFailure], processes: int) -> UserError:
    """The failure that the others follow from: a process that lost another one, or was told to end, didn't begin it."""

    def order(rank: int) -> tuple[bool, bool, int]:
        failure = failures[rank]
        follows = failure.exitcode in (EXIT_PEER_LOST, -signal.SIGTERM)
        return follows, failure.exitcode >= 0 and _told(failure) is None, rank

    rank = min(failures, key=order)
    failure = failures[rank]
    if told := _told(failure):
        return MistakeError(told) if failure.exitcode == EXIT_MISTAKE else UserError(told)
    if failure.exitcode < 0:
        hint = "; Linux does so when memory runs out" if failure.exitcode == -signal.SIGKILL else ""
        how = f"was killed by {signal.Signals(-failure.exitcode).name}{hint}"
    else:
        how = f"ended with exit status {failure.exitcode}"
    return UserError(
        f"process {rank} of {processes} (counted from 0) {how}. The others were ended. "
        f"Run `dvc repro` again: it goes on from the last checkpoint"
    )


def _told(failure: ProcessFailure) -> str | None:
    """What the process itself left word of."""
    if not Path(failure.error_file).is_file():
        return None
    message = failure.error_file_data["message"]
    return message if isinstance(message, str) else None
