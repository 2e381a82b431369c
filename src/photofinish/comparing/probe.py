"""What the whole of a training would take, from a few epochs of it; nothing of the project's results is touched."""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from photofinish.comparing.apart import run_apart, train_apart, with_values
from photofinish.comparing.pairs import Recorded
from photofinish.comparing.speedups import BUSY, RUN_TO_RUN, Interval, cost, students_t
from photofinish.data import MANIFEST
from photofinish.errors import MistakeError, UserError, run_stage
from photofinish.machine.load import doubts
from photofinish.params.compare import Comparing
from photofinish.params.reader import read_params, refuse_unknown
from photofinish.processes import end_on_sigterm
from photofinish.results import passed_seconds
from photofinish.results.records import DEVICE_LABELS, DeviceLabel, Timings
from photofinish.wording import listed, money, seconds

_LEAST_EPOCHS = 2


@dataclass(frozen=True)
class Estimate:
    """Of the whole job, from start to end."""

    epochs: int
    once_seconds: float
    """measured: start-up, and writing the results"""
    epoch_seconds: float
    """the mean of those that were trained, with validation and what lies between two"""
    interval: Interval
    """95 %, of the job"""

    @property
    def job_seconds(self) -> float:
        """In the middle."""
        return self.once_seconds + self.epochs * self.epoch_seconds


def estimate(timings: Timings, epochs: int) -> Estimate:
    """Of a job of so many epochs, from a training of a few of them."""
    between_seconds = timings.overhead.seconds / len(timings.epochs)
    tried = [passed_seconds([epoch]) + between_seconds for epoch in timings.epochs]
    once_seconds = timings.total_seconds - sum(tried)
    low_seconds, high_seconds = sum_interval(tried, epochs)
    margin = BUSY if doubts(timings.load) else RUN_TO_RUN
    interval = (once_seconds + low_seconds) / margin, (once_seconds + high_seconds) * margin
    return Estimate(epochs, once_seconds, statistics.fmean(tried), interval)


def sum_interval(tried: Sequence[float], count: int) -> Interval:
    """In which the sum of so many more values lies, 95 times of 100, if they vary like those that were tried.

    Student's prediction interval: what the mean of those tried may be off, and what the sum varies by itself.
    """
    spread, mean = statistics.stdev(tried), statistics.fmean(tried)
    off = students_t(len(tried) - 1) * spread * math.sqrt(count**2 / len(tried) + count)
    return max(0.0, count * mean - off), count * mean + off


def probe(experiment: str, device: DeviceLabel, epochs: int, params_file: Path) -> Recorded:
    """Train so many epochs of the experiment, once."""
    refuse_unknown(experiment, read_params(params_file), params_file)
    if epochs < _LEAST_EPOCHS:
        raise MistakeError(f"EPOCHS={epochs} tells nothing of how much epochs vary: take {_LEAST_EPOCHS} or more")
    with tempfile.TemporaryDirectory(prefix="photofinish-probe-") as name:
        folder = Path(name)
        once = {f"experiments.{experiment}.{key}": 1 for key in ("repeats", "seeds")}
        changed = once | {f"experiments.{experiment}.epochs": epochs}
        params, plan = with_values(params_file, changed, folder / "params.yaml"), folder / "plan"
        _stage("plan", folder, params=folder / "params.yaml", results=folder / "results", out=plan)
        return train_apart(
            experiment,
            device,
            folder,
            "the probe",
            experiment=plan / "experiments" / f"{experiment}.json",
            host=plan / "hosts" / f"{device}.json",
            data=_split(params.experiments[experiment].dataset, folder, plan),
            weights=_weights(experiment, folder, plan),
        )


def _stage(script: str, folder: Path, **arguments: Path) -> None:
    if not run_apart(f"{script}.py", folder, arguments, quietly=True):
        raise UserError("the probe failed, as told above")


def _split(dataset: str, folder: Path, plan: Path) -> Path:
    """The project's, where it is of the data set as it is planned now; else one made for the probe."""
    planned, data = plan / "datasets" / f"{dataset}.json", Path.cwd() / "data"
    before, manifest = data / "plan" / "datasets" / f"{dataset}.json", data / "splits" / dataset / MANIFEST
    are_there = before.is_file() and manifest.is_file()
    if are_there and before.read_bytes() == planned.read_bytes() and before.stat().st_mtime <= manifest.stat().st_mtime:
        return manifest.parent
    raw, made = folder / "raw" / dataset, folder / "splits" / dataset
    _stage("download", folder, dataset=planned, out=raw)
    _stage("split", folder, dataset=planned, raw=raw, out=made)
    return made


def _weights(experiment: str, folder: Path, plan: Path) -> Path:
    """Where the stage would put them."""
    before, planned = (root / "weights.json" for root in (Path.cwd() / "data" / "plan", plan))
    there = Path.cwd() / "data" / "weights" / experiment
    if there.is_dir() and before.is_file() and before.read_bytes() == planned.read_bytes():
        return there
    _stage("download_weights", folder, plan=planned, out=folder / "weights")
    return folder / "weights" / experiment


def told(name: str, recorded: Recorded, found: Estimate, settings: Comparing) -> str:
    """The estimate, and what it rests on."""
    timings, device = recorded.timings, recorded.device
    low, high = map(seconds, found.interval)
    lines = [
        f"{name} on the {device.upper()} ({timings.device_name}), estimated from {len(timings.epochs)} epochs:",
        f"the whole job of {found.epochs:,} epochs takes {seconds(found.job_seconds)} (95 % interval {low} to {high}): "
        f"{seconds(found.once_seconds)} once, and {seconds(found.epoch_seconds)} an epoch.",
    ]
    spent = [cost(device, each, None, settings).amount for each in (found.job_seconds, *found.interval)]
    middle, least, most = (None if each is None else money(each, settings.prices.currency) for each in spent)
    if middle:
        lines.append(f"It costs {middle} ({least} to {most}), by compare.prices.{device}_hour.")
    if doubtful := doubts(timings.load):
        lines.append(f"Take it with care: {listed(doubtful)}.")
    return "\n".join(lines)


def main() -> None:
    """Print the estimate for the experiment that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m photofinish.comparing.probe", description=__doc__)
    parser.add_argument("experiment", help="its name in params.yaml")
    parser.add_argument("--device", choices=DEVICE_LABELS, default="cpu")
    parser.add_argument("--epochs", type=int, default=3, help="how many to train")
    args = parser.parse_args()
    end_on_sigterm()
    params_file = Path("params.yaml")
    recorded = probe(args.experiment, args.device, args.epochs, params_file)
    params = read_params(params_file)
    found = estimate(recorded.timings, params.experiments[args.experiment].epochs)
    print(told(args.experiment, recorded, found, params.comparing))


if __name__ == "__main__":
    run_stage(main)
