"""Several processes that train together: torchrun starts one for each device."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from photofinish.errors import EXIT_FAILED, TerminatedError, UserError
from photofinish.machine.fingerprint import CpuTarget, GpuTarget
from photofinish.runs.run import Run, code_sha256
from photofinish.stage.rank import Rank, is_started_by_stage, note_start_of_stage
from photofinish.training.torch_device import CPU, NoAcceleratorError, accelerator
from photofinish.training.world import (
    COLLECTIVE_TIMEOUT,
    DataParallelWorld,
    DistributedWorld,
    World,
)

_OF_PROJECT = ("code", "settings", "data", "PyTorch")
_SHUTDOWN_SECONDS = 10
"""Time that torchrun leaves a rank to end after SIGTERM."""


def launch(host: CpuTarget | GpuTarget, waited_seconds: float) -> None:
    """Run this process's command again by torchrun, once for each process of the host, and wait."""
    note_start_of_stage(waited_seconds)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(host.processes)]
    command += ["--shutdown-timeout", str(_SHUTDOWN_SECONDS)]
    command += ["--no-python", sys.executable, *sys.orig_argv[1:]]
    environment = {"OMP_NUM_THREADS": str(host.threads or 1), **os.environ}
    # Torchrun's log goes to a pipe. The ranks explain their failures on stdout.
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as torchrun:
        try:
            _, log = torchrun.communicate()
        except (KeyboardInterrupt, TerminatedError):
            torchrun.terminate()
            torchrun.communicate()
            raise
    if torchrun.returncode:
        raise UserError(
            f"{_first_failure(log, host.processes)}. "
            f"Run `dvc repro` again: it resumes from the last checkpoint"
        )


def _first_failure(log: str, processes: int) -> str:
    """Return which rank ended first and how, or all that torchrun logged.

    A rank that notices the end of a killed one may be seen to end before it.
    """
    failures = re.findall(r"^\[\d+\]:\n((?:  .*\n)+)", log, re.MULTILINE)
    if not failures:
        return f"torchrun failed:\n{log.strip()}"
    killed = [failure for failure in failures if re.search(r"Signal \d+ \((?!SIGTERM)", failure)]
    first = (killed or failures)[-1]  # torchrun lists the root cause last
    facts = dict(re.findall(r"^ +(\w+) +: (\S+)", first, re.MULTILINE))
    how = f"ended with exit status {facts['exitcode']}"
    if signal := re.search(r"Signal \d+ \((\w+)\)", first):
        how = f"was killed by {signal[1]}"
        if signal[1] == "SIGKILL":
            how += ", which Linux sends when memory runs out"
    return f"process {facts['rank']} of {processes} (counted from 0) {how}"


@contextmanager
def failures_left_to_the_stage() -> Iterator[None]:
    """End a rank that the stage started as soon as it has failed.

    A normal exit would wait for ranks that may be gone.
    """
    if not is_started_by_stage():
        yield
        return
    os.dup2(1, 2)  # see `launch`
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
def team_for(run: Run, rank: Rank | None) -> Iterator[tuple[torch.device, World]]:
    """Yield this process's device and world.

    NoAcceleratorError is raised before processes meet, in each of them.
    """
    device = _own_device(run, rank)
    if rank is None or rank.size == 1:
        yield device, _world_of_one(run, device)
        return
    dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
    check_same_project(run, rank)
    yield device, DistributedWorld(rank.number, rank.size, device)
    dist.destroy_process_group()  # not after an error: it waits for processes that may be gone


def _own_device(run: Run, rank: Rank | None) -> torch.device:
    host = run.host
    if not isinstance(host, GpuTarget):
        return CPU
    if host.missing:
        raise NoAcceleratorError(f"no accelerator: {host.missing}")
    if host.strategy == "data_parallel":
        return accelerator(host.kind, (host.device_ids or (0,))[0])
    return accelerator(host.kind, rank.local_number if rank else 0)


def _world_of_one(run: Run, device: torch.device) -> World:
    host = run.host
    if not isinstance(host, GpuTarget) or host.strategy != "data_parallel":
        return World(device)
    indices = host.device_ids or tuple(range(len(host.accelerators)))
    output = indices[0] if host.output_device is None else host.output_device
    if indices == (output,):  # steps of a wrapped network can't be captured
        return World(device)
    for index in indices:
        accelerator(host.kind, index, make_current=False)
    devices = tuple(torch.device("cuda", index) for index in indices)
    return DataParallelWorld(devices, torch.device("cuda", output))


def check_same_project(run: Run, rank: Rank) -> None:
    """Raise UserError if ranks read different projects: on several machines, each has a copy."""
    settings = run.experiment.model_dump_json()
    own = code_sha256(), settings, run.data_sha256(), torch.__version__
    everyones: list[Any] = [None] * rank.size
    dist.all_gather_object(everyones, (platform.node(), own))
    first_host, expected = everyones[0]
    for number, (host, theirs) in enumerate(everyones):
        for what, value, other in zip(_OF_PROJECT, expected, theirs, strict=True):
            if value != other:
                raise UserError(
                    f"process {number} (on {host}) has other {what} than process 0 "
                    f"(on {first_host}). Copy the project again, then restart"
                )
