"""What runs on other machines say beside this machine's. They are shown apart, and no winner is named by them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from photofinish.comparison.speedups import Speedup, speedups
from photofinish.comparison.table import DeviceResult, Trained
from photofinish.results.records import DeviceLabel, Timings, Training
from photofinish.results.references import Reference
from photofinish.wording import ratio, seconds, utc_day

REFERENCE = "reference"
ELSEWHERE_COLUMNS = (
    "experiment", "device", "provenance", "machine", "hardware", "measured_at_unix_seconds", "git_commit",
    "test_accuracy", "epoch_seconds", "startup_seconds", "total_seconds", "epoch_speedup_over_this_cpu",
)  # fmt: skip
_MAY_DIFFER = {"dataset", "repeats"}


@dataclass(frozen=True)
class Elsewhere:
    """A reference beside the same training on this machine's CPU."""

    experiment: str
    """its name here"""
    reference: Reference
    against_cpu: Speedup
    """of an epoch with its data: this CPU's time over the reference's"""

    @property
    def hardware(self) -> str:
        return hardware(self.reference.training.device, self.reference.timings)

    @property
    def recorded_on(self) -> str:
        return utc_day(self.reference.timings.started_at_unix_seconds)


def elsewhere(results: Sequence[DeviceResult], references: Iterable[Reference]) -> list[Elsewhere]:
    """Those of the same training, on other hardware: of what is here too, this machine's own figures say more."""
    here = [result for result in results if isinstance(result, Trained)]
    at_hand = {hardware(result.device, result.timings) for result in here}
    known = [each for each in references if hardware(each.training.device, each.timings) not in at_hand]
    return [
        Elsewhere(cpu.experiment, reference, speedups(cpu.timings, reference.timings)[1])
        for cpu in here
        if cpu.device == "cpu"
        for reference in known
        if same_training(reference.training, cpu.record)
    ]


def elsewhere_figures(found: Iterable[Elsewhere]) -> pd.DataFrame:
    """For pandas; in a file of its own, so that nothing takes it for this machine's."""
    rows = [
        {
            "experiment": each.experiment,
            "device": each.reference.training.device,
            "provenance": REFERENCE,
            "machine": each.reference.machine,
            "hardware": each.hardware,
            "measured_at_unix_seconds": each.reference.timings.started_at_unix_seconds,
            "git_commit": each.reference.timings.git_commit,
            "test_accuracy": each.reference.scores.test_accuracy,
            "epoch_seconds": each.against_cpu.device_seconds,
            "startup_seconds": each.reference.timings.startup_seconds,
            "total_seconds": each.reference.timings.total_seconds,
            "epoch_speedup_over_this_cpu": each.against_cpu.ratio,
        }
        for each in found
    ]
    return pd.DataFrame(rows, columns=list(ELSEWHERE_COLUMNS))


def same_training(one: Training, other: Training) -> bool:
    """All settings but the data set's name and the number of repeats, the data, and the published weights."""
    return (
        one.data_sha256 == other.data_sha256
        and one.published_weights_sha256 == other.published_weights_sha256
        and one.experiment.model_dump(exclude=_MAY_DIFFER) == other.experiment.model_dump(exclude=_MAY_DIFFER)
    )


def hardware(device: DeviceLabel, timings: Timings) -> str:
    count = timings.device_count
    if device == "cpu":
        threads = (timings.host.threads or 1) * timings.host.processes
        return f"{timings.device_name}, {threads} thread{'' if threads == 1 else 's'}"
    return f"{count} x {timings.device_name}" if count > 1 else timings.device_name


def in_a_sentence(found: Elsewhere) -> str:
    times = found.against_cpu
    return (
        f"On {found.hardware} (recorded elsewhere on {found.recorded_on}, not measured here) the same training took "
        f"{seconds(times.device_seconds)} for an epoch: {ratio(times.ratio)} times this CPU's speed."
    )
