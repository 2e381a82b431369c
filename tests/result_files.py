"""Made-up results in memory, and on disk as the stages leave them."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from conftest import MakeResult

from photofinish.answer.comparison import Comparison, compare
from photofinish.config.compare import Comparing
from photofinish.config.experiment import Experiment
from photofinish.files import sha256_of_bytes, write_bytes_atomically
from photofinish.machine.host import package_versions
from photofinish.machine.load import LoadWindow
from photofinish.reporting.sentences import Verdict
from photofinish.results import EpochMetrics, TimedPart, measurements, records
from photofinish.results.measured import MEASURED_FOLDER, Measured, TrainedRecords, write_measured
from photofinish.results.references import Reference
from photofinish.results.trained import (
    DeviceEvaluation,
    DeviceLabel,
    Where,
)
from photofinish.results.training_jobs import (
    job_of_training,
    pair_of_trainings,
    read_experiment,
    with_references,
)

BUSY = LoadWindow(
    wall_seconds=10.0,
    cores=2,
    own_cpu_seconds=10.0,
    others_cpu_seconds=8.0,
    waited_for_core_seconds=None,
    major_page_faults=0,
    swapped_pages=None,
)
"""Other programs use 40 % of the cores."""
STEP = measurements.Operations(
    images=16,
    flops=10**12,
    kernels=100,
    saved_tensor_bytes=10**9,
    peak_allocated_bytes=2**23,
    peak_reserved_bytes=2**24,
    fixed_bytes=2**20,
)
QUIET = BUSY.model_copy(update={"wall_seconds": 1000.0, "others_cpu_seconds": 0.0})
"""A long time without other programs."""


@dataclass(frozen=True)
class Missing:
    """Device that did not train."""

    experiment: str
    device: DeviceLabel
    settings: Experiment
    reason: str = "made up"


DeviceResult = TrainedRecords | Missing
job_of = job_of_training


def changed_history(result: TrainedRecords, **columns: Sequence[float]) -> list[EpochMetrics]:
    """Replace columns of the history."""
    rows = zip(*columns.values(), strict=True)
    return [
        replace(epoch, **dict(zip(columns, row, strict=True)))
        for epoch, row in zip(result.history, rows, strict=True)
    ]


def trained(make_result: MakeResult, *arguments: Any, **settings: Any) -> TrainedRecords:
    """Make the result of a device that trained."""
    result = make_result(*arguments, **settings)
    assert isinstance(result, TrainedRecords)
    return result


def with_record(result: TrainedRecords, **changed: Any) -> TrainedRecords:
    return replace(result, record=result.record.model_copy(update=changed))


def with_timings(result: TrainedRecords, **changed: Any) -> TrainedRecords:
    """Change times of the training, or of its steps."""
    assert result.steps
    load = changed.pop("measured_load", result.measured_load)
    of_steps = {name: changed[name] for name in changed if name in type(result.steps).model_fields}
    times = {name: changed[name] for name in changed if name not in of_steps}
    assert {*times} <= {*type(result.times).model_fields}
    return replace(
        result,
        times=result.times.model_copy(update=times),
        steps=result.steps.model_copy(update=of_steps),
        measured_load=load,
    )


def paired(
    results: Sequence[DeviceResult],
    settings: Comparing | None = None,
    references: Sequence[Reference] = (),
) -> list[Comparison]:
    """Compare the devices of each experiment."""
    gpus = {result.experiment: result for result in results if result.device == "gpu"}
    pairs = []
    for cpu in results:
        if isinstance(cpu, TrainedRecords) and cpu.device == "cpu":
            gpu = gpus.get(cpu.experiment, Missing(cpu.experiment, "gpu", cpu.record.experiment))
            trained_gpu, why = (None, gpu.reason) if isinstance(gpu, Missing) else (gpu, None)
            pairs.append(pair_of_trainings(cpu, trained_gpu, why))
    return [compare(pair, settings) for pair in with_references(pairs, references)]


def pair_of(
    cpu: DeviceResult, gpu: DeviceResult | None = None, settings: Comparing | None = None
) -> Comparison:
    """Compare one experiment, without a GPU by default."""
    (pair,) = paired([cpu, gpu] if gpu else [cpu], settings)
    return pair


def read_pair(name: str, folder: Path, settings: Comparing | None = None) -> Comparison:
    """Compare an experiment as the stages left it in its folder."""
    return compare(read_experiment(name, folder), settings)


def whole_epoch(seconds: float, steps: float, waiting_seconds: float = 0.0) -> TimedPart:
    """Make up an epoch, timed as one part, which waited so long for its batches."""
    holds: Any = "epoch"
    return TimedPart(
        seconds=seconds, steps=steps, epoch=0, holds=holds, waiting_seconds=waiting_seconds
    )


def in_turns(base_seconds: float, changed_seconds: float) -> measurements.InTurns:
    """Make up three equal samples of steps as they are, and with a change."""
    base, changed = (
        measurements.SteadyState(steps_per_sample=1, sample_seconds=(seconds,) * 3)
        for seconds in (base_seconds, changed_seconds)
    )
    return measurements.InTurns(base=base, changed=changed)


def resident_tried(loader_seconds: float, resident_seconds: float) -> measurements.LoaderTimes:
    """Make up steps with resident batches, in turns with those of a loader."""
    turns = in_turns(loader_seconds, resident_seconds)
    tried = measurements.Tried(by="resident", changes={"input": "resident"}, turns=turns)
    return measurements.LoaderTimes(tried_inputs=(tried,))


def made_up_attribution(
    waiting: float,
    copying: float = 0.0,
    step_seconds: float = 0.01,
    other_step_seconds: float = 0.002,
    **others: object,
) -> measurements.StepAttribution:
    """Make up the attribution of steps on 16 samples, with steps on 2 samples."""
    parts = {"forward": 0.003, "backward": 0.005, "optimizer": 0.002, "rest": 0}
    parts |= {"waiting": waiting, "copying": copying}
    turns = in_turns(step_seconds, other_step_seconds)
    settings = {
        "other_batch_images": 2,
        "other_batch": turns.changed,
        "parts": measurements.StepParts(
            **{f"{part}_seconds": (float(value),) * 3 for part, value in parts.items()}
        ),
        **others,
    }
    return measurements.StepAttribution(**settings)


def write_result(results: Path, result: DeviceResult) -> Path:
    """Write `results/<experiment>/<device>` without weights, and return the folder."""
    folder = results / result.experiment / result.device
    if isinstance(result, Missing):
        missing = records.Unavailable(
            device=result.device, experiment=result.settings, reason=result.reason
        )
        records.write_record(folder / records.MODEL / records.RECORD, missing)
        records.write_record(folder / records.TIMINGS_FOLDER / records.TIMINGS, records.Untimed())
        return folder
    records.write_record(folder / records.MODEL / records.RECORD, result.record)
    records.write_record(folder / records.TIMINGS_FOLDER / records.TIMINGS, result.times)
    write_measured(folder / MEASURED_FOLDER, measured_of(result))
    records.write_history(folder / records.MODEL, result.history)
    return folder


def measured_of(result: TrainedRecords) -> Measured:
    """Return the record of `measure` for a result."""
    times = result.times
    assert result.steps
    where = {name: value for name, value in times if name in Where.model_fields}
    return Measured(
        **where,
        **dict(result.steps),
        job=result.experiment,
        device=result.device,
        training=result.record,
        startup_seconds=times.startup_seconds,
        startup_cpu_seconds=times.startup_cpu_seconds or 0.0,
        first_step=result.first_step,
        peak_memory_bytes=times.peak_memory_bytes,
        load=result.measured_load,
    )


def write_trained(results: Path, result: TrainedRecords) -> Path:
    """Write the result with weights that fit the network."""
    from photofinish.models.registry import build_model
    from photofinish.results.learned import weights_of

    record = result.record
    weights = weights_of(
        build_model(record.experiment.model, record.image_shape, len(record.class_names), seed=3)
    )
    complete = replace(
        result,
        record=record.model_copy(update={"weights_sha256": sha256_of_bytes(weights)}),
        times=result.times.model_copy(
            update={"packages": package_versions(), "host_name": platform.node()}
        ),
    )
    folder = write_result(results, complete)
    write_bytes_atomically(folder / records.MODEL / records.WEIGHTS, weights)
    return folder


def write_scores(results: Path, result: TrainedRecords) -> None:
    """Write scores of the weights that are there."""
    training = records.read_training(results / result.experiment / result.device / records.MODEL)
    assert isinstance(training, records.TrainingRecord)
    judged = result.scores.model_copy(update={"weights_sha256": training.weights_sha256})
    scores = records.Evaluation(
        experiment=result.experiment, class_names=("cat", "dog"), devices={result.device: judged}
    )
    records.write_record(
        results / result.experiment / records.EVALUATED / records.EVALUATION, scores
    )


def write_results(results: list[DeviceResult], folder: Path) -> None:
    """Write both devices' results of an experiment."""
    scores: dict[DeviceLabel, DeviceEvaluation] = {}
    predictions = pd.DataFrame()
    for result in results:
        write_result(folder, result)
        if isinstance(result, TrainedRecords):
            scores[result.device] = result.scores
            predictions["actual"] = result.predictions.actual
            predictions[result.device] = result.predictions.predicted
    evaluation = records.Evaluation(
        experiment=results[0].experiment, class_names=("cat", "dog"), devices=scores
    )
    evaluated = folder / results[0].experiment / records.EVALUATED
    records.write_record(evaluated / records.EVALUATION, evaluation)
    write_bytes_atomically(
        evaluated / records.PREDICTIONS, predictions.to_csv(index=False).encode()
    )


def text_of(verdict: Verdict) -> str:
    """Return the answer with all its evidence and doubts."""
    return " ".join([*verdict.lines, *verdict.details, *verdict.cautions])
