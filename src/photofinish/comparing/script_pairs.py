"""One comparison for each script: what its runs on both devices measured, and what follows.

It has the parts of a `Comparison` that the answer is made of. Its models are not compared.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from photofinish.comparing.bounds import SpeedupBound, SpeedupBounds
from photofinish.comparing.device_results import spread
from photofinish.comparing.diagnosis import MOST_STARTUP_SHARE, RUN_MARGIN
from photofinish.comparing.pairs import ReferenceComparison
from photofinish.comparing.renting import RentalComparison, renting
from photofinish.comparing.speedups import (
    BUSY,
    BreakEvenEpochs,
    Kind,
    ResourceUse,
    Speedup,
    job_speedup,
    outlay,
    payback,
    speedups,
)
from photofinish.config.compare import Comparing
from photofinish.errors import UserError
from photofinish.machine.load import load_warnings
from photofinish.results.records import DeviceLabel, Timings
from photofinish.results.script_runs import ScriptRun, ScriptUnavailable, read_script_run


@dataclass(frozen=True)
class ScriptResult:
    """A script that ran on one device."""

    experiment: str
    """Name of the script."""
    record: ScriptRun

    @property
    def device(self) -> DeviceLabel:
        return self.record.device

    @property
    def timings(self) -> Timings:
        return self.record.timings

    @property
    def has_steps(self) -> bool:
        """True if the script uses `photofinish.steps`. Else it is timed as a whole."""
        return bool(self.record.epochs)

    @cached_property
    def waiting_seconds(self) -> list[float]:
        """Time in which each epoch waited for its batches."""
        return [epoch.waiting_seconds for epoch in self.record.epochs]

    @property
    def waiting_share(self) -> float:
        """Share of its epochs that waited for batches."""
        return sum(self.waiting_seconds) / sum(epoch.full_seconds for epoch in self.record.epochs)


@dataclass(frozen=True)
class ScriptNotRun:
    experiment: str
    record: ScriptUnavailable


@dataclass(frozen=True)
class ScriptCompared:
    cpu: ScriptResult
    gpu: ScriptResult
    speedups: dict[Kind, Speedup]
    """That of the whole job alone, unless both runs have steps."""
    payback: BreakEvenEpochs | None
    likeness: str = "not compared"


@dataclass(frozen=True)
class ScriptDiagnosis:
    """What most of a job, or of its epochs, is. Steps of a script are not taken apart."""

    of: Literal["the job", "an epoch"]
    cause: Literal["start-up-bound", "input-bound", "step-bound"]


@dataclass(frozen=True)
class ScriptComparison:
    """A script on the CPU and on the GPU."""

    cpu: ScriptResult
    gpu: ScriptResult | ScriptNotRun
    compared: ScriptCompared | None
    diagnoses: dict[DeviceLabel, tuple[ScriptDiagnosis, ...]]
    ceiling: SpeedupBounds
    settings: Comparing
    elsewhere: tuple[ReferenceComparison, ...] = ()
    """Always empty: scripts are not recorded."""

    @classmethod
    def of(cls, cpu: ScriptResult, gpu: ScriptResult | ScriptNotRun, settings: Comparing) -> Self:
        compared, diagnoses = None, {cpu.device: _diagnose(cpu)}
        if isinstance(gpu, ScriptResult):
            diagnoses[gpu.device] = _diagnose(gpu)
            compared = _compare(cpu, gpu)
        return cls(cpu, gpu, compared, diagnoses, _ceiling(cpu), settings)

    @property
    def experiment(self) -> str:
        return self.cpu.experiment

    @property
    def trained(self) -> tuple[ScriptResult, ...]:
        return (self.cpu, self.gpu) if isinstance(self.gpu, ScriptResult) else (self.cpu,)

    @cached_property
    def renting(self) -> RentalComparison:
        measured = [self.compared.gpu.timings] if self.compared else []
        return renting(self.cpu, self.ceiling, None, self.settings, measured)

    @cached_property
    def outlays(self) -> dict[DeviceLabel, ResourceUse]:
        # A script's validation is not known, so there is no time to an accuracy.
        settings = self.settings.model_copy(update={"target_accuracy": None})
        return {run.device: outlay(run.device, run.timings, (), settings) for run in self.trained}


def read_script_pair(name: str, folder: Path, settings: Comparing) -> ScriptComparison:
    """Read the results of both devices from a script's folder."""
    cpu, gpu = (read_script_run(folder / device) for device in ("cpu", "gpu"))
    if isinstance(cpu, ScriptUnavailable):
        raise UserError(f"{name} did not run on the CPU, the baseline: run `dvc repro`")
    on_gpu = ScriptResult(name, gpu) if isinstance(gpu, ScriptRun) else ScriptNotRun(name, gpu)
    return ScriptComparison.of(ScriptResult(name, cpu), on_gpu, settings)


def _compare(cpu: ScriptResult, gpu: ScriptResult) -> ScriptCompared:
    if cpu.has_steps and gpu.has_steps:
        repaid = payback(cpu.timings, gpu.timings)
        return ScriptCompared(cpu, gpu, speedups(cpu.timings, gpu.timings), repaid)
    whole: dict[Kind, Speedup] = {"end_to_end": job_speedup(cpu.timings, gpu.timings)}
    return ScriptCompared(cpu, gpu, whole, None)


def _diagnose(run: ScriptResult) -> tuple[ScriptDiagnosis, ...]:
    if not run.has_steps:
        return ()
    found = []
    if run.timings.startup_seconds > MOST_STARTUP_SHARE * run.timings.total_seconds:
        found.append(ScriptDiagnosis("the job", "start-up-bound"))
    if not load_warnings(run.timings.load):
        cause: Literal["input-bound", "step-bound"]
        cause = "input-bound" if run.waiting_share > 0.5 else "step-bound"
        found.append(ScriptDiagnosis("an epoch", cause))
    return tuple(found)


def _ceiling(cpu: ScriptResult) -> SpeedupBounds:
    """Return the bounds by the start-up and by the wait for batches, which a GPU does not shorten.

    Batches that workers load ahead take longer than the wait for them. So a real bound is lower.
    """
    timings, epochs = cpu.timings, len(cpu.timings.epochs)
    startup_seconds, (_, job_seconds) = timings.startup_seconds, spread(timings.end_to_end_seconds)
    waiting_seconds = cpu.waiting_seconds or [0.0]
    margin = BUSY if load_warnings(timings.load) else RUN_MARGIN
    least_seconds = spread(waiting_seconds)[0] / margin
    loading_seconds = statistics.median(waiting_seconds)
    staying_seconds = startup_seconds / BUSY + epochs * least_seconds
    measured_seconds = startup_seconds + epochs * loading_seconds
    _, epoch_seconds = spread(timings.epoch_seconds)
    epoch = SpeedupBound(epoch_seconds, least_seconds, loading_seconds)
    return SpeedupBounds(
        SpeedupBound(job_seconds, staying_seconds, measured_seconds),
        epoch if least_seconds else None,
    )
