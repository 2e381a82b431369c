"""Comparisons: for each experiment and script, both devices' results and all findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from photofinish.answer.bounds import SpeedupBounds, speedup_bounds
from photofinish.answer.diagnosis import Diagnosis, diagnose
from photofinish.answer.parity import Parity, parity
from photofinish.answer.renting import RentalComparison, renting
from photofinish.answer.result import Result, Trained, read_results
from photofinish.answer.seeds import OverSeeds, over_seeds
from photofinish.answer.speedups import (
    BreakEvenEpochs,
    Kind,
    Speedup,
    break_even,
    job_speedup,
    speedups,
)
from photofinish.answer.spending import ResourceUse, resource_use
from photofinish.config.compare import Comparing
from photofinish.config.experiment import Experiment, on_cpu, step_settings
from photofinish.config.scripts import PLACEHOLDER, ScriptPlan
from photofinish.custom.imports import PACKAGE
from photofinish.errors import UserError
from photofinish.results import records
from photofinish.results.job_times import JobTimes
from photofinish.results.measured import (
    MEASURED,
    MEASURED_FOLDER,
    Measured,
    NotMeasured,
    read_measured,
)
from photofinish.results.measured_job import MeasuredJob, script_job
from photofinish.results.records import DEVICE_LABELS, DeviceLabel
from photofinish.results.references import (
    Reference,
    code_without_folders,
    hardware,
    without_folders,
)

_MAY_DIFFER = {"dataset", "repeats", "seeds", "epochs"}
"""Settings that change no step: the data set's name, and numbers of repeats, seeds and epochs."""


@dataclass(frozen=True)
class Compared:
    speedups: dict[Kind, Speedup]
    """Speed-ups of step, epoch and job. Only of the job if a run has no steps."""
    break_even: BreakEvenEpochs | None = None


@dataclass(frozen=True)
class Comparison:
    """Comparison of an experiment or script on the CPU and on the GPU.

    Findings that depend on the settings are computed at their first use.
    """

    cpu: Result
    gpu: Result | None
    why_no_gpu: str | None = None
    settings: Comparing = field(default_factory=Comparing)
    references: tuple[Reference, ...] = ()
    """Records of the same steps on other machines, as long as this job. Scripts have none."""
    elsewhere: tuple[Comparison, ...] = ()
    """Comparisons of the same script on rented machines."""

    @property
    def experiment(self) -> str:
        return self.cpu.experiment

    @property
    def trained(self) -> tuple[Result, ...]:
        """Results of the devices that trained, the CPU's first."""
        return (self.cpu, self.gpu) if self.gpu else (self.cpu,)

    @cached_property
    def diagnoses(self) -> dict[DeviceLabel, tuple[Diagnosis, ...]]:
        """Causes on each trained device: of the job if it is mostly start-up, then of an epoch."""
        return {run.device: diagnose(run) for run in self.trained}

    @cached_property
    def compared(self) -> Compared | None:
        """Speed-ups, or None without a GPU."""
        if self.gpu is None:
            return None
        cpu, gpu = self.cpu.timings, self.gpu.timings
        if not (self.cpu.has_steps and self.gpu.has_steps):
            return Compared({"end_to_end": job_speedup(cpu, gpu)})
        return Compared(speedups(cpu, gpu), break_even(cpu, gpu))

    @cached_property
    def bounds(self) -> SpeedupBounds:
        """Upper bounds on the speed-ups by any GPU."""
        return speedup_bounds(self.cpu)

    @cached_property
    def parity(self) -> Parity | None:
        """Comparison of the models. None for scripts and samples, or without a GPU."""
        cpu, gpu = self.cpu.trained, self.gpu.trained if self.gpu else None
        return parity(cpu, gpu, self.settings.same_model_points / 100) if cpu and gpu else None

    @property
    def same_model_references(self) -> tuple[Reference, ...]:
        """Records whose losses are comparable, epoch by epoch."""
        cpu = self.cpu.record
        return tuple(each for each in self.references if cpu and equal_losses(each.training, cpu))

    @property
    def gpus_elsewhere(self) -> list[JobTimes]:
        """Times of this job on GPUs of other machines."""
        recorded = [each.timings for each in self.references if each.training.device == "gpu"]
        return [*recorded, *(each.gpu.timings for each in self.elsewhere if each.gpu)]

    @cached_property
    def renting(self) -> RentalComparison:
        measured = [*(run.timings for run in self.trained[1:]), *self.gpus_elsewhere]
        return renting(self.cpu, self.bounds, self.settings, measured)

    @cached_property
    def uses(self) -> dict[DeviceLabel, ResourceUse]:
        return {run.device: resource_use(run, self.settings) for run in self.trained}

    @cached_property
    def seeds(self) -> dict[DeviceLabel, OverSeeds]:
        """Scores over seeds, for devices that trained from several seeds."""
        target = self.settings.target_accuracy
        trained = [run.trained for run in self.trained if run.trained]
        return {each.device: over_seeds(each, target) for each in trained if each.seed_runs}


def pair_of_trainings(
    cpu: Trained, gpu: Trained | None, why_no_gpu: str | None = None
) -> Comparison:
    """Compare the trainings of an experiment on both devices.

    The CPU's job ends with the GPU's job if early stopping ended that. Without a GPU, it may end
    before its planned epochs.
    """
    if gpu is None:
        early = cpu.record.experiment.early_stopping is not None and cpu.timings.epochs_left > 0
        timings = cpu.timings.model_copy(update={"may_stop_early": early})
        return Comparison(Result.of_training(replace(cpu, timings=timings)), None, why_no_gpu)
    if cpu.timings.epochs_left:
        epochs_left = max(0, gpu.timings.planned_epochs - len(cpu.timings.epochs))
        timings = cpu.timings.model_copy(update={"epochs_left": epochs_left})
        cpu = replace(cpu, timings=timings)
    return Comparison(Result.of_training(cpu), Result.of_training(gpu))


