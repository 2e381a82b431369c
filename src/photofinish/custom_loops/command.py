"""The stage of a script: run its command on one device, and record what it measured."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from photofinish.config.base import Record, read_plan
from photofinish.config.scripts import PLACEHOLDER, ScriptPlan
from photofinish.custom_loops.script_device import DEVICE
from photofinish.custom_loops.timed_steps import FOLDER, MEASUREMENTS
from photofinish.errors import TerminatedError, UserError
from photofinish.files import state_folder
from photofinish.machine.fingerprint import (
    CpuTarget,
    GpuTarget,
    check_machine,
    read_host,
    report_missing,
)
from photofinish.machine.load import LoadMonitor, LoadWindow, nvidia_gpu_state
from photofinish.nested import dotted
from photofinish.results import EpochTiming, median_training_seconds
from photofinish.results.job_times import EpochTimes
from photofinish.results.measurements import LoaderTimes, LoopSteps, Operations, SteadyState
from photofinish.results.pass_times import Readings
from photofinish.results.records import DeviceLabel, write_record
from photofinish.results.script_runs import (
    SCRIPT,
    Precision,
    ScriptEpoch,
    ScriptRun,
    ScriptUnavailable,
    read_script_run,
    script_made_here,
)
from photofinish.stage.locks import exclusive, exclusive_machine
from photofinish.stage.process import end_group
from photofinish.wording import counted

HIDING = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}
"""Variables that hide NVIDIA's and AMD's GPUs. Apple's and Intel's GPUs can't be hidden."""
_NOT_COUNTED = "photofinish.steps saw too few steps to count two of them"
_NOT_USED = "the script does not use photofinish.steps"
_LEAST_EPOCHS = 2
"""Fewest epochs to extrapolate from: an interval takes two."""
_GRACE_SECONDS = 5.0
"""Time that a stopped command has to end by itself, before its stage is killed."""


class _Measurements(Record):
    """Measurements of `photofinish.steps` in the script's process."""

    epochs: tuple[ScriptEpoch, ...] = ()
    operations: Operations | None = None
    precision: Precision = "fp32"
    parameter_count: int | None = None
    loader: LoaderTimes | None = None
    taking_apart_seconds: float = 0.0
    """Time spent on timing the loader's parts. It is not part of the job."""
    used_accelerator: bool = False
    """True if the CPU's run used an accelerator."""
    readings: Readings = Readings()
    """Memory readings. Peak memory is 0 for an accelerator that was not used."""

    @property
    def whole_epochs(self) -> tuple[ScriptEpoch, ...]:
        """Epochs that the script completed, or all epochs if it completed none."""
        return tuple(epoch for epoch in self.epochs if epoch.is_whole) or self.epochs


@dataclass(frozen=True)
class _Ran:
    """Run of the command."""

    began_at: float
    """Reading of the monotonic clock."""
    ended_at: float
    measured: _Measurements
    load: tuple[LoadWindow, ...]
    ended: str | None = None
    """How the command failed or was stopped."""
    stop: BaseException | None = None
    """Signal that ended this stage."""


def run_script(device: DeviceLabel, plan_file: Path, host_file: Path, out: Path) -> None:
    """Run a script on one device, or record that the device is missing."""
    plan = read_plan(plan_file, ScriptPlan)
    host = read_host(device, host_file)
    check_machine(f"scripts.{plan.name} on {device}", host, "Run `dvc repro` on that machine")
    if isinstance(host, GpuTarget) and host.missing:
        _record_unavailable(plan, device, host, out)
        return
    kind = host.accelerators[0].kind if isinstance(host, GpuTarget) else "cpu"
    command = plan.command.replace(PLACEHOLDER, kind)
    metrics_file = Path(plan.metrics) if plan.metrics else None
    before = _state(metrics_file)
    with exclusive(state_folder() / "locks", str(out.resolve())), exclusive_machine(command):
        started_at_unix_seconds = time.time()
        ran = _run(command, kind, host.threads or 1)
    _check_device(plan.name, kind, ran.measured)
    has_metrics = bool(metrics_file) and _state(metrics_file) not in (None, before)
    measured = ran.measured
    record = ScriptRun(
        device=device,
        device_kind=kind,
        command=command,
        files=plan.files,
        precision=measured.precision,
        parameter_count=measured.parameter_count,
        epochs=measured.whole_epochs,
        ended=ran.ended,
        metrics=dict(_numbers(metrics_file)) if metrics_file and has_metrics else {},
        timings=_timings(host, ran, started_at_unix_seconds, plan),
    )
    if not ran.ended:
        write_record(out / SCRIPT, record)
        _check_settings(plan, ran.measured, has_metrics=has_metrics)
        return
    name = f"scripts.{plan.name} on {device}"
    message = f"{name} ended with {ran.ended}: {command}. {_keep(record, out)}"
    if ran.stop:
        print(message, file=sys.stderr)
        raise ran.stop
    raise UserError(message)


