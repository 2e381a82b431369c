"""Results in, findings out: of each experiment one pair, both devices' results and all that is found in them.

Each finding is computed once: with the pair, or if the settings change it when it is first asked for. Tables, sentences
and metrics are views of it. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

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
from photofinish.config.compare import Comparing, Watts
from photofinish.errors import UserError
from photofinish.results import records
from photofinish.results.records import DeviceLabel
from photofinish.results.references import Reference, hardware, nobodys_code, without_folders
from photofinish.source_code import PACKAGE

_MAY_DIFFER = {"dataset", "repeats", "seeds"}
"""between settings of the same training: the data set's name, and how often it was trained besides"""


@dataclass(frozen=True)
class ReferenceComparison:
    """A record of another machine beside the same training on this machine's CPU."""

    reference: Reference
    hardware: str
    """as a person calls it"""
    against_cpu: Speedup
    """of an epoch with its data: this CPU's time over the reference's"""
    outlay: ResourceUse


@dataclass(frozen=True)
class Compared:
    """The GPU's training held against the CPU's."""

    cpu: Trained
    gpu: Trained
    speedups: dict[Kind, Speedup]
    """of a step, an epoch and the whole job"""
    parity: Parity
    """whether both learned the same"""
    payback: BreakEvenEpochs
    """when the GPU's start-up is made good"""


@dataclass(frozen=True)
class Comparison:
    """An experiment on the CPU, with which every other device is compared, and on the GPU."""

    cpu: Trained
    gpu: DeviceResult
    compared: Compared | None
    """None where no GPU trained"""
    diagnoses: dict[DeviceLabel, tuple[Diagnosis, ...]]
    """of the devices that trained: of the job where it is mostly start-up; then of an epoch"""
    ceiling: SpeedupBounds
    """how much faster than the CPU any GPU could be in the machine that it was trained in"""
    settings: Comparing
    references: tuple[Reference, ...]
    """of other machines' hardware; which of them are of this experiment is found here"""

    @classmethod
    def of(cls, cpu: Trained, gpu: DeviceResult) -> Self:
        """Compare two results, without settings so far."""
        compared, diagnoses = None, {cpu.device: diagnose(cpu)}
        if isinstance(gpu, Trained):
            found = speedups(cpu.timings, gpu.timings), parity(cpu, gpu), payback(cpu.timings, gpu.timings)
            compared, diagnoses[gpu.device] = Compared(cpu, gpu, *found), diagnose(gpu)
        return cls(cpu, gpu, compared, diagnoses, ceiling(cpu), Comparing(), ())

    @property
    def experiment(self) -> str:
        """Its name."""
        return self.cpu.experiment

    @property
    def trained(self) -> tuple[Trained, ...]:
        """The results of the devices that trained, the CPU's first."""
        return (self.cpu, self.gpu) if isinstance(self.gpu, Trained) else (self.cpu,)

    @cached_property
    def renting(self) -> RentalComparison:
        """Least time and cost on the accelerators in the settings."""
        return renting(self.cpu, self.ceiling, self.outlays["cpu"].target, self.settings)

    @cached_property
    def outlays(self) -> dict[DeviceLabel, ResourceUse]:
        """Time, energy and money of the devices that trained."""
        return {run.device: outlay(run.device, run.timings, run.history, self.settings) for run in self.trained}

    @cached_property
    def seeds(self) -> dict[DeviceLabel, OverSeeds]:
        """Scores over seeds of the devices that trained from several."""
        target = self.settings.target_accuracy
        return {run.device: over_seeds(run, target) for run in self.trained if run.seed_runs}

    @cached_property
    def elsewhere(self) -> tuple[ReferenceComparison, ...]:
        """Records of the same training on other machines, which decide nothing here."""
        # The power that is given is that of this machine.
        measured_only = self.settings.model_copy(update={"watts": Watts()})
        return tuple(
            ReferenceComparison(
                each,
                hardware(each.training.device, each.timings),
                epoch_speedup(self.cpu.timings, each.timings),
                outlay(each.training.device, each.timings, each.history, measured_only),
            )
            for each in self.references
            if same_training(each.training, self.cpu.record)
        )


def read_pair(name: str, folder: Path) -> Comparison:
    """Read the results in an experiment's folder and compare them."""
    results = read_results(name, folder)
    cpu = results["cpu"]
    if isinstance(cpu, NotTrained):
        raise UserError(f"{name} was not trained on the CPU, which others are compared with: run `dvc repro`")
    return Comparison.of(cpu, results["gpu"])


def with_settings(
    pairs: Sequence[Comparison], settings: Comparing, references: Iterable[Reference]
) -> list[Comparison]:
    """The same pairs under these settings, beside other machines' records. Of hardware that is here too, this machine's
    own figures say more than a reference does."""
    at_hand = {hardware(each.device, each.timings) for pair in pairs for each in pair.trained}
    elsewhere = tuple(each for each in references if hardware(each.training.device, each.timings) not in at_hand)
    return [replace(pair, settings=settings, references=elsewhere) for pair in pairs]


def same_training(one: records.Training, other: records.Training) -> bool:
    """All settings but the data set's name and the number of repeats and seeds, the data, the published weights, and
    the user's own files."""
    first, second = (
        {name: of for name, of in nobodys_code(each.custom_code).items() if not name.startswith(PACKAGE)}
        for each in (one, other)
    )
    settings, others = (without_folders(each.experiment.model_dump(exclude=_MAY_DIFFER)) for each in (one, other))
    return (
        one.data_sha256 == other.data_sha256
        and first == second
        and one.published_weights_sha256 == other.published_weights_sha256
        and settings == others
    )
