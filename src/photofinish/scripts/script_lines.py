"""Lines that the recorder of a script wrote so far."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from photofinish.config.precisions import PRECISIONS
from photofinish.inside.lengths import unit_of
from photofinish.inside.optimizers import OFTEN, main_optimizer
from photofinish.results.trained import FirstScriptSteps
from photofinish.scripts.script_figures import Figures, figures_of_runs, merged, trainings

_BY_DTYPE = {f"torch.{facts.autocast}": name for name, facts in PRECISIONS.items()}
_FIELDS = (
    "files", "stalls", "step_parts", "uncounted", "has_torch", "compiles", "ranks", "slow_line",
)  # fmt: skip
_LATER_STEPS = 10
"""Number of steps in the second epoch to wait for: they show whether the first is slower."""
_MOST_BATCHES, _MOST_SECONDS_OF_BATCHES = 100, 60.0
"""Batches and time after which an optimizer's step is not expected, by hand."""
_MAY_MOVE = re.compile(
    r"device|cuda|gpu|\.to\(|\b(mps|xpu|hpu|npu)\b"
    r"|lightning|transformers|accelerat|fastai|ignite|skorch|deepspeed",
    re.I,
)
"""Words of code or of libraries that may move a model. In a comment they count: it is in doubt."""


class Loader(NamedTuple):
    batches: float | None
    """Number of batches in an epoch, a smaller last batch as a fraction. None without a length."""
    workers: int
    is_named: bool = False


class Failure(NamedTuple):
    """Error that ended a script without a GPU, and the line of the script that led to it."""

    at: str
    line: str
    text: str
    is_own_check: bool
    """True if that line asserts or raises."""


class Length(NamedTuple):
    name: str
    value: float
    by: str
    """Source of the length: `--epochs`, `the trainer`, or `EPOCHS in train.py:41`."""
    is_part: bool = False
    """True if more follows, or if the training has it an unknown number of times, as for folds."""
    may_stop: bool = False
    """True if a condition in its loops may end it sooner."""

    @property
    def is_steps(self) -> bool:
        return unit_of(self.name) == "steps"


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
        """Process with most steps, else rank 0, unseen steps, most batches or torch."""

        def order(each: Process) -> tuple[object, ...]:
            return each.taken_steps, each.ranks, bool(each.unseen), each.seen, each.has_torch

        process = max(self._processes.values(), key=order, default=None)
        if process:
            failures = [each.failure for each in self._processes.values() if each.failure]
            process.failure = next(iter(failures), None)
        return process


