"""One comparison for each experiment: both devices' results and everything found in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from photofinish.comparing.bounds import SpeedupBounds, ceiling
from photofinish.comparing.device_results import DeviceResult, NotTrained, Trained, read_results
from photofinish.comparing.diagnosis import Diagnosis, diagnose
from photofinish.comparing.parity import OverSeeds, Parity, over_seeds, parity
from photofinish.comparing.renting import RentalComparison, renting
from photofinish.comparing.speedups import (
    BreakEvenEpochs,
    Kind,
    ResourceUse,
    Speedup,
    epoch_speedup,
    outlay,
    payback,
    speedups,
)
from photofinish.config.compare import Comparing
from photofinish.errors import UserError
from photofinish.results import records
from photofinish.results.records import DeviceLabel
from photofinish.results.references import (
    Reference,
    code_without_folders,
    hardware,
    without_folders,
)
from photofinish.source_code import PACKAGE

_MAY_DIFFER = {"dataset", "repeats", "seeds"}
"""Settings that do not change the training: the data set's name, and how often it trained."""


@dataclass(frozen=True)
class ReferenceComparison:
    reference: Reference
    hardware: str
    against_cpu: Speedup
    """Speed-up of an epoch with its data over this CPU."""


@dataclass(frozen=True)
class Compared:
    cpu: Trained
    gpu: Trained
    speedups: dict[Kind, Speedup]
    parity: Parity
    payback: BreakEvenEpochs

    @property
    def likeness(self) -> str:
        return self.parity.likeness


@dataclass(frozen=True)
class Comparison:
    """An experiment on the CPU and on the GPU.

    Findings that depend on the settings are computed when first used.
    """

    cpu: Trained
    gpu: DeviceResult
    compared: Compared | None
    diagnoses: dict[DeviceLabel, tuple[Diagnosis, ...]]
    """Causes on each device that trained: of the job if it is mostly start-up, then of an epoch."""
    ceiling: SpeedupBounds
    settings: Comparing
    references: tuple[Reference, ...]
    """Records of other machines, of any experiment."""

    @classmethod
    def of(cls, cpu: Trained, gpu: DeviceResult) -> Self:
        compared, diagnoses = None, {cpu.device: diagnose(cpu)}
        if isinstance(gpu, Trained):
            diagnoses[gpu.device] = diagnose(gpu)
            compared = Compared(
                cpu,
                gpu,
                speedups(cpu.timings, gpu.timings),
                parity(cpu, gpu),
                payback(cpu.timings, gpu.timings),
            )
        return cls(cpu, gpu, compared, diagnoses, ceiling(cpu), Comparing(), ())

    @property
    def experiment(self) -> str:
        return self.cpu.experiment

    @property
    def trained(self) -> tuple[Trained, ...]:
        return (self.cpu, self.gpu) if isinstance(self.gpu, Trained) else (self.cpu,)

    @cached_property
    def renting(self) -> RentalComparison:
        target = self.outlays["cpu"].target
        measured = [each.reference.timings for each in self.elsewhere]
        if self.compared:
            measured.insert(0, self.compared.gpu.timings)
        return renting(self.cpu, self.ceiling, target, self.settings, measured)

    @cached_property
    def outlays(self) -> dict[DeviceLabel, ResourceUse]:
        return {
            run.device: outlay(run.device, run.timings, run.history, self.settings)
            for run in self.trained
        }

    @cached_property
    def seeds(self) -> dict[DeviceLabel, OverSeeds]:
        """Scores over seeds of the devices that trained from several."""
        target = self.settings.target_accuracy
        return {run.device: over_seeds(run, target) for run in self.trained if run.seed_runs}

    @cached_property
    def elsewhere(self) -> tuple[ReferenceComparison, ...]:
        """Records of the same training on other machines."""
        found = []
        for reference in self.references:
            if same_training(reference.training, self.cpu.record):
                name = hardware(reference.training.device, reference.timings)
                speedup = epoch_speedup(self.cpu.timings, reference.timings)
                found.append(ReferenceComparison(reference, name, speedup))
        return tuple(found)


def read_pair(name: str, folder: Path) -> Comparison:
    results = read_results(name, folder)
    cpu = results["cpu"]
    if isinstance(cpu, NotTrained):
        raise UserError(f"{name} was not trained on the CPU, the baseline: run `dvc repro`")
    return Comparison.of(cpu, results["gpu"])


def with_settings(
    pairs: Sequence[Comparison], settings: Comparing, references: Iterable[Reference]
) -> list[Comparison]:
    """Return the comparisons with these settings and records of other machines.

    Records of hardware that this machine has are left out.
    """
    here = {hardware(run.device, run.timings) for pair in pairs for run in pair.trained}
    elsewhere = tuple(
        reference
        for reference in references
        if hardware(reference.training.device, reference.timings) not in here
    )
    return [replace(pair, settings=settings, references=elsewhere) for pair in pairs]


def same_training(one: records.Training, other: records.Training) -> bool:
    """Return True if settings, data, published weights and custom code are the same."""
    return _what_trained(one) == _what_trained(other)


def _what_trained(record: records.Training) -> tuple[Any, ...]:
    code = {
        name: sha256
        for name, sha256 in code_without_folders(record.custom_code).items()
        if not name.startswith(PACKAGE)
    }
    settings = without_folders(record.experiment.model_dump(exclude=_MAY_DIFFER))
    return code, settings, record.data_sha256, record.published_weights_sha256
