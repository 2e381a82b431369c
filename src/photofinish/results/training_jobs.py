"""Jobs of experiments that trained, here or on another machine."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from photofinish.config.experiment import Experiment, on_cpu
from photofinish.data.tasks import TASKS
from photofinish.errors import UserError
from photofinish.results import passed_seconds, records
from photofinish.results.job import Job, JobPair, JobSettings, TimedShare
from photofinish.results.measured import (
    TrainedRecords,
    epoch_by_parts,
    read_trained,
    with_history,
)
from photofinish.results.measured_jobs import (
    job_settings,
    loading_seconds,
    process_fields,
    step_fields,
)
from photofinish.results.references import Reference, hardware
from photofinish.results.trained import (
    DEVICE_LABELS,
    DeviceEvaluation,
    DeviceLabel,
    Predictions,
    SeedRun,
    Trained,
)


def job_of_training(
    read: TrainedRecords, *, epochs_left: int | None = None, may_stop_early: bool = False
) -> Job:
    """Return the job of a training, which was seen whole, or in part under a time limit."""
    times, record, steps = read.times, read.record, read.steps
    if epochs_left is not None:
        times = times.model_copy(update={"epochs_left": epochs_left})
    epoch_seconds = [epoch.training_seconds for epoch in times.all_epochs]
    training_seconds = sum(epoch.training_seconds for epoch in times.epochs)
    by_parts = None
    if steps and steps.epoch_steps:
        by_parts = epoch_by_parts(steps.parts, steps.epoch_steps)
    settings = job_settings(record)
    return Job(
        name=read.experiment,
        device=record.device,
        settings=settings,
        script=None,
        precision=record.precision,
        parameter_count=record.parameter_count,
        metrics=read.scores.metrics if read.scores else {},
        trained=_trained(read, times, settings, read.scores) if read.scores else None,
        first_step=read.first_step,
        epochs=times.planned_epochs,
        steps_per_epoch=times.steps_per_epoch,
        samples=times.training_image_count,
        timed=TimedShare(len(times.epochs), times.planned_epochs, "epoch"),
        untimed_epochs=float(times.epochs_left),
        startup_seconds=times.startup_seconds,
        startup_cpu_seconds=times.startup_cpu_seconds,
        once_seconds=times.once_seconds,
        passes_seconds=times.whole_seconds - times.once_seconds,
        seeds_seconds=times.seeds_seconds,
        total_seconds=times.total_seconds,
        epoch_seconds=tuple(epoch_seconds),
        pass_seconds=tuple(passed_seconds([epoch]) for epoch in times.all_epochs),
        mean_epoch_seconds=statistics.fmean(epoch_seconds),
        by_parts=by_parts,
        loading_seconds=loading_seconds(record.experiment, steps, by_parts),
        loads_itself=settings.workers == 0,
        validation_share=passed_seconds(times.epochs) / training_seconds - 1,
        data_seconds=times.data_seconds,
        warm_up_seconds=times.warm_up_seconds,
        samples_per_second=times.images_per_second,
        interruptions=len(times.resumed_at_epochs),
        may_stop_early=may_stop_early,
        **process_fields(record.device, times, read.measured_load),
        **step_fields(steps),
    )


def pair_of_trainings(
    cpu: TrainedRecords, gpu: TrainedRecords | None, why_no_gpu: str | None = None
) -> JobPair:
    """Return the jobs of an experiment on both devices.

    The CPU's job ends with the GPU's job if early stopping ended that. Without a GPU, it may end
    before its planned epochs.
    """
    left = cpu.times.epochs_left
    if gpu is None:
        early = cpu.record.experiment.early_stopping is not None and left > 0
        return JobPair(job_of_training(cpu, may_stop_early=early), None, why_no_gpu)
    if left:
        left = max(0, gpu.times.planned_epochs - len(cpu.times.epochs))
    return JobPair(job_of_training(cpu, epochs_left=left), job_of_training(gpu))


def with_references(pairs: Sequence[JobPair], references: Iterable[Reference]) -> list[JobPair]:
    """Return the pairs, each with the jobs of the records that take as many equal steps.

    Settings on which `measure` does not depend may differ, such as epochs and learning rate. So may
    settings that only accelerators read, in another CPU's record. Hardware that this machine also
    has is left out.
    """
    own_hardware = {job.hardware for pair in pairs for job in pair[:2] if job}
    recorded = [
        (job_settings(reference.training), reference)
        for reference in references
        if hardware(reference.training.device, reference.timings) not in own_hardware
    ]
    with_jobs = []
    for pair in pairs:
        jobs, own = [], pair.cpu.settings
        for settings, reference in recorded:
            keys = own and (own.steps_key, settings.steps_key)
            if own and reference.training.device == "cpu":
                keys = own.steps_key_on_cpu, settings.steps_key_on_cpu
            if keys and keys[0] == keys[1]:
                jobs.append(job_of_reference(reference, round(pair.cpu.epochs)))
        with_jobs.append(pair._replace(references=tuple(jobs)))
    return with_jobs


def job_of_reference(reference: Reference, epochs: int) -> Job:
    """Return the job that another machine recorded, with this many epochs: its first, or more."""
    every = reference.timings
    timed = every.epochs[:epochs]
    changes = {
        "epochs": timed,
        "epochs_left": epochs - len(timed),
        "repeats": tuple(repeat[:epochs] for repeat in every.repeats),
        "seeds": tuple(seed[:epochs] for seed in every.seeds),
        "total_seconds": every.total_seconds - passed_seconds(every.epochs[epochs:]),
    }
    times = every.model_copy(update=changes)
    read = TrainedRecords(
        reference.experiment,
        reference.training,
        times,
        times,
        times.measured_load,
        reference.history,
        reference.scores,
        reference.first_step,
    )
    return replace(job_of_training(read), machine=reference.machine)


def _trained(
    read: TrainedRecords,
    times: records.TrainingTimes,
    settings: JobSettings,
    scores: DeviceEvaluation,
) -> Trained:
    record = read.record
    return Trained(
        device=record.device,
        settings=settings.values,
        seed=record.experiment.seed,
        stops_early=settings.stops_early,
        precision=record.precision,
        task=record.task,
        class_names=record.class_names,
        target_shape=record.target_shape,
        test_samples=record.samples.get("test", 0),
        data_sha256=record.data_sha256,
        initial_weights_sha256=record.initial_weights_sha256,
        weights_sha256=record.weights_sha256,
        history=read.history,
        scores=scores,
        predictions=read.predictions,
        first_step=read.first_step,
        no_first_step=read.no_first_step,
        seed_runs=read.seed_runs,
        startup_seconds=times.startup_seconds,
        epochs=times.epochs,
        epochs_left=times.epochs_left,
        repeats=times.repeats,
        seeds=times.seeds,
        resumed_at_epochs=times.resumed_at_epochs,
        overhead=times.overhead,
        steps_taken=times.steps_taken,
    )


def read_experiment(name: str, folder: Path) -> JobPair:
    read: dict[DeviceLabel, tuple[records.TrainingRecord, tuple[SeedRun, ...]]] = {}
    settings: dict[DeviceLabel, Experiment] = {}
    missing: dict[DeviceLabel, str] = {}
    for device in DEVICE_LABELS:
        model = folder / device / records.MODEL
        record = records.read_training(model)
        settings[device] = record.experiment
        if isinstance(record, records.Unavailable):
            missing[device] = record.reason
        else:
            read[device] = record, records.read_seeds(model, record.experiment)
    if "cpu" not in read:
        raise UserError(f"{name} was not trained on the CPU, the baseline: run `dvc repro`")
    cpu, seeds = read["cpu"]
    # Estimates and suggestions also need the settings that only accelerators read.
    if on_cpu(settings["gpu"]) == cpu.experiment:
        read["cpu"] = cpu.model_copy(update={"experiment": settings["gpu"]}), seeds
    evaluated = folder / records.EVALUATED
    scores = records.read_scores(evaluated / records.EVALUATION, read.values())
    predictions = _read_predictions(evaluated / records.PREDICTIONS, list(read), cpu)
    trained: dict[DeviceLabel, TrainedRecords] = {}
    for device, (record, seeds) in read.items():
        own = with_history(name, folder / device, record, *read_trained(folder / device))
        trained[device] = replace(
            own, scores=scores[device], predictions=predictions[device], seed_runs=seeds
        )
    return pair_of_trainings(trained["cpu"], trained.get("gpu"), missing.get("gpu"))


def _read_predictions(
    path: Path, devices: list[DeviceLabel], record: records.TrainingRecord
) -> dict[DeviceLabel, Predictions]:
    import pandas as pd  # no part of an installation for `ask` only

    columns = ["actual", *devices]
    table = pd.read_csv(path, usecols=columns, dtype=TASKS[record.task].predicted_dtype)
    actual = table["actual"].to_numpy()
    return {device: Predictions(actual, table[device].to_numpy()) for device in devices}