class Process:
    def __init__(self) -> None:
        self._blocks: list[Any] = []
        self.steps: list[int] = []
        self.by_loops: dict[int, Length] = {}
        """Lengths by the Trainer or the loops around the first step of each optimizer."""
        self.on_command_line: list[Length] = []
        self.loaders: dict[int, Loader] = {}
        self.counts: dict[str, Any] | None = None
        self.autocast: str | None = None
        """Precision of an autocast for CUDA in a run without CUDA."""
        self.files: list[str] = []
        """Python files of the project that were loaded before the first step."""
        self.stalls: list[tuple[str, int, str]] = []
        """Lines at which each step would wait for a GPU: file, line and function."""
        self.first_steps: FirstScriptSteps | None = None
        """Values of the first step, to compare it on two devices."""
        self.recording_seconds = 0.0
        """Time that it took to record them."""
        self.slow_line: list[Any] | None = None
        self.step_parts: dict[str, float] = {}
        """Time of parts of a step on the CPU."""
        self.named: int | None = None
        """Number of the optimizer that stands for batches of a named loader."""
        self.device = "cpu"
        self.seen = 0, 0
        """Numbers of batches and forward passes before an optimizer's first step."""
        self.seen_at: float | None = None
        """Time of the first of them."""
        self.unseen: str | None = None
        """Reason why the script takes steps that no hook sees."""
        self.may_be_named = False
        """True if a loader that the script names may count them."""
        self.uncounted: str | None = None
        """Reason why no step's operations were counted, other than too few steps."""
        self.failure: Failure | None = None
        """Error that ended the script, if it is for want of a GPU."""
        self.has_torch = False
        self.ranks = 1
        """Number of processes that a launcher started. This is rank 0."""
        self.others: dict[str, float] = {}
        """Times at which libraries were imported that train without torch."""
        self.compiles = False
        self.peak_bytes: dict[str, int | None] = {
            "host_bytes": None,
            "device_bytes": 0,
            "reserved_bytes": 0,
        }

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
                if self.may_be_named and line["device"] != "cpu":
                    self.unseen = None
            self.steps.append(0)
            self.device = line["device"] if self.device == "cpu" else self.device
        elif kind == "loader":
            number = line.pop("loader")
            self.loaders[number] = Loader(**line)
        elif kind == "loops":
            self.by_loops[len(self.steps) - 1] = Length(**line)
        elif kind == "counts":
            self.counts = line
        elif kind == "seen":
            self.seen = (line["batches"], line["forward_passes"])
            self.seen_at = line["at"]
        elif kind == "unseen" and self.named is None:
            self.unseen, self.may_be_named = line["why"], line["may_be_named"]
        elif kind == "failure":
            self.failure = Failure(**line["value"]) if line["value"] else None
        elif kind in _FIELDS:
            setattr(self, kind, line["value"])
        elif kind == "first_steps":
            self.recording_seconds = line.pop("seconds")
            self.first_steps = FirstScriptSteps(**line)
        elif kind == "autocast":
            self.autocast = _BY_DTYPE.get(line["dtype"])
        elif kind == "other":
            self.others[line["name"]] = line["at"]
        elif kind == "memory":
            self.peak_bytes = line

    def steps_by_itself(self, now: float) -> bool:
        """Return True if many batches were loaded for a while, and no optimizer stepped."""
        batches, _ = self.seen
        began_at = now if self.seen_at is None or self.taken_steps else self.seen_at
        return batches > _MOST_BATCHES and now - began_at > _MOST_SECONDS_OF_BATCHES

    @property
    def taken_steps(self) -> int:
        return sum(self.steps)

    @property
    def precision(self) -> Any:
        """Precision of the step that was counted, or the one that it would have on CUDA."""
        return self.autocast or (self.counts["precision"] if self.counts else "fp32")

    @property
    def used_accelerator(self) -> bool:
        """True if weights were on one, or memory was allocated there, as by offloading."""
        return self.device != "cpu" or bool(self.peak_bytes["device_bytes"])

    @property
    def moves_nothing(self) -> bool:
        """True if the project's files have the training's loop, and move nothing to a device."""
        files = [Path(file) for file in self.files if file.endswith(".py")]
        texts = [file.read_bytes().decode(errors="replace") for file in files if file.is_file()]
        has_loop = any(".backward(" in text for text in texts)
        return has_loop and not any(map(_MAY_MOVE.search, texts))

    @property
    def first_step_at(self) -> float | None:
        """Time of an optimizer's first step, by the performance counter."""
        return next((block[1] for block in self._blocks if any(block[2])), None)

    @property
    def in_source(self) -> Length | None:
        """Length of the first training by its Trainer or loops, a part if others differ."""
        lengths = [self.by_loops.get(main) for main in self._mains]
        first = next(filter(None, lengths), None)
        return first and first._replace(is_part=first.is_part or len({*lengths}) > 1)

    @property
    def length(self) -> Length | None:
        """Length of the whole job: of a Trainer, its loops, else the command line."""
        loops = self.in_source
        if loops and loops.is_part:
            return None
        # Some scripts begin with an `epoch`.
        options = sorted(
            self.on_command_line, key=lambda option: (option.name == "epoch", not option.is_steps)
        )
        taken = sum(self.steps[main] for main in self._mains)
        for length in [loops, *options]:
            # More steps show that something else repeats them.
            if length and not (length.is_steps and length.value + 1 < taken):
                return length
        return None

    def seconds_until_second_epoch(self, figures: Figures) -> float:
        """Return the time until the end of the first epoch and some steps of the second.

        Returns 0 if these are over, or if an epoch's length is unknown.
        """
        if figures.longest_epoch_steps:
            steps = figures.longest_epoch_steps
        elif figures.loader is not None and (batches := self.loaders[figures.loader].batches):
            steps = math.ceil(batches / figures.batches_per_step)
        else:
            return 0.0
        return max(0, steps + _LATER_STEPS - figures.steps) * figures.step_seconds

    @property
    def _mains(self) -> list[int]:
        """Main optimizer of each training, but of those with hardly any steps, in their order."""
        if self.named:  # replays of an optimizer's step
            return [self.named]
        mains = []
        for numbers in trainings(self._blocks):
            named = numbers.index(self.named) if self.named in numbers else None
            mains.append(numbers[main_optimizer([self.steps[each] for each in numbers], named)])
        # Batches of a named loader count only if no optimizer steps.
        mains = [main for main in mains if main != self.named] or mains
        most = max((self.steps[main] for main in mains), default=0)
        return sorted(main for main in mains if OFTEN * self.steps[main] >= most)

    def figures(self) -> Figures | None:
        """Return the figures of a step, or None before a step could be timed."""
        if not any(self.steps[main] for main in self._mains):
            return None
        named = next((number for number, each in self.loaders.items() if each.is_named), None)
        runs = merged(self._blocks, self._mains)
        return figures_of_runs(runs, named, is_on_cpu=self.device == "cpu")
