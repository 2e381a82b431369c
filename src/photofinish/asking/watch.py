"""Run a command for a while, and watch the training that it does."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from photofinish.asking.hooks import FOLDER, SITECUSTOMIZE
from photofinish.asking.sample import Figures, Process, Sample
from photofinish.errors import UserError
from photofinish.machine.load import LoadMonitor, LoadWindow
from photofinish.wording import counted, seconds

_POLL_SECONDS = 1.0
_LEAST_SECONDS = 10.0
"""Time of training that is always watched."""
_PRECISE = 0.02
"""Relative error of a step that more steps need not reduce: two runs differ by more."""
_LAST_LINES = 40
_OUTPUT = "output.txt"
_clock = time.perf_counter


@dataclass(frozen=True)
class Limits:
    """Longest times to wait and to watch."""

    training_seconds: float
    """From the first step on."""
    patience_seconds: float
    """Until the first step."""


@dataclass(frozen=True)
class Watched:
    """A command that trained for a while."""

    command: str
    process: Process
    """The process that trained."""
    figures: Figures
    began_at: float
    """Reading of the performance counter, which all processes share."""
    ended_at: float
    began_at_unix_seconds: float
    status: int | None
    """Exit status; None if it was ended here."""
    output: str
    """Last lines of its output, unless it was shown."""
    load: tuple[LoadWindow, ...]


def watch(command: Sequence[str], limits: Limits, *, shows_output: bool) -> Watched:
    """Run the command until its step is known or its time is over, and end it.

    Raise UserError if it took no step that could be timed.
    """
    with tempfile.TemporaryDirectory(prefix="photofinish-") as name:
        folder = Path(name)
        began_at, began_at_unix_seconds = _clock(), time.time()
        with _running(command, folder, shows_output=shows_output) as process:
            sample, load = Sample(folder), LoadMonitor(_no_gpu, own_processes_share_cores=True)
            status = _follow(process, sample, load, limits)
            ended_at = _clock()
            load.sample(1, 1)
        sample.read()
        lines = (folder / _OUTPUT).read_text(encoding="utf-8", errors="replace").splitlines()
    output, trained = "\n".join(lines[-_LAST_LINES:]), sample.process
    figures = trained.figures() if trained else None
    if trained is None or figures is None:
        raise UserError(_no_steps(trained, status, output, limits))
    if trained.device != "cpu":
        raise UserError(
            f"the command computes on {trained.device}, and its time on the CPU is not known: "
            f"let it compute on the CPU, for example by an argument of its own"
        )
    times = began_at, ended_at, began_at_unix_seconds
    return Watched(
        shlex.join(command), trained, figures, *times, status, output, tuple(load.windows)
    )


@contextmanager
def _running(
    command: Sequence[str], folder: Path, *, shows_output: bool
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command with hooks that write to the folder, and kill it in the end."""
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {FOLDER: str(folder), "PYTHONPATH": os.pathsep.join(paths)}
    environment["CUDA_VISIBLE_DEVICES"] = ""  # the CPU is asked about
    with (folder / _OUTPUT).open("wb") as file, _dimmed(is_on=shows_output):
        output = None if shows_output else file
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"{command[0]} can't be run: {error.strerror}") from error
        try:
            yield process
        finally:
            _kill(process)


@contextmanager
def _dimmed(*, is_on: bool) -> Iterator[None]:
    is_on = is_on and sys.stderr.isatty()
    print("\033[2m" if is_on else "", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\033[0m" if is_on else "", end="", file=sys.stderr, flush=True)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and all that it started, with no time to save anything."""
    try:
        leader = psutil.Process(process.pid)
        # Not by its group: torchrun starts its workers in others.
        started = [leader, *leader.children(recursive=True)]
    except psutil.NoSuchProcess:
        started = []
    for one in started:
        try:
            one.kill()
        except psutil.NoSuchProcess:  # it ended by itself in between
            continue
    process.wait()


def _no_gpu() -> tuple[None, tuple[str, ...]]:
    return None, ()


def _follow(
    process: subprocess.Popen[bytes], sample: Sample, load: LoadMonitor, limits: Limits
) -> int | None:
    """Wait until the command has ended or enough is known. Return its exit status or None."""
    began_at, has_begun = _clock(), False
    while True:
        try:
            return process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            sample.read()
        now, trained = _clock(), sample.process
        first_step_at = trained.first_step_at if trained else None
        if trained is None or first_step_at is None:
            left_seconds = limits.patience_seconds - (now - began_at)
            awaited = "an optimizer's first step" if trained else "the script to import torch"
            _show(f"waiting for {awaited}, at most {seconds(max(0.0, left_seconds))} more")
            if left_seconds < 0:
                break
            continue
        if not has_begun:
            load.begin()
            has_begun = True
        figures, passed_seconds = trained.figures(), now - first_step_at
        left_seconds = limits.training_seconds - passed_seconds
        steps = counted(figures.steps if figures else 1, "step")
        _show(
            f"{steps} in {seconds(passed_seconds)}, at most {seconds(max(0.0, left_seconds))} more"
        )
        is_known = figures is not None and figures.relative_error < _PRECISE
        if left_seconds < 0 or (is_known and passed_seconds > _LEAST_SECONDS):
            break
    _show("")
    return None


def _show(text: str) -> None:
    """Write over the progress line, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _no_steps(process: Process | None, status: int | None, output: str, limits: Limits) -> str:
    """Return why nothing could be timed, and what was seen instead."""
    how = f"ended with exit status {status}"
    if status is None:
        limit = limits.training_seconds if process and process.steps else limits.patience_seconds
        how = f"was ended after {seconds(limit)}"
    if process is None:
        what = "never imported torch, in a Python that has photofinish"
    elif process.steps:
        what = f"took only {counted(sum(process.steps), 'step')}, too few to time one"
    else:
        batches, forward_passes = process.seen
        what = (
            f"took no step of an optimizer; it loaded {batches:,} batches with a DataLoader and "
            f"ran {counted(forward_passes, 'module')}"
        )
    text = f"the command {how}. It {what}."
    return f"{output}\n{text}" if status else text
