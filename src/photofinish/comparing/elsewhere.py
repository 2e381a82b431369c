"""What runs on other machines say beside this machine's, and how this one's are recorded for others."""

from __future__ import annotations

import argparse
import platform
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import pandas as pd

from photofinish.comparing.speedups import Speedup, speedups
from photofinish.comparing.table import DeviceResult, Trained, read_results
from photofinish.errors import MistakeError, UserError, run_stage
from photofinish.machine.fingerprint import CpuHost, GpuHost
from photofinish.machine.load import doubts
from photofinish.params.base import is_name
from photofinish.results.epochs import EpochMetrics
from photofinish.results.records import DeviceLabel, Timings, Training
from photofinish.results.references import Reference, write_reference
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


_TELLTALE = re.compile(r"[/\\]|GPU-|MIG-")
"""in a variable's value: folders, which may hold a user's name, and the number of one single GPU"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, default=Path("data/plan/experiments"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("reference"))
    parser.add_argument("--machine", help="the folder's name; by default the hardware's")
    args = parser.parse_args()
    record_all(args.plan, args.results, args.out, args.machine)


def record_all(plan: Path, results: Path, out: Path, machine: str | None) -> None:
    """Every result that is fit for it; what isn't is named with the reason."""
    if machine is not None and not is_name(machine):
        raise MistakeError(f"--machine {machine}: a name is 1 to 64 letters, digits, '-' and '_'")
    names = sorted(path.stem for path in plan.glob("*.json"))
    if not names:
        raise UserError(f"{plan} has no experiments: run `dvc repro` first")
    written = 0
    for result in read_results(names, results):
        if not isinstance(result, Trained):
            continue
        if unfit := _unfit(result.timings):
            print(f"{result.experiment} on {result.device}: not recorded: {unfit}")
            continue
        print(f"{result.experiment} on {result.device}: {write_reference(out, reference_of(result, machine))}")
        written += 1
    if not written:
        raise UserError("nothing was recorded")
    print(f"Recorded {written}. Look them through before you share them; {out}/README.md tells how")


def reference_of(result: Trained, machine: str | None = None) -> Reference:
    """Without the host's name, and without what variables tell of folders or single GPUs."""
    timings = result.timings
    return Reference(
        machine=machine or machine_name(result),
        experiment=result.experiment,
        recorded_at_unix_seconds=time.time(),
        photofinish_version=metadata.version("photofinish"),
        training=result.record,
        timings=timings.model_copy(update={"host_name": "", "host": _anonymous(timings.host)}),
        scores=result.scores,
        history=tuple(EpochMetrics(*row) for row in result.history.itertuples(index=False)),
    )


def machine_name(result: Trained) -> str:
    """`NVIDIA H100 80GB HBM3` is nvidia-h100-80gb-hbm3."""
    words = re.findall(r"[a-z0-9.]+", re.sub(r"\((r|tm)\)", " ", hardware(result.device, result.timings).lower()))
    return "-".join(words).replace(".", "_")[:64].rstrip("-_")


def _unfit(timings: Timings) -> str | None:
    if timings.host_name != platform.node():
        return "it was measured on another machine: record it there"
    if timings.resumed_at_epochs:
        return "the training was interrupted and resumed"
    found = doubts(timings.load)
    return "; ".join(found) if found else None


def _anonymous(host: CpuHost | GpuHost) -> CpuHost | GpuHost:
    software = host.software
    if software is None:
        return host
    variables = {name: _harmless(value) for name, value in software.variables.items()}
    return host.model_copy(update={"software": replace(software, variables=variables)})


def _harmless(value: str) -> str:
    return "(set)" if _TELLTALE.search(value) else value


if __name__ == "__main__":
    run_stage(main)