def read_pair(name: str, folder: Path) -> Comparison:
    """Read the results of both devices from an experiment's folder."""
    trained, missing = read_results(name, folder)
    if "cpu" not in trained:
        raise UserError(f"{name} was not trained on the CPU, the baseline: run `dvc repro`")
    return pair_of_trainings(trained["cpu"], trained.get("gpu"), missing.get("gpu"))


def read_script_pair(plan: ScriptPlan, folder: Path, settings: Comparing) -> Comparison:
    """Read the results of both devices from a script's folder.

    A result stays if a changed script fails, so it may be outdated. Results of different versions
    of the script are not compared.
    """
    cpu, gpu = (_measured(folder / device, plan.name, device) for device in DEVICE_LABELS)
    if isinstance(cpu, NotMeasured):
        raise UserError(f"{plan.name} did not run on the CPU, the baseline: run `dvc repro`")
    share = gpu.script.epoch_share if isinstance(gpu, Measured) and gpu.script else None
    on_cpu = result_of_script(script_job(cpu, share), is_outdated=_is_outdated(cpu, plan))
    if isinstance(gpu, NotMeasured):
        return Comparison(on_cpu, None, gpu.reason, settings)
    share = cpu.script.epoch_share if cpu.script else None
    on_gpu = result_of_script(script_job(gpu, share), is_outdated=_is_outdated(gpu, plan))
    files = (each.script and each.script.files for each in (cpu, gpu))
    if len({*map(str, files)}) > 1 or on_gpu.is_outdated != on_cpu.is_outdated:
        why = "what ran there is another version of the script"
        return Comparison(on_cpu, None, why, settings)
    return Comparison(on_cpu, on_gpu, None, settings)


def result_of_script(job: MeasuredJob, *, is_outdated: bool = False) -> Result:
    script = job.script
    assert script
    return Result(
        job.job,
        job.device,
        job,
        script.precision,
        script.parameter_count,
        step_parts_seconds=script.step_parts,
        compiles=script.compiles,
        loader_workers=script.loader_workers,
        step_loading_seconds=script.step_loading_seconds,
        between_seconds=job.epoch_by_parts.between_seconds,
        metrics=script.metrics,
        is_outdated=is_outdated,
    )


def _is_outdated(run: Measured, plan: ScriptPlan) -> bool:
    """Return True if a script's command, files or time limit have changed since it ran."""
    assert run.script
    command = plan.command.replace(PLACEHOLDER, run.script.device_kind)
    return run.script.ran_as != (command, plan.files, plan.time_limit)


def _measured(folder: Path, name: str, device: DeviceLabel) -> Measured | NotMeasured:
    """Return a device's run. There is none if the run on the other device failed first."""
    path = folder / MEASURED_FOLDER / MEASURED
    if device == "gpu" and not path.is_file():
        return NotMeasured(job=name, device=device, reason="it has not run there yet")
    return read_measured(path)


def with_settings(
    pairs: Sequence[Comparison], settings: Comparing, references: Iterable[Reference]
) -> list[Comparison]:
    """Return the comparisons with these settings, each with the references of its steps.

    References of hardware that this machine also has are left out.
    """
    here = {hardware(run.device, run.timings) for pair in pairs for run in pair.trained}
    references = [each for each in references if each.hardware not in here]
    found = []
    for pair in pairs:
        cpu = pair.cpu.record
        own = tuple(
            each.of_length(round(pair.cpu.timings.planned_epochs))
            for each in references
            if cpu and same_steps(each.training, cpu)
        )
        found.append(replace(pair, settings=settings, references=own))
    return found


def same_steps(one: records.TrainingRecord, other: records.TrainingRecord) -> bool:
    """Return True if both trainings take equal steps, so that their times are comparable.

    Settings on which `measure` does not depend may differ, such as epochs and learning rate. So may
    settings that only accelerators read, if the first training is the CPU's.
    """
    settings = [step_settings(each.experiment) for each in (one, other)]
    if one.device == "cpu":
        settings = [on_cpu(each) for each in settings]
    return _is_same(one, other, settings)


def equal_losses(one: records.TrainingRecord, other: records.TrainingRecord) -> bool:
    """Return True if the losses of both trainings are comparable, epoch by epoch.

    The number of epochs may differ, unless the schedule depends on it.
    """
    settings = [on_cpu(each.experiment) for each in (one, other)]
    lengths = {each.epochs for each in settings}
    if len(lengths) > 1 and settings[0].schedule.depends_on_epochs:
        return False
    return _is_same(one, other, settings)


def _is_same(
    one: records.TrainingRecord, other: records.TrainingRecord, settings: Iterable[Experiment]
) -> bool:
    """Return True if settings, data, published weights and custom code are equal."""
    first, second = (without_folders(each.model_dump(exclude=_MAY_DIFFER)) for each in settings)
    return first == second and _sources(one) == _sources(other)


def _sources(record: records.TrainingRecord) -> tuple[Any, ...]:
    code = {
        name: sha256
        for name, sha256 in code_without_folders(record.custom_code).items()
        if not name.startswith(PACKAGE)
    }
    return code, record.data_sha256, record.published_weights_sha256
