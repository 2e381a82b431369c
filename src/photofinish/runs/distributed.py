"""Several processes that train together. torchrun's launcher starts one process for each device."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from photofinish.errors import EXIT_FAILED, TerminatedError, UserError
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.runs.run import Run
from photofinish.stage.locks import exclusive_machine
from photofinish.stage.process import Rank, is_started_by_stage, note_start_of_stage
from photofinish.training.torch_device import CPU, NoAcceleratorError, accelerator
from photofinish.training.world import (
    COLLECTIVE_TIMEOUT,
    DataParallelWorld,
    DistributedWorld,
    World,
)

_SHUTDOWN_SECONDS = 10
"""Grace time of ranks after SIGTERM. Before PyTorch 2.12 it is always 30 seconds."""


def launch(host: CpuTarget | GpuTarget, what: str, remedy: str = "") -> None:
    """Run this process's command again, once for each process of the host, and wait.

    The machine's lock is held meanwhile, and names `what` runs. The error of a process that fails
    ends with `remedy`.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(host.threads or 1))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_SECONDS))
    logging.disable()  # ranks explain their own failures
    with exclusive_machine(what) as waited_seconds, tempfile.TemporaryDirectory() as folder:
        note_start_of_stage(waited_seconds)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=host.processes,
            logs_specs=DefaultLogsSpecs(folder, redirects=Std.ERR),
            run_id=str(uuid4()),
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
        )
        try:
            elastic_launch(config, sys.executable)(*sys.orig_argv[1:])
        except ChildFailedError as error:
            raise UserError(_first_failure(error, host.processes) + remedy) from None
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise TerminatedError("terminated") from None


def _first_failure(error: ChildFailedError, processes: int) -> str:
    """Return which rank ended first and how.

    A killed rank counts first. The launcher may see the end of other ranks before, which failed
    only because that rank was killed.
    """
    rank, failure = error.get_first_failure()
    for number, each in error.failures.items():
        if each.exitcode < 0 and each.exitcode != -signal.SIGTERM:
            rank, failure = number, each
    how = f"ended with exit status {failure.exitcode}"
    if failure.exitcode < 0:
        how = f"was killed by {failure.signal_name()}"
        if failure.exitcode == -signal.SIGKILL:
            how += ", which Linux sends when memory runs out"
    return f"process {rank} of {processes} (counted from 0) {how}"


@contextmanager
def failures_left_to_the_stage() -> Iterator[None]:
    """Exit at once if this rank fails and the stage started it.

    A normal exit would wait for other ranks, which may be gone.
    """
    if not is_started_by_stage():
        yield
        return
    os.dup2(1, 2)  # `launch` drops what ranks print on stderr before
    try:
        yield
    except BaseException as error:  # noqa: BLE001
        if isinstance(error, UserError):
            print(f"error: {error}", file=sys.stderr)
        elif not isinstance(error, (KeyboardInterrupt, TerminatedError)):
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_FAILED)


@contextmanager
def team_for(run: Run, rank: Rank | None) -> Iterator[World]:
    """Yield this process's world. Raise NoAcceleratorError before connecting to other ranks."""
    host, device, indices = run.host, CPU, tuple[int, ...]()
    if isinstance(host, GpuTarget):
        if host.missing:
            raise NoAcceleratorError(f"no accelerator: {host.missing}")
        index = rank.local_number if rank else 0
        if host.strategy == "data_parallel":
            indices = host.device_ids or tuple(range(len(host.accelerators)))
            index = indices[0]
        device = accelerator(host.kind, index)
    if rank and rank.size > 1:
        dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
        yield DistributedWorld(rank.number, rank.size, device)
        dist.destroy_process_group()  # not after an error, as it waits for processes that are gone
        return
    team = World(device)
    if isinstance(host, GpuTarget) and indices:
        output = indices[0] if host.output_device is None else host.output_device
        if indices != (output,):  # the steps of a wrapped network can't be captured
            devices = tuple(torch.device("cuda", number) for number in indices)
            team = DataParallelWorld(devices, torch.device("cuda", output))
    yield team
