"""Jobs of experiments that were measured, and of scripts, by a part of their steps.

Trainings share the functions for a job's settings, machine, steps and loading.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from photofinish.config.cuda_graphs import why_not_captured
from photofinish.config.experiment import Experiment, LoaderInput, on_cpu, step_settings
from photofinish.config.scripts import PLACEHOLDER, ScriptPlan
from photofinish.custom.imports import PACKAGE
from photofinish.errors import UserError
from photofinish.machine.load import LoadWindow, load_warnings
from photofinish.nested import dotted
from photofinish.results import records
from photofinish.results.job import Job, JobPair, JobSettings, TimedShare
from photofinish.results.measured import (
    MEASURED,
    MEASURED_FOLDER,
    EpochByParts,
    Measured,
    NotMeasured,
    epoch_by_parts,
    read_measured,
)
from photofinish.results.measurements import LoopSteps, StepMeasurements
from photofinish.results.references import code_without_folders, hardware, without_folders
from photofinish.results.trained import DEVICE_LABELS, DeviceLabel

_MAY_DIFFER = {"dataset", "repeats", "seeds", "epochs"}
"""Settings that change no step: the data set's name, and numbers of repeats, seeds and epochs."""


def job_settings(record: records.TrainingRecord) -> JobSettings:
    experiment, loader = record.experiment, None
    if isinstance(experiment.input, LoaderInput):
        loader = experiment.input
    depends = experiment.schedule.depends_on_epochs
    of_steps = step_settings(experiment)
    return JobSettings(
        values={name: str(value) for name, value in dotted(experiment.model_dump(mode="json"))},
        dataset=experiment.dataset,
        network=experiment.model.name,
        batch_size=experiment.batch_size,
        precision=experiment.precision,
        workers=loader.workers if loader else None,
        persistent_workers=bool(loader and loader.persistent_workers),
        overlaps_copies=bool(loader and loader.pin_memory and loader.non_blocking),
        is_captured=why_not_captured(experiment) is None,
        stops_early=experiment.early_stopping is not None,
        depends_on_epochs=depends,
        steps_key=_key(record, of_steps),
        steps_key_on_cpu=_key(record, on_cpu(of_steps)),
        losses_key=_key(record, on_cpu(experiment), experiment.epochs if depends else None),
    )


def _key(
    record: records.TrainingRecord,
    settings: Experiment,
    epochs: int | None = None,
) -> str:
    code = {
        name: sha256
        for name, sha256 in code_without_folders(record.custom_code).items()
        if not name.startswith(PACKAGE)
    }
    values = without_folders(settings.model_dump(mode="json", exclude=_MAY_DIFFER))
    sources = code, record.data_sha256, record.published_weights_sha256
    return json.dumps([values, epochs, *sources], sort_keys=True)


def process_fields(
    device: DeviceLabel,
    process: records.TrainingTimes | Measured,
    measured_load: tuple[LoadWindow, ...],
) -> dict[str, Any]:
    load = process.load
    return {
        "host": process.host,
        "host_name": process.host_name,
        "device_name": process.device_name,
        "device_count": process.device_count,
        "hardware": hardware(device, process),
        "started_at_unix_seconds": process.started_at_unix_seconds,
        "peak_memory_bytes": process.peak_memory_bytes,
        "peak_host_memory_bytes": process.peak_host_memory_bytes,
        "load": load,
        "measured_load": measured_load,
        "busy": tuple(load_warnings(load)),
        "step_warnings": tuple(load_warnings(measured_load)),
    }


def step_fields(
    steps: StepMeasurements | None, loop_steps: LoopSteps | None = None
) -> dict[str, Any]:
    steps = steps or StepMeasurements(parts=())
    return steps.own_fields() | {"loop_steps": loop_steps, "step_seconds": _step_seconds(steps)}


def _step_seconds(steps: StepMeasurements) -> tuple[float, ...]:
    if steps.steady_state:
        return tuple(steps.steady_state.step_seconds)
    steady = [part for part in steps.parts if part.holds != "start"] or steps.parts
    step = min(1.0, steps.epoch_steps or 1.0)  # an epoch may be smaller than a batch
    return tuple(
        step * (part.seconds - (part.waiting_seconds or 0.0)) / part.steps for part in steady
    )


def loading_seconds(
    experiment: Experiment,
    steps: StepMeasurements | None,
    by_parts: EpochByParts | None,
) -> float | None:
    """Return the time to load an epoch's batches, or None if workers' loading was not timed."""
    source = experiment.input
    waited_seconds = by_parts.mean_waiting_seconds if by_parts else 0.0
    if not (isinstance(source, LoaderInput) and source.workers):
        return waited_seconds
    loader = steps.loader if steps else None
    if steps is None or loader is None or not steps.epoch_steps:
        return None
    own = [tried for tried in loader.tried_workers if tried.workers == source.workers]
    seconds = own[0].batch_seconds if own else loader.whole_seconds / source.workers
    seconds *= steps.epoch_steps
    if not source.persistent_workers:
        seconds += loader.start_seconds_by(source.workers)
    return max(waited_seconds, seconds)


