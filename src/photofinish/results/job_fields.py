"""Fields of a job: settings, machine, steps and loading, by the records that have them."""

from __future__ import annotations

import json
from typing import Any

from photofinish.config.cuda_graphs import why_not_captured
from photofinish.config.experiment import Experiment, LoaderInput, on_cpu, step_settings
from photofinish.custom.imports import PACKAGE
from photofinish.machine.load import LoadWindow, load_warnings
from photofinish.nested import dotted
from photofinish.results import records
from photofinish.results.job import JobSettings
from photofinish.results.measured import Measured
from photofinish.results.measurements import LoopSteps, StepMeasurements
from photofinish.results.references import code_without_folders, hardware, without_folders
from photofinish.results.timed_parts import EpochByParts
from photofinish.results.trained import DeviceLabel

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
