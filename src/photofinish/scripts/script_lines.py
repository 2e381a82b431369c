"""Lines that the recorder of a script wrote so far."""

from __future__ import annotations

import json
import math
import operator
from pathlib import Path
from typing import Any, NamedTuple

from photofinish.inside.lengths import STEPS, TRAINER
from photofinish.inside.recorder import main_optimizer
from photofinish.scripts.script_figures import LATER_STEPS, Figures, merged


class Loader(NamedTuple):
    """Data loader of the script."""

    batches: float | None
    """Number of batches in an epoch, a smaller last batch as a fraction. None without a length."""
    workers: int
    is_named: bool = False


class Length(NamedTuple):
    """Length of the whole training."""

    name: str
    value: float
    by: str
    """Source of the length: `--epochs` or another option, or `the trainer`."""

    @property
    def is_steps(self) -> bool:
        return self.name in STEPS

    @property
    def is_from_options(self) -> bool:
        return self.by != TRAINER

    @property
    def is_perhaps_a_start(self) -> bool:
        """Return True for `--epoch`: some scripts begin with this epoch."""
        return self.name == "epoch"


class WatchedScript:
    """Lines that the hooks wrote so far. `read` adds new lines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[Path, int] = {}
        self._processes: dict[Path, Process] = {}

    def read(self) -> None:
        """Read the lines that were added since the last call."""
        for path in self._folder.glob("*.jsonl"):
            process = self._processes.setdefault(path, Process())
            with path.open(encoding="utf-8") as file:
                file.seek(self._places.get(path, 0))
                text = file.read()
            whole, newline, _ = text.rpartition("\n")
            self._places[path] = self._places.get(path, 0) + len((whole + newline).encode())
            for line in whole.splitlines():
                process.add(json.loads(line))

    @property
    def process(self) -> Process | None:
        """Process that trains, else a process that imported torch, else None."""
        processes = [*self._processes.values()]
        key = operator.attrgetter("taken_steps", "has_torch")
        return max(processes, key=key, default=None)


class Process:
    """Lines of one process of the script."""

    def __init__(self) -> None:
        self._blocks: list[Any] = []
        self.steps: list[int] = []
        self.lengths: list[Length] = []
        """Lengths that the process has, from a Trainer or argparse."""
        self.on_command_line: list[Length] = []
        self.loaders: dict[int, Loader] = {}
        self.counts: dict[str, Any] | None = None
        self.named: int | None = None
        """Number of the optimizer that stands for batches of a named loader."""
        self.device = "cpu"
        self.seen = 0, 0
        """Numbers of batches and forward passes before an optimizer's first step."""
        self.unseen: str | None = None
        """Reason why the script takes steps that no hook sees."""
        self.uncounted: str | None = None
        """Reason why no step's operations were counted, other than too few steps."""
        self.has_torch = False
        self.others: dict[str, float] = {}
        """Times at which libraries were imported that train without torch."""
        self.peak_bytes: dict[str, int | None] = {"host_bytes": None, "device_bytes": 0}
        self.loader_parts: dict[str, Any] | None = None
        self.taking_apart_seconds = 0.0

    def add(self, line: Any) -> None:
        if isinstance(line, list):
            self._blocks.append(line)
            for number, steps in enumerate(line[2]):
                self.steps[number] += steps
            return
        kind = line.pop("kind")
        if kind == "optimizer":
            if line["is_named"]:
                self.named = len(self.steps)
            self.steps.append(0)
            self.device = line["device"] if self.device == "cpu" else self.device
        elif kind == "loader":
            number = line.pop("loader")
            self.loaders[number] = Loader(**line)
        elif kind == "length":
            self.lengths.append(Length(**line))
        elif kind == "counts":
            self.counts = line
        elif kind == "seen":
            self.seen = line["batches"], line["forward_passes"]
        elif kind == "unseen" and self.named is None:
            self.unseen = line["why"]
        elif kind == "uncounted":
            self.uncounted = line["why"]
        elif kind == "torch":
            self.has_torch = True
        elif kind == "other":
            self.others[line["name"]] = line["at"]
        elif kind == "memory":
            self.peak_bytes = line
        elif kind == "loader_parts":
            self.loader_parts, self.taking_apart_seconds = line["parts"], line["seconds"]

    def imported_instead(self, before: float) -> list[str]:
        """Return the libraries imported before a time, if torch was not imported."""
        return [name for name, at in self.others.items() if at < before and not self.has_torch]

    @property
    def taken_steps(self) -> int:
        return sum(self.steps)

    @property
    def first_step_at(self) -> float | None:
        """Time of an optimizer's first step, by the performance counter."""
        return next((block[1] for block in self._blocks if any(block[2])), None)

    @property
    def length(self) -> Length | None:
        """Length of the whole job, from a Trainer, else the command line, else argparse."""
        lengths = [
            length
            for source in (self.on_command_line, self.lengths)
            for length in sorted(source, key=lambda each: not each.is_steps)
        ]
        key = operator.attrgetter("is_from_options", "is_perhaps_a_start")
        return min(lengths, key=key, default=None)

    def seconds_until_second_epoch(self, figures: Figures) -> float:
        """Return the time until the end of the first epoch and some steps of the second.

        Returns 0 if these are over, or if an epoch's length is unknown.
        """
        if figures.first_epoch_steps:
            steps = figures.first_epoch_steps
        elif figures.loader is not None and (batches := self.loaders[figures.loader].batches):
            steps = math.ceil(batches / figures.batches_per_step)
        else:
            return 0.0
        return max(0, steps + LATER_STEPS - figures.steps) * figures.step_seconds

    def figures(self) -> Figures | None:
        """Return the figures of a step, or None before a step could be timed."""
        if not self.taken_steps:
            return None
        main = main_optimizer(self.steps, self.named)
        named = next((number for number, each in self.loaders.items() if each.is_named), None)
        figures = Figures(merged(self._blocks, main), named, is_on_cpu=self.device == "cpu")
        return figures if figures.is_timed else None
