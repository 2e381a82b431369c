"""Experiments of params.yaml, each measured by its stage into a temporary record."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from photofinish.answer.comparison import Comparison
from photofinish.answer.result import Result
from photofinish.config.base import read_plan
from photofinish.config.compare import Comparing
from photofinish.config.experiment import Experiment, ExperimentPlan
from photofinish.errors import UserError
from photofinish.machine.fingerprint import CpuTarget, GpuTarget, Machine, mismatches, read_host
from photofinish.results.measured import MEASURED, NotMeasured, read_measured
from photofinish.results.measured_job import experiment_job
from photofinish.results.records import DeviceLabel

PLAN = Path("data/plan")
_STAGE = Path("stages/measure.py")
SPLITS, WEIGHTS = Path("data/splits"), Path("data/weights")


def planned_host(device: DeviceLabel) -> CpuTarget | GpuTarget:
    """Read the machine that the plan names for a device."""
    return read_host(device, PLAN / f"hosts/{device}.json")


def sample_on_both(name: str, seconds: float, settings: Comparing) -> Comparison:
    """Compare an experiment on the devices here, by samples of at most `seconds` seconds."""
    planned = read_plan(PLAN / f"experiments/{name}.json", ExperimentPlan)
    if reason := _why_not_here(planned_host("cpu")):
        raise UserError(f"{name} can't be measured on the CPU: {reason}")
    cpu = sample(name, "cpu", planned, seconds)
    reason = _why_not_here(planned_host("gpu"))
    if reason is None:
        try:
            return Comparison(cpu, sample(name, "gpu", planned, seconds), None, settings)
        except UserError as error:
            reason = str(error)
    return Comparison(cpu, None, reason, settings)


def sample(name: str, device: DeviceLabel, planned: ExperimentPlan, seconds: float) -> Result:
    """Measure an experiment on a device for about `seconds` seconds, into a temporary record."""
    on_cpu = device == "cpu"
    with tempfile.TemporaryDirectory(prefix="photofinish-") as folder:
        out = Path(folder)
        arguments = {
            "device": device,
            "steps": PLAN / ("steps_on_cpu" if on_cpu else "steps") / f"{name}.json",
            "job": PLAN / ("on_cpu" if on_cpu else "experiments") / f"{name}.json",
            "host": PLAN / f"hosts/{device}.json",
            "data": SPLITS / planned.dataset,
            "weights": WEIGHTS / name,
            "out": out,
            "seconds": seconds,
        }
        command = [sys.executable, str(_STAGE)]
        command += [text for key, value in arguments.items() for text in (f"--{key}", str(value))]
        # Answers alone go to the standard output.
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            raise UserError(f"{name} can't be measured on the {device.upper()}: see above")
        measured = read_measured(out / MEASURED)
    if isinstance(measured, NotMeasured):
        raise UserError(measured.reason)
    fields = set(Experiment.model_fields)
    job = Experiment.model_validate_json(planned.model_dump_json(include=fields))
    # The CPU trains without settings that only accelerators read, but estimates need them.
    changes = {"experiment": job, "custom_code": planned.custom_code}
    assert measured.training
    record = measured.training.model_copy(update=changes)
    times = experiment_job(measured, job)
    return Result(name, device, times, record.precision, record.parameter_count, record)


def _why_not_here(host: CpuTarget | GpuTarget) -> str | None:
    """Return why a device can't be sampled on this machine, or None."""
    if isinstance(host, GpuTarget) and host.missing:
        return f"no accelerator: {host.missing}"
    differences = mismatches(host, Machine.here())
    return f"it is planned for another machine ({differences[0]})" if differences else None
