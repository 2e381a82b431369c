"""Jobs and models as plain values: what a test does not name has its one default here."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from result_files import BUSY, whole_epoch

from photofinish.answer.comparison import Comparison, compare
from photofinish.config.compare import Comparing
from photofinish.machine.fingerprint import CpuTarget
from photofinish.machine.host import CpuFacts, Software
from photofinish.machine.load import LoadWindow, load_warnings
from photofinish.results import EpochMetrics, EpochTiming, TimedPart
from photofinish.results.job import Job, JobPair, JobSettings, TimedShare
from photofinish.results.measured import ScriptFacts, epoch_by_parts
from photofinish.results.measurements import SteadyState
from photofinish.results.trained import (
    DeviceEvaluation,
    DeviceLabel,
    FirstStep,
    Overhead,
    Predictions,
    SeedRun,
    SeedScores,
    Trained,
)

STARTUP_SECONDS = 2.5
VALIDATION_SECONDS = 0.1
BATCH_SIZE = 16
HOST = CpuTarget(
    threads=4,
    cpu=CpuFacts("Some CPU", "x86_64", 4, None, (), "Linux"),
    software=Software("3.12", "2.14", "0.29", None, {}),
)
SETTINGS = JobSettings(
    values={"deterministic": "True", "epochs": "5"},
    dataset="small",
    network="mlp",
    batch_size=BATCH_SIZE,
    precision="fp32",
    workers=None,
    persistent_workers=False,
    overlaps_copies=False,
    is_captured=True,
    stops_early=False,
    depends_on_epochs=False,
    steps_key="the step's settings",
    steps_key_on_cpu="the step's settings on the CPU",
    losses_key="the losses' settings",
)
LOADER = replace(SETTINGS, workers=0)
"""Settings of a loader in the process that trains."""
SCRIPT = ScriptFacts(
    command="python train.py",
    files={},
    device_kind="cpu",
    precision="fp32",
    parameter_count=1000,
    metrics={},
)
FIRST_STEP = FirstStep(
    batch_order_sha256="1" * 64,
    first_batch_sha256="2" * 64,
    loss=0.7,
    weights={"1.weight": (4.0, 0.5), "3.weight": (2.0, -0.5)},
    outputs={"1": (8.0, 1.0), "3": (3.0, 2.0)},
    gradients={"1.weight": (0.5, 0.1), "3.weight": (0.25, 0.2)},
    output_rounding={"1": 1e-4, "3": 5e-5},
    gradient_rounding={"1.weight": 1e-5, "3.weight": 1e-5},
)
SCORES = DeviceEvaluation(
    main="test_accuracy",
    test_accuracy=0.75,
    test_loss=0.5,
    macro_f1=0.7,
    confusion=((3, 1), (1, 3)),
)
PREDICTIONS = Predictions(np.repeat([0, 1], 4), np.array([0, 0, 0, 1, 0, 1, 1, 1]))


def steady(*seconds: float, **changed: Any) -> SteadyState:
    """Return samples of a step each."""
    return SteadyState(steps_per_sample=1, sample_seconds=seconds, **changed)


def make_job(
    passes: Sequence[float] = (3.1,) * 5,
    device: DeviceLabel = "cpu",
    *,
    seconds: float | None = None,
    left: int = 0,
    further_seeds: int = 0,
    startup_seconds: float = STARTUP_SECONDS,
    validation_seconds: float = VALIDATION_SECONDS,
    samples: int = 600,
    waiting_seconds: float = 0.0,
    parts: Sequence[TimedPart] = (),
    step_seconds: Sequence[float] = (0.01,),
    load: tuple[LoadWindow, ...] = (),
    measured_load: tuple[LoadWindow, ...] = (),
    settings: JobSettings | None = SETTINGS,
    **changed: Any,
) -> Job:
    """Make a job of these passes with their validation, of which some may be left.

    A batch is awaited for `waiting_seconds`, in one part of an epoch if no parts are given.
    """
    epochs, training = len(passes) + left, [each - validation_seconds for each in passes]
    epoch_steps = changed.pop("epoch_steps", samples / BATCH_SIZE)
    if not parts:
        waits = epoch_steps * waiting_seconds
        parts = [whole_epoch(statistics.median(training), epoch_steps, waits)]
    by_parts = epoch_by_parts(parts, epoch_steps)
    whole_seconds = startup_seconds + sum(passes) if seconds is None else seconds
    passes_seconds = epochs * statistics.fmean(passes)
    name = f"Some {device.upper()}"
    fields: dict[str, Any] = {
        "name": "small-mlp",
        "device": device,
        "settings": settings,
        "script": None,
        "precision": "fp32",
        "parameter_count": 547,
        "metrics": {},
        "trained": None,
        "first_step": None,
        "host": HOST,
        "host_name": "workbench",
        "device_name": name,
        "device_count": 1,
        "hardware": name if device == "gpu" else f"{name}, 4 threads",
        "started_at_unix_seconds": 1.7e9,
        "load": load,
        "measured_load": measured_load,
        "busy": tuple(load_warnings(load)),
        "step_warnings": tuple(load_warnings(measured_load)),
        "epochs": epochs,
        "epoch_steps": epoch_steps,
        "steps_per_epoch": None,
        "samples": samples,
        "timed": TimedShare(len(passes), epochs, "epoch"),
        "untimed_epochs": float(left),
        "startup_seconds": startup_seconds,
        "startup_cpu_seconds": None,
        "once_seconds": whole_seconds - sum(passes),
        "passes_seconds": passes_seconds,
        "seeds_seconds": further_seeds * passes_seconds,
        "total_seconds": whole_seconds,
        "epoch_seconds": tuple(training),
        "pass_seconds": tuple(passes),
        "mean_epoch_seconds": statistics.fmean(training),
        "by_parts": by_parts,
        "loading_seconds": by_parts.mean_waiting_seconds,
        "loads_itself": bool(settings) and settings.workers == 0,
        "validation_share": sum(passes) / sum(training) - 1,
        "parts": tuple(parts),
        "step_seconds": tuple(step_seconds),
        "steady_state": steady(*step_seconds),
        "tried_threads": {},
        "loop_steps": None,
        "attribution": None,
        "not_attributed": None,
        "loader": None,
        "operations": None,
        "not_counted": None,
        "fp32_flops_a_second": None,
        "peak_memory_bytes": None,
        "peak_host_memory_bytes": None,
        "samples_per_second": samples / statistics.median(training),
    }
    return Job(**fields | changed)


def lasting(seconds: float, device: DeviceLabel = "cpu", **changed: Any) -> Job:
    """Make a job of so many seconds: its start-up, and five equal passes."""
    startup_seconds = changed.get("startup_seconds", STARTUP_SECONDS)
    return make_job(((seconds - startup_seconds) / 5,) * 5, device, **changed)


def compared(
    cpu: Job,
    gpu: Job | None = None,
    settings: Comparing | None = None,
    references: Sequence[Job] = (),
) -> Comparison:
    """Compare jobs on both devices, and with records of other machines."""
    return compare(JobPair(cpu, gpu, None if gpu else "made up", tuple(references)), settings)


def with_values(**values: str) -> JobSettings:
    """Return settings with these values, by their dotted names."""
    return replace(SETTINGS, values={**SETTINGS.values, **values})


def while_busy(job: Job, load: LoadWindow = BUSY) -> Job:
    """Return a job that trained while other programs ran. Its steps were measured before."""
    return replace(job, load=(load,), busy=tuple(load_warnings([load])))


def make_model(device: DeviceLabel = "cpu", **changed: Any) -> Trained:
    """Make the model of three epochs, which is right on six of eight items."""
    history = changed.pop("history", None) or history_of(1.0, 0.5, 1 / 3)
    epochs = (EpochTiming(3.0, VALIDATION_SECONDS, 1.7e9),) * len(history)
    fields: dict[str, Any] = {
        "device": device,
        "settings": {},
        "seed": 0,
        "stops_early": False,
        "precision": "fp32",
        "task": "classes",
        "class_names": ("cat", "dog"),
        "target_shape": (),
        "test_samples": 8,
        "data_sha256": "d" * 64,
        "initial_weights_sha256": "a" * 64,
        "weights_sha256": "b" * 64,
        "history": history,
        "scores": SCORES,
        "predictions": PREDICTIONS,
        "first_step": FIRST_STEP,
        "no_first_step": None,
        "seed_runs": (),
        "startup_seconds": STARTUP_SECONDS,
        "epochs": epochs,
        "epochs_left": 0,
        "repeats": (),
        "seeds": (),
        "resumed_at_epochs": (),
        "overhead": Overhead(seconds=0.0, checkpoint_seconds=0.0),
        "steps_taken": None,
    }
    return Trained(**fields | changed)


def history_of(*losses: float, accuracies: Sequence[float] = ()) -> tuple[EpochMetrics, ...]:
    """Return epochs with these training losses."""
    known = accuracies or (0.5,) * len(losses)
    return tuple(
        EpochMetrics(epoch, 0.1, loss, loss, accuracy)
        for epoch, (loss, accuracy) in enumerate(zip(losses, known, strict=True), 1)
    )


def with_seeds(model: Trained, *accuracies: float) -> Trained:
    """Return a model with further seeds, whose validation and test accuracies are these."""
    scores, runs = [], []
    for seed, accuracy in enumerate(accuracies, 1):
        of_seed = {"main": "test_accuracy", "test_accuracy": accuracy, "test_loss": 0.5}
        scores.append(SeedScores.model_validate({"seed": seed} | of_seed))
        history = history_of(0.5, accuracies=(accuracy,))
        runs.append(SeedRun(seed=seed, weights_sha256="c" * 64, history=history))
    return replace(
        model,
        scores=model.scores.model_copy(update={"seeds": tuple(scores)}),
        seed_runs=tuple(runs),
        seeds=((EpochTiming(1.0, VALIDATION_SECONDS, 1.7e9),),) * len(runs),
    )


def several_pairs(count: int = 3) -> list[Comparison]:
    """Compare jobs to look at: falling losses, confused classes, some intervals."""
    pairs = []
    for index in range(count):
        epochs, slower = (4 if index == 1 else 10), (10.0 if index == 2 else 1.0)
        cpu = _lively(index, "cpu", "Made-up processor", epochs, slower)
        gpu = _lively(index, "gpu", "Made-up accelerator", epochs, 0.2 * 2.0 ** (index % 12))
        pairs.append(compared(cpu, gpu))
    return pairs


def _lively(index: int, device: DeviceLabel, device_name: str, epochs: int, factor: float) -> Job:
    draw = np.random.default_rng([index, device == "gpu"])
    losses = 2.3 * np.exp(-np.arange(1, epochs + 1) / 4) + draw.normal(0.1, 0.01, epochs)
    confusion = 30 * np.eye(10, dtype=int) + draw.integers(0, 4, (10, 10))
    rows = tuple(map(tuple, confusion.tolist()))
    model = make_model(
        device,
        class_names=tuple(map(str, range(10))),
        history=history_of(*losses.tolist()),
        scores=SCORES.model_copy(update={"confusion": rows}),
    )
    passes = factor * draw.normal(0.2, 0.01, epochs) + VALIDATION_SECONDS
    steps = tuple(0.1 * (passes - VALIDATION_SECONDS))
    names = {"name": f"digits-network-{index}", "device_name": device_name}
    given = {"seconds": 20.0 * factor, "step_seconds": steps, "trained": model}
    return make_job(passes.tolist(), device, **given, **names)
