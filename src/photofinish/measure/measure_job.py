"""The measuring stage: check the device, then start a process for each device, or act as one."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from photofinish.config.base import read_plan
from photofinish.config.experiment import ExperimentPlan
from photofinish.machine.fingerprint import GpuTarget, check_machine, read_host
from photofinish.results.measured import Measured, NotMeasured, write_measured
from photofinish.results.trained import DeviceLabel
from photofinish.runs.run import REMEDY, Run
from photofinish.stage.locks import exclusive_machine
from photofinish.stage.process import own_rank


def measure_job(
    device: DeviceLabel,
    steps_file: Path,
    host_file: Path,
    data: Path,
    weights: Path | None,
    out: Path,
    seconds: float | None,
    epochs: int,
) -> Measured | None:
    """Measure one experiment on one device, and write the record.

    Return None on other ranks than 0, and if the device is missing. `epochs` is the length of the
    job. Measuring takes about a fifth of it, or about `seconds` if that is less.
    """
    host = read_host(device, host_file)
    steps = read_plan(steps_file, ExperimentPlan)
    rank = own_rank()
    run = Run(steps_file.stem, device, steps, host, data, out, weights)
    if isinstance(host, GpuTarget) and host.missing:
        _write_missing(run, f"no accelerator: {host.missing}")
        return None
    if rank is None:
        check_machine(run.title, host, REMEDY)
    run.check()
    # Imported here, because torch takes seconds and a missing accelerator needs none of it.
    from photofinish.measure.measure import measure
    from photofinish.runs.distributed import failures_left_to_the_stage, launch, team_for
    from photofinish.training.torch_device import NoAcceleratorError

    what = f"measuring {run.title}"
    if rank is None and host.processes > 1:
        launch(host, what)
        return None
    # With several processes, the stage that starts them holds the lock for all.
    with (
        failures_left_to_the_stage(),
        nullcontext(0.0) if rank else exclusive_machine(what) as lock,
    ):
        try:
            with team_for(run, rank) as team:
                measured = measure(run, team, seconds, epochs, lock)
        except NoAcceleratorError as error:
            _write_missing(run, str(error))
            return None
    if measured:
        write_measured(out, measured)
    return measured


def _write_missing(run: Run, reason: str) -> None:
    """Record a missing device. The training stage reports it."""
    write_measured(run.out, NotMeasured(job=run.name, device=run.device, reason=reason))
