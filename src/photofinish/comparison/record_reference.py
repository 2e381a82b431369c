"""Record this machine's results in reference/, for others to set beside theirs.

python -m photofinish.comparison.record_reference [--machine NAME]
"""

from __future__ import annotations

import argparse
import platform
import re
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from photofinish.comparison.references import hardware
from photofinish.comparison.table import Trained, read_results
from photofinish.errors import MistakeError, UserError, run_stage
from photofinish.hardware.hosts import CpuHost, GpuHost
from photofinish.hardware.load import doubts
from photofinish.params.base import is_name
from photofinish.results.epochs import EpochMetrics
from photofinish.results.records import Timings
from photofinish.results.references import Reference, write_reference

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
