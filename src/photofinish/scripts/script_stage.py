"""The stage of a script: run its command on one device, and record what it measured."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from photofinish.config.base import read_plan
from photofinish.config.scripts import PLACEHOLDER, ScriptPlan
from photofinish.custom.imports import name_of
from photofinish.custom.running import is_custom_file
from photofinish.errors import TerminatedError, UserError
from photofinish.files import kept_copy, state_folder
from photofinish.machine.fingerprint import GpuTarget, check_machine, read_host, report_missing
from photofinish.nested import dotted
from photofinish.results.measured import (
    MEASURED,
    MEASURED_FOLDER,
    Measured,
    NotMeasured,
    read_measured,
    write_measured,
)
from photofinish.results.trained import DeviceLabel
from photofinish.scripts.run_script import Watched, run_recorded
from photofinish.scripts.script_record import (
    hashes_of,
    measured_script,
    missing_length,
    steps_of_epoch,
)
from photofinish.stage.locks import exclusive, exclusive_machine
from photofinish.stage.process import end_group, stop_timer
from photofinish.wording import counted

_LEAST_EPOCHS = 2
"""Fewest epochs to extrapolate from: an interval takes two."""
_GRACE_SECONDS = 5.0
"""Time that a stopped command has to end by itself, before its stage is killed."""


def run_script(device: DeviceLabel, plan_file: Path, host_file: Path, out: Path) -> None:
    plan = read_plan(plan_file, ScriptPlan)
    host = read_host(device, host_file)
    check_machine(f"scripts.{plan.name} on {device}", host, "Run `dvc repro` on that machine")
    folder = out / MEASURED_FOLDER
    if isinstance(host, GpuTarget) and host.missing:
        reason = f"no accelerator: {host.missing}"
        report_missing(f"{plan.name} on {device}", host, reason)
        write_measured(folder, NotMeasured(job=plan.name, device=device, reason=reason))
        return
    kind = "cpu"
    gpus: Sequence[int] = ()
    if isinstance(host, GpuTarget):
        kind = host.accelerators[0].kind
        gpus = host.device_ids or range(len(host.accelerators))
    command = plan.command.replace(PLACEHOLDER, kind)
    metrics_file = Path(plan.metrics) if plan.metrics else None
    before = _state(metrics_file)
    with exclusive(state_folder() / "locks", str(out.resolve())), exclusive_machine(command):
        for name, sha256 in hashes_of(plan.files).items():
            if plan.files.get(name, sha256) != sha256:  # another script's run may have taken hours
                raise UserError(f"{name} changed after `plan` read it: run `dvc repro` again")
        if kept_copy(folder).is_dir() and not (folder / MEASURED).exists():  # DVC removed it
            shutil.copytree(kept_copy(folder), folder, dirs_exist_ok=True)
        run, stop = _run(command, kind, gpus, host.threads or 1, plan.time_limit)
    _check_device(plan.name, kind, run)
    if run.status is None:
        metrics_file = None  # a part of the training has other metrics than all of it
    has_metrics = bool(metrics_file) and _state(metrics_file) not in (None, before)
    metrics: dict[str, float | None] = {}
    if metrics_file and has_metrics:
        for key, value in dotted(json.loads(metrics_file.read_bytes())):
            if isinstance(value, int | float) and key:
                metrics[key] = float(value) if math.isfinite(value) else None
    epochs = plan.epochs if _can_extrapolate(run) else None
    of_plan = {"files": plan.files, "metrics": metrics, "time_limit": plan.time_limit}
    record = measured_script(plan.name, run, kind, host, epochs, **of_plan)
    if not run.ended:
        write_measured(folder, record)
        _report_missing_deps(plan, run)
        _check_settings(plan, run, has_metrics=has_metrics)
        return
    name = f"scripts.{plan.name} on {device}"
    message = f"{name} ended with {run.ended}: `{command}`. {_keep(record, run, folder)}"
    if stop:
        print(message, file=sys.stderr)
        raise stop
    raise UserError(message)


def _keep(record: Measured, run: Watched, folder: Path) -> str:
    """Keep what a script measured before it ended, unless an earlier run of it was complete.

    Return what became of it.
    """
    earlier = None
    with suppress(UserError):  # no record, or by another version of photofinish
        earlier = read_measured(folder / MEASURED)
    now = record.script
    before = earlier.script if isinstance(earlier, Measured) else None
    assert now
    if before and not before.ended and before.ran_as == now.ran_as:
        return "The earlier result is kept"
    if not run.figures:
        return f"No step was timed{', so the earlier result is kept' if before else ''}"
    write_measured(folder, record)
    length = now.lengths[0]
    what = "this part of the job"
    if length.unit == "epochs":
        what = f"all {counted(round(length.value), 'epoch')}"
    steps = counted(now.steps, "step")
    return f"Kept {steps}: `dvc repro --single-item compare` uses them to answer for {what}"


def _check_settings(plan: ScriptPlan, run: Watched, *, has_metrics: bool) -> None:
    """Raise UserError if the plan expects what a complete run did not do. Its record is kept."""
    problems = []
    if plan.metrics and run.status is not None and not has_metrics:
        problems.append(
            f"scripts.{plan.name}.metrics is {plan.metrics}, but the command didn't write it: "
            f"write it, or correct the path in params.yaml"
        )
    if run.status is None and not plan.epochs and missing_length(run, None):
        problems.append(
            f"scripts.{plan.name}.time_limit stopped the command, and its whole length couldn't be "
            f"found: set scripts.{plan.name}.epochs in params.yaml"
        )
    if plan.epochs and not _can_extrapolate(run):
        epochs = run.figures.epochs if run.figures else 0
        problems.append(
            f"scripts.{plan.name}.epochs is {plan.epochs} in params.yaml, but only "
            f"{counted(epochs, 'epoch')} began: let the command train two with a DataLoader or "
            f"`photofinish.steps`, or remove epochs"
        )
    if problems:
        kept = "What it measured is kept: `dvc repro --single-item compare` answers from it"
        raise UserError(". ".join([*problems, kept]))


def _report_missing_deps(plan: ScriptPlan, run: Watched) -> None:
    files = filter(is_custom_file, run.process.files if run.process else ())
    loaded = {name_of(Path(file)) for file in files}
    lacking = [name for name in loaded if not any(map(Path(name).is_relative_to, plan.files))]
    if lacking:
        print(
            f"scripts.{plan.name} loads code that is not in its deps in params.yaml: "
            f"{', '.join(sorted(lacking))}. Add it, or edits to it won't rerun the script",
            file=sys.stderr,
        )


def _can_extrapolate(run: Watched) -> bool:
    if run.status is None:
        return steps_of_epoch(run) is not None
    return bool(run.figures and run.figures.epochs >= _LEAST_EPOCHS)


def _check_device(name: str, kind: str, run: Watched) -> None:
    used = run.process and run.process.used_accelerator
    if kind == "cpu" and used:
        raise UserError(
            f"scripts.{name}: the command used a GPU in its run on the CPU, and this kind can't be "
            f"hidden. Put {PLACEHOLDER} in the command, and let the script use that device"
        )
    if kind != "cpu" and run.figures and not used:
        raise UserError(
            f"scripts.{name}: the command did not use {kind}, so no GPU was timed. Let the script "
            f"use it if torch.cuda.is_available(), or put {PLACEHOLDER} in the command and use "
            f"that device"
        )


def _run(
    command: str, kind: str, gpus: Sequence[int], threads: int, limit_seconds: float | None
) -> tuple[Watched, BaseException | None]:
    """Run the command with its output on the terminal. Return the signal that ended this stage."""
    stops: list[BaseException] = []

    def until(process: subprocess.Popen[bytes], *_: object) -> int | None:
        try:
            return process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            return None
        except (KeyboardInterrupt, TerminatedError) as error:
            stops.append(error)
            stop_timer()  # so that what was measured is kept
            _end(process)
            return process.wait() or 1

    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    run = run_recorded(command, kind, until, variables, gpus=gpus)
    if stops:
        run = replace(run, ended="a signal to its stage")
    elif run.status is None and run.figures is None:
        run = replace(run, ended="its time_limit, before a step was timed")
    return run, next(iter(stops), None)


def in_shell(command: str) -> list[str]:
    return ["cmd", "/c", command] if os.name == "nt" else ["/bin/sh", "-c", command]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command with its stage: by Ctrl-C, after which Python writes what was measured."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        end_group(process.pid)


def _state(file: Path | None) -> tuple[int, int] | None:
    if file is None or not file.is_file():
        return None
    status = file.stat()
    return status.st_mtime_ns, status.st_size
