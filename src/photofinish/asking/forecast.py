"""How long the trainings of a run will take, before it starts, by a moment of each.

A training that is surely short is not sampled, so that a short run starts at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from photofinish.asking.experiments import PLAN, SPLITS
from photofinish.config.base import read_plan
from photofinish.config.budget import BudgetPlan
from photofinish.config.experiment import ExperimentPlan
from photofinish.data import MANIFEST
from photofinish.data.packed import PackedSplit
from photofinish.results import passed_seconds, records
from photofinish.results.job_times import JobTimes
from photofinish.results.records import DeviceLabel
from photofinish.wording import counted, listed, seconds

LONG_SECONDS = 600.0
"""A longer run is announced."""
_SHORT_LIMIT_SECONDS = 60.0
"""A time limit that is short enough to count as the training's time."""
_MOST_SAMPLE_SECONDS = 0.05
"""Time of a training sample that few exceed."""
_CHANGED = 5.0
"""Factor by which other settings may make an earlier training longer."""
_ASK_SECONDS = 40.0
"""Time that `photofinish ask` takes for a training."""
_PATIENCE = 120.0
"""Seconds that samples may take, the wait for another training on this machine included."""
_MOST_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Planned:
    """A training that a run will do."""

    name: str
    device: DeviceLabel
    settings: ExperimentPlan
    limit_seconds: float | None

    @classmethod
    def read(cls, name: str, device: DeviceLabel) -> Planned:
        settings = read_plan(PLAN / f"experiments/{name}.json", ExperimentPlan)
        limits = read_plan(PLAN / "budget.json", BudgetPlan).cpu_seconds
        return cls(name, device, settings, limits.get(name) if device == "cpu" else None)

    @property
    def times(self) -> int:
        """Number of trainings, repeats and further seeds included."""
        return self.settings.repeats + self.settings.seeds - 1

    @property
    def most_seconds(self) -> float:
        """Time that it hardly exceeds, as far as that shows without a sample."""
        known = []
        if self.limit_seconds is not None and self.limit_seconds <= _SHORT_LIMIT_SECONDS:
            known.append(self.times * self.limit_seconds)
        result = Path("results", self.name, self.device)
        file = result / records.TIMINGS_FOLDER / records.TIMINGS
        if file.is_file() and b'"unavailable"' not in file.read_bytes():
            former = records.read_record(file, records.Timings)
            known.append(_CHANGED * self._as_long_as(former))
        split = SPLITS / self.settings.dataset
        if (split / MANIFEST).is_file():
            samples = PackedSplit(split).manifest.counts["train"] * self.settings.epochs
            known.append(self.times * samples * _MOST_SAMPLE_SECONDS)
        return min(known, default=float("inf"))

    def _as_long_as(self, former: JobTimes) -> float:
        epoch_seconds = passed_seconds(former.epochs) / len(former.epochs)
        return former.startup_seconds + self.times * self.settings.epochs * epoch_seconds

    def seconds(self, startup_seconds: float, epoch_seconds: float) -> float:
        """Return the time of all its trainings."""
        each = self.settings.epochs * epoch_seconds
        if self.limit_seconds is not None:
            each = min(each, max(self.limit_seconds, 2 * epoch_seconds))
        return startup_seconds + self.times * each


def forecast(trainings: Sequence[Planned], untimed: Sequence[str] = ()) -> str | None:
    """Return a line on how long these trainings take; None if that is short or not known.

    It names the jobs that are `untimed`, which the run does, too.
    """
    most = {training: training.most_seconds for training in trainings}
    if sum(most.values()) <= LONG_SECONDS:
        return None
    found = {}
    for device in records.DEVICE_LABELS:
        own = [each for each in trainings if each.device == device]
        to_sample = [each for each in own if each.limit_seconds != most[each]]
        sampled = _sampled([each.name for each in to_sample], device)
        if sampled is None:
            return None
        for each in own:
            times = sampled.get(each.name)
            found[each] = each.seconds(*times) if times else most[each]
    total_seconds = sum(found.values())
    if total_seconds <= LONG_SECONDS:
        return None
    return _line(total_seconds, found, untimed)


def _line(total_seconds: float, found: dict[Planned, float], untimed: Sequence[str]) -> str:
    longest = sorted(found.items(), key=lambda each: -each[1])
    has_gpu = any(training.device == "gpu" for training in found)
    parts = [
        f"{training.name}{f' on {training.device}' if has_gpu else ''} {seconds(each)}"
        for training, each in longest[:_MOST_SHOWN]
    ]
    if len(longest) > _MOST_SHOWN:
        parts.append(f"{counted(len(longest) - _MOST_SHOWN, 'more training')}")
    at_most = any(training.settings.early_stopping for training in found)
    unknown = ""
    if untimed:
        names = listed(untimed) if len(untimed) <= _MOST_SHOWN else counted(len(untimed), "job")
        unknown = f", and the time of {names}, which is not known"
    ask_seconds = _ASK_SECONDS * (len(found) + len(untimed))
    return (
        f"{'At most' if at_most else 'About'} {seconds(total_seconds)}{unknown}: "
        f"{', '.join(parts)}; `photofinish ask` gives the answers in {seconds(ask_seconds)}."
    )


def _sampled(names: Sequence[str], device: DeviceLabel) -> dict[str, tuple[float, float]] | None:
    """Return the start-up and an epoch of each, or None if one fails or takes too long.

    Its stage reports why.
    """
    if not names:
        return {}
    with tempfile.TemporaryDirectory(prefix="photofinish-") as folder:
        out = Path(folder, "times.json")
        command = [sys.executable, "-P", "-m", "photofinish.asking.glance", device, str(out)]
        try:
            subprocess.run([*command, *names], check=True, capture_output=True, timeout=_PATIENCE)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return None
        times: dict[str, tuple[float, float]] = json.loads(out.read_bytes())
        return times