def _keep(record: ScriptRun, out: Path) -> str:
    """Keep what a script measured before it ended, unless an earlier run of it was complete.

    Return what became of it.
    """
    earlier = None
    with suppress(UserError):  # no record, or by another version of photofinish
        earlier = read_script_run(out)
    if isinstance(earlier, ScriptRun):
        of_same_code = (earlier.command, earlier.files) == (record.command, record.files)
        if of_same_code and not earlier.ended:
            return "The earlier result stays"
    if not record.epochs:
        stays = ", and the earlier result stays" if isinstance(earlier, ScriptRun) else ""
        return f"It measured no epoch{stays}"
    write_record(out / SCRIPT, record)
    epochs = counted(len(record.epochs), "epoch")
    left = record.timings.epochs_left
    what = f"all {left + len(record.epochs)} epochs" if left else "this part of the job"
    return f"Kept {epochs}: `dvc repro --single-item compare` answers for {what}"


def _check_settings(plan: ScriptPlan, measured: _Measurements, *, has_metrics: bool) -> None:
    """Raise UserError if the plan expects what a complete run did not do. Its record is kept."""
    problems = []
    if plan.metrics and not has_metrics:
        problems.append(
            f"scripts.{plan.name}.metrics is {plan.metrics}, and the command did not write it: "
            f"write it, or correct the path in params.yaml"
        )
    if plan.epochs and not _can_extrapolate(measured):
        problems.append(
            f"scripts.{plan.name}.epochs is {plan.epochs} in params.yaml, and photofinish.steps "
            f"saw {counted(len(measured.epochs), 'epoch')} of it: let the command train two, or "
            f"leave epochs out"
        )
    if problems:
        kept = "What it measured is kept: `dvc repro --single-item compare` answers for it"
        raise UserError(". ".join([*problems, kept]))


def _can_extrapolate(measured: _Measurements) -> bool:
    return len(measured.whole_epochs) >= _LEAST_EPOCHS


def _check_device(name: str, kind: str, measured: _Measurements) -> None:
    """Raise UserError if the command computed on another device than it should."""
    if measured.used_accelerator:
        raise UserError(
            f"scripts.{name}: the command used an accelerator in the CPU's run, and nothing hides "
            f"this kind. Let it compute on the device that {PLACEHOLDER} in the command names"
        )
    if measured.epochs and measured.readings.peak_memory_bytes == 0:
        raise UserError(
            f"scripts.{name}: the command did not use {kind}, so it timed no "
            f"accelerator. Let the script compute on it if torch.cuda.is_available(), or on the "
            f"device that {PLACEHOLDER} in the command names"
        )


def _record_unavailable(plan: ScriptPlan, device: DeviceLabel, host: GpuTarget, out: Path) -> None:
    reason = f"no accelerator: {host.missing}"
    report_missing(f"{plan.name} on {device}", host, reason)
    record = ScriptUnavailable(device=device, command=plan.command, reason=reason)
    write_record(out / SCRIPT, record)


