"""Start one process for each device through torchrun, wait for them, and tell in one sentence how they failed.

This runs what the command `torchrun` runs, in the stage's own process: its processes are then children of the stage,
and why one ended is known here instead of being printed by torchrun at length.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from photofinish.errors import (
    EXIT_INTERRUPTED,
    EXIT_MISTAKE,
    EXIT_PEER_LOST,
    EXIT_TERMINATED,
    MistakeError,
    TerminatedError,
    UserError,
)
from photofinish.files import sha256_of_bytes, to_json
from photofinish.machine.fingerprint import CpuHost, GpuHost
from photofinish.params.devices import check_data_parallel
from photofinish.processes import Rank, is_started_by_stage, note_start_of_stage
from photofinish.runs.run import Run, code_sha256
from photofinish.training.teams import (
    COLLECTIVE_TIMEOUT,
    DataParallelTeam,
    NoAcceleratorError,
    Ranks,
    Team,
    UnusableAcceleratorError,
    accelerator,
)
from photofinish.training.torch_device import CPU

_SHUTDOWN_SECONDS = "10"
"""A process that is told to end does so within 3 seconds (see lifeline); what is left after this is killed."""


def launch(host: CpuHost | GpuHost, waited_seconds: float) -> None:
    """Run this process's own command again, once for each process of the host; return when all are done."""
    note_start_of_stage(waited_seconds)
    os.environ.setdefault("OMP_NUM_THREADS", str(host.threads or 1))  # else torchrun sets 1, and says so
    signal.set_wakeup_fd(-1)  # torchrun handles signals from here on, and never keeps the main thread busy
    logging.disable(logging.CRITICAL)  # what torchrun logs about a failure is said below in one sentence
    group = ["--standalone", "--nproc-per-node", str(host.processes), "--shutdown-timeout", _SHUTDOWN_SECONDS]
    command = ["--no-python", sys.executable, *sys.orig_argv[1:]]
    try:
        torchrun.run(torchrun.parse_args([*group, *command]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        raise _explained(error.failures, host.processes) from None
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise TerminatedError("terminated") from None


def _explained(failures: dict[int, ProcessFailure], processes: int) -> UserError:
    """The failure that the others follow from: a process that lost another one, or was told to end, didn't begin it."""

    def order(rank: int) -> tuple[bool, bool, int]:
        """Those that began it first, and of them who was killed or told why."""
        failure = failures[rank]
        follows = failure.exitcode in (EXIT_PEER_LOST, -signal.SIGTERM)
        return follows, failure.exitcode >= 0 and _told(failure) is None, rank

    rank = min(failures, key=order)
    failure = failures[rank]
    if told := _told(failure):
        return MistakeError(told) if failure.exitcode == EXIT_MISTAKE else UserError(told)
    if failure.exitcode < 0:
        number, hint = -failure.exitcode, "; Linux does so when memory runs out"
        name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
        how = f"was killed by {name}{hint if number == signal.SIGKILL else ''}"
    else:
        how = f"ended with exit status {failure.exitcode}"
    return UserError(
        f"process {rank} of {processes} (counted from 0) {how}. The others were ended. "
        f"Run `dvc repro` again: it goes on from the last checkpoint"
    )


def _told(failure: ProcessFailure) -> str | None:
    """What the process itself left word of, by `failures_left_to_the_stage`."""
    return str(failure.error_file_data["message"]) if Path(failure.error_file).is_file() else None


@contextmanager
def team_for(run: Run, rank: Rank | None) -> Iterator[tuple[torch.device, Team]]:
    """This process's device and the team it trains in.

    NoAcceleratorError is raised in every process of a group or in none: it stands for a result, not a failure.
    """
    if rank is None or rank.size == 1:
        device = _own_device(run, rank)
        yield device, _team_of_one_process(run, device)
        return
    try:
        dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
    except (RuntimeError, ValueError) as error:  # of many lines, whose first tells
        meeting_place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise UserError(
            f"{rank} can't join the others at {meeting_place}: {str(error).partition(chr(10))[0]} "
            f"The address must be one of the first node's, its port free there and open to the other nodes "
            f"(torchrun's --master-addr and --master-port)"
        ) from error
    device = _agreed_device(run, rank)
    _refuse_differences(run, rank)
    yield device, Ranks(rank.number, rank.size, device)
    dist.destroy_process_group()  # not after an error: that would wait for processes that may be gone


@contextmanager
def failures_left_to_the_stage() -> Iterator[None]:
    """A process that the stage started tells it why it ends, in torchrun's way, and leaves the talking to it."""
    try:
        yield
    except (UserError, KeyboardInterrupt, TerminatedError) as error:
        if not is_started_by_stage():
            raise
        status = EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else EXIT_TERMINATED
        if isinstance(error, UserError):
            status = error.exit_code
            told = json.dumps({"message": str(error), "timestamp": int(time.time())})
            Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(told, encoding="utf-8")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # at once: Python's own end would take down the process group, and wait for who may be gone


def _own_device(run: Run, rank: Rank | None) -> torch.device:
    host = run.host
    if not isinstance(host, GpuHost):
        return CPU
    if host.missing:
        raise NoAcceleratorError(f"no accelerator: {host.missing}")
    if host.strategy == "data_parallel":
        return accelerator(host.kind, (host.device_ids or (0,))[0])
    return accelerator(host.kind, rank.local_number if rank else 0)


def _team_of_one_process(run: Run, device: torch.device) -> Team:
    host = run.host
    if not isinstance(host, GpuHost) or host.strategy != "data_parallel":
        return Team(device)
    indices = host.device_ids or tuple(range(len(host.accelerators)))
    check_data_parallel(device.type, indices, host.output_device)
    output = indices[0] if host.output_device is None else host.output_device
    for index in indices:
        accelerator(host.kind, index, make_current=False)
    return DataParallelTeam(tuple(torch.device("cuda", index) for index in indices), torch.device("cuda", output))


def _agreed_device(run: Run, rank: Rank) -> torch.device:
    """Every process has its device, or none trains."""
    device, reason, may_pass = CPU, None, False
    try:
        device = _own_device(run, rank)
    except (NoAcceleratorError, UnusableAcceleratorError) as error:
        reason, may_pass = str(error), isinstance(error, UnusableAcceleratorError)
    everyones: list[tuple[str, str | None, bool, str]] = [("", None, False, "")] * rank.size
    dist.all_gather_object(everyones, (platform.node(), reason, may_pass, device.type))
    lacking = [(number, host, why, passing) for number, (host, why, passing, _) in enumerate(everyones) if why]
    if len(lacking) == rank.size and not any(passing for *_, passing in lacking):
        raise NoAcceleratorError(lacking[0][2])
    if lacking:
        number, host, why, _ = lacking[0]
        others = "" if len(lacking) == rank.size else ", others have"
        raise UserError(f"process {number} of {rank.size}, on {host}, has no device to train on{others}: {why}")
    if len({kind for *_, kind in everyones}) > 1:
        kinds = ", ".join(f"{kind} (process {number})" for number, (*_, kind) in enumerate(everyones))
        raise UserError(f"the processes have devices of several kinds: {kinds}; set devices.gpu.kind in params.yaml")
    return device


def _refuse_differences(run: Run, rank: Rank) -> None:
    """Processes on several machines each read their own copy of the project: all must read the same."""
    own = {
        "code (src/photofinish)": code_sha256(),
        "settings (data/plan/experiments)": sha256_of_bytes(to_json(run.experiment.model_dump(mode="json")).encode()),
        "data (data/splits)": run.data_sha256(),
        "PyTorch": torch.__version__,
    }
    everyones: list[tuple[str, dict[str, str]]] = [("", {})] * rank.size
    dist.all_gather_object(everyones, (platform.node(), own))
    leader, first = everyones[0]
    for number, (host, theirs) in enumerate(everyones):
        differing = [what for what, value in theirs.items() if first[what] != value]
        if differing:
            raise UserError(
                f"process {number} (on {host}) has other {' and other '.join(differing)} than process 0 (on {leader}): "
                f"bring the project folders in line, then start again"
            )