def measured_job(
    measured: Measured,
    epochs: float,
    epoch_steps: float,
    seeds: int = 1,
    record: records.TrainingRecord | None = None,
    *,
    is_outdated: bool = False,
) -> Job:
    """Return a job that was measured in part, with the length of the whole job.

    `record` has all settings of an experiment, also those that no step depends on.
    """
    script, record = measured.script, record or measured.training
    of_whole = record or script
    assert of_whole
    by_parts = epoch_by_parts(measured.parts, epoch_steps)
    validation_seconds = epoch_steps * measured.validation_step_seconds
    parts_seconds = sum(part.seconds for part in measured.parts)
    timed_steps = script.steps if script else sum(part.steps for part in measured.parts)
    passes_seconds = epochs * (by_parts.seconds + validation_seconds)
    settings = job_settings(record) if record else None
    samples = 0
    if measured.training:
        samples = measured.training.samples["train"]
    elif script and script.samples_per_step:
        samples = round(epoch_steps * script.samples_per_step)
    whole_steps = math.ceil(epoch_steps) if float(epochs).is_integer() else epoch_steps
    return Job(
        name=measured.job,
        device=measured.device,
        settings=settings,
        script=script,
        precision=of_whole.precision,
        parameter_count=of_whole.parameter_count,
        metrics=script.metrics if script else {},
        trained=None,
        first_step=measured.first_step,
        epochs=epochs,
        steps_per_epoch=math.ceil(epoch_steps),
        samples=samples,
        timed=TimedShare(timed_steps, epochs * whole_steps, "step"),
        untimed_epochs=max(0.0, epochs - timed_steps / epoch_steps),
        startup_seconds=measured.startup_seconds,
        startup_cpu_seconds=measured.startup_cpu_seconds,
        once_seconds=measured.startup_seconds + by_parts.once_seconds + measured.end_seconds,
        passes_seconds=passes_seconds,
        seeds_seconds=(seeds - 1) * passes_seconds,
        total_seconds=measured.startup_seconds + parts_seconds + measured.end_seconds,
        epoch_seconds=by_parts.values,
        pass_seconds=tuple(seconds + validation_seconds for seconds in by_parts.values),
        mean_epoch_seconds=by_parts.seconds,  # the last part may be a small batch
        by_parts=by_parts,
        loading_seconds=loading_seconds(record.experiment, measured, by_parts)
        if record
        else by_parts.mean_waiting_seconds,
        loads_itself=settings.workers == 0 if settings else not (script and script.loader_workers),
        validation_share=validation_seconds / by_parts.seconds,
        samples_per_second=samples / by_parts.seconds if samples else None,
        is_bound=bool(script and script.is_bound),
        is_outdated=is_outdated,
        **process_fields(measured.device, measured, measured.load),
        **step_fields(measured, measured.loop_steps),
    )


def job_of_experiment(
    measured: Measured, experiment: Experiment, custom_code: Mapping[str, str] | None = None
) -> Job:
    """Return an experiment's whole job, of which only a sample was measured."""
    assert measured.training
    assert measured.epoch_steps
    changes: dict[str, Any] = {"experiment": experiment}
    if custom_code is not None:
        changes["custom_code"] = custom_code
    record = measured.training.model_copy(update=changes)
    length = experiment.epochs, measured.epoch_steps, experiment.seeds
    return measured_job(measured, *length, record)


def job_of_script(
    measured: Measured, epoch_share: float | None = None, *, is_outdated: bool = False
) -> Job:
    """Return a script's whole job, or what it ran if its length is not known.

    `epoch_share` is what another run saw of an epoch's length, if this one did not.
    """
    assert measured.script
    steps = float(measured.script.steps)
    length = next(iter(measured.script.lengths), None)
    epoch_steps = measured.epoch_steps
    if epoch_steps:
        epoch_steps *= measured.script.epoch_share or epoch_share or 1.0
    epochs = in_epochs(steps, epoch_steps)
    if length and length.unit == "epochs" and epoch_steps:
        epochs = length.value, epoch_steps
    elif length and length.unit == "steps":
        epochs = in_epochs(length.value, epoch_steps)
    return measured_job(measured, *epochs, is_outdated=is_outdated)


def in_epochs(steps: float, epoch_steps: float | None) -> tuple[float, float]:
    """Return the numbers of epochs and of an epoch's steps, or one epoch if that is not known."""
    return (steps / epoch_steps, epoch_steps) if epoch_steps else (1.0, steps)


def read_script(plan: ScriptPlan, folder: Path) -> JobPair:
    """Read the jobs of a script on both devices, or why there is none on the GPU.

    A result stays if a changed script fails, so it may be outdated. Results of different versions
    of the script are not compared.
    """
    cpu_file, gpu_file = (folder / device / MEASURED_FOLDER / MEASURED for device in DEVICE_LABELS)
    cpu = read_measured(cpu_file)
    if isinstance(cpu, NotMeasured):
        raise UserError(f"{plan.name} did not run on the CPU, the baseline: run `dvc repro`")
    assert cpu.script
    # There is none if the run on the CPU failed first.
    gpu = read_measured(gpu_file) if gpu_file.is_file() else None
    if gpu is None or isinstance(gpu, NotMeasured):
        job = job_of_script(cpu, is_outdated=_is_outdated(cpu, plan))
        return JobPair(job, None, gpu.reason if gpu else "it has not run there yet")
    assert gpu.script
    shares = gpu.script.epoch_share, cpu.script.epoch_share
    on_cpu, on_gpu = (
        job_of_script(run, share, is_outdated=_is_outdated(run, plan))
        for run, share in zip((cpu, gpu), shares, strict=True)
    )
    if cpu.script.files != gpu.script.files or on_cpu.is_outdated != on_gpu.is_outdated:
        return JobPair(on_cpu, None, "what ran there is another version of the script")
    return JobPair(on_cpu, on_gpu)


def _is_outdated(run: Measured, plan: ScriptPlan) -> bool:
    """Return True if a script's command, files or time limit have changed since it ran."""
    assert run.script
    command = plan.command.replace(PLACEHOLDER, run.script.device_kind)
    return run.script.ran_as != (command, plan.files, plan.time_limit)