def _run(command: str, kind: str, threads: int) -> _Ran:
    """Run the command with its output on the terminal."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"OMP_NUM_THREADS": str(threads), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        environment |= os.environ
        environment |= {FOLDER: folder, DEVICE: kind}
        if kind == "cpu":
            environment |= HIDING  # so that the script can't compute on a GPU unnoticed
        load = LoadMonitor(nvidia_gpu_state(None), own_processes_share_cores=True)
        began_at, ended, stop = time.monotonic(), None, None
        try:
            if status := _wait_for(command, environment):
                ended = f"exit status {status}" if status > 0 else signal.Signals(-status).name
        except (KeyboardInterrupt, TerminatedError) as error:
            ended, stop = "a signal to its stage", error
        ended_at = time.monotonic()
        load.sample(1, 1)
        file = Path(folder, MEASUREMENTS)
        text = file.read_bytes() if file.is_file() else b"{}"
        measured = _Measurements.model_validate_json(text)
    ended_at -= measured.taking_apart_seconds
    if ended and measured.epochs:
        measured = measured.model_copy(update={"epochs": measured.whole_epochs})
        ended_at = measured.epochs[-1].ended_at
    return _Ran(began_at, ended_at, measured, tuple(load.windows), ended, stop)


def in_shell(command: str) -> list[str]:
    """Return the program that runs a command of params.yaml."""
    return ["cmd", "/c", command] if os.name == "nt" else ["/bin/sh", "-c", command]


def _wait_for(command: str, environment: dict[str, str]) -> int:
    """Run a command in a shell. If this stage is ended, end all of the command's processes.

    The command gets Ctrl-C first, after which Python still writes what was measured.
    """
    process = subprocess.Popen(in_shell(command), env=environment, start_new_session=True)
    try:
        return process.wait()
    except BaseException:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            end_group(process.pid)
        process.wait()
        raise


def _state(file: Path | None) -> tuple[int, int] | None:
    if file is None or not file.is_file():
        return None
    status = file.stat()
    return status.st_mtime_ns, status.st_size


def _numbers(file: Path) -> Iterator[tuple[str, float | None]]:
    """Yield each number in a JSON file, with its dotted key."""
    for name, value in dotted(json.loads(file.read_bytes())):
        if isinstance(value, int | float) and name:
            yield name, float(value) if math.isfinite(value) else None


def _timings(
    host: CpuTarget | GpuTarget, ran: _Ran, started_at_unix_seconds: float, plan: ScriptPlan
) -> EpochTimes:
    measured = ran.measured
    total_seconds = ran.ended_at - ran.began_at
    startup_seconds, samples, not_counted = 0.0, 0, _NOT_USED
    steps_per_epoch, loop_steps = None, None
    epochs: tuple[EpochTiming, ...]
    epochs = (EpochTiming(total_seconds, 0.0, started_at_unix_seconds + total_seconds),)
    step_seconds: tuple[float, ...] = (total_seconds,)
    if measured.epochs:
        # Counting slows a step down, so counted steps count with the time of other steps.
        for epoch in measured.epochs:
            total_seconds -= epoch.seconds_lost
        startup_seconds = measured.whole_epochs[0].began_at - ran.began_at
        epochs = tuple(_epochs(ran, started_at_unix_seconds))
        step_seconds = tuple(epoch.step_seconds for epoch in measured.whole_epochs)
        samples = round(statistics.median(e.samples or e.steps for e in measured.whole_epochs))
        steps_per_epoch = round(statistics.median(e.steps for e in measured.whole_epochs))
        loop_steps = _loop_steps(measured.whole_epochs)
        not_counted = _NOT_COUNTED
    counts_samples = all(epoch.samples for epoch in measured.epochs)
    return EpochTimes(
        **script_made_here(host),
        **dict(measured.readings),
        started_at_unix_seconds=started_at_unix_seconds,
        startup_seconds=startup_seconds,
        total_seconds=total_seconds,
        epochs=epochs,
        epochs_left=max(0, (plan.epochs or 0) - len(epochs)) if _can_extrapolate(measured) else 0,
        training_image_count=samples,
        images_per_second=samples / median_training_seconds(epochs) if counts_samples else None,
        steps_per_epoch=steps_per_epoch,
        steady_state=SteadyState(steps_per_sample=1, sample_seconds=step_seconds),
        loop_steps=loop_steps,
        load=ran.load,
        loader=measured.loader,
        operations=measured.operations,
        not_counted=None if measured.operations else not_counted,
    )


def _loop_steps(epochs: Sequence[ScriptEpoch]) -> LoopSteps | None:
    """Return the steps of the quickest epoch on the CPU, or None on an accelerator."""
    quickest = [e.quickest_step_seconds for e in epochs if e.quickest_step_seconds is not None]
    if not quickest:
        return None
    cpu = [
        epoch.cpu_seconds / max(1, epoch.steps - len(epoch.counted_seconds))
        for epoch in epochs
        if epoch.cpu_seconds is not None
    ]
    return LoopSteps(quickest_seconds=min(quickest), cpu_seconds=min(cpu, default=None))


def _epochs(ran: _Ran, started_at_unix_seconds: float) -> Iterator[EpochTiming]:
    """Yield the time of each epoch, and the time from its end to the start of the next epoch.

    After the last epoch, a script may save and test its network. That is not part of an epoch.
    """
    epochs = ran.measured.whole_epochs
    between = [after.began_at - before.ended_at for before, after in pairwise(epochs)]
    rest_seconds = ran.ended_at - epochs[-1].ended_at
    between.append(min(rest_seconds, statistics.median(between)) if between else 0.0)
    for epoch, seconds in zip(epochs, between, strict=True):
        ended_at_unix_seconds = started_at_unix_seconds + epoch.ended_at - ran.began_at
        yield EpochTiming(epoch.full_seconds, max(0.0, seconds), ended_at_unix_seconds)
