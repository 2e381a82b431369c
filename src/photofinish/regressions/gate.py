"""Compare this folder's trainings with those of another commit, on one machine at one time.

Both commits train the same packed data in turns of a fraction of a second, so what else the machine
does slows both, and no record of another machine is needed.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import Self

from photofinish.config.loader import read_params
from photofinish.errors import ConfigError, UserError
from photofinish.git import git
from photofinish.machine.fingerprint import CpuTarget, GpuTarget, fingerprint
from photofinish.regressions.noise import robust_deviation
from photofinish.results.records import DeviceLabel
from photofinish.stage.locks import exclusive_machine
from photofinish.wording import ratio, seconds, times

_TURN_SECONDS = 0.05
"""Least time of a turn. Most neighbours stay for longer, and so slow both sides."""
_FEWEST_ROUNDS, _ENOUGH_ROUNDS, _MOST_SECONDS = 3, 12, 8.0
"""Rounds and time of a pair of processes. Without enough rounds, their error is not known."""
_ERROR = 0.02
"""Standard error of a pair's ratio with which no more rounds are needed."""
_FEWEST_STARTS, _MOST_STARTS = 2, 5
"""Pairs of processes. Each process has a speed of its own, by its memory's layout and its core."""
_LEAST_DEVIATION = 0.03
"""Least standard deviation of the pairs' log ratios: two may agree by chance."""
_ERRORS = 3.0
"""Standard errors that are no chance: from the allowed ratio, no more pairs are needed."""
_PARAMS = Path("params.yaml")


@dataclass(frozen=True)
class _Checkout:
    """Files of a commit, or those of the working tree."""

    top: Path
    folder: Path
    """Folder of params.yaml."""
    title: str


class Rounds:
    """Turns of a pair of processes, next to each other in time, so that load hits both."""

    def __init__(self) -> None:
        self.old_seconds: list[float] = []
        self.new_seconds: list[float] = []
        """Duration of an epoch by each turn."""

    @property
    def _logs(self) -> list[float]:
        pairs = zip(self.new_seconds, self.old_seconds, strict=True)
        return [math.log(new / old) for new, old in pairs]

    @property
    def log_ratio(self) -> float:
        """Logarithm of the rounds' median ratio."""
        return statistics.median(self._logs)

    @property
    def error(self) -> float:
        """Standard error of that median."""
        logs = self._logs
        return math.sqrt(math.pi / 2 / len(logs)) * robust_deviation(logs)


@dataclass(frozen=True)
class Change:
    """Change of a training's time, by all pairs of processes."""

    name: str
    allowed: float
    pairs: tuple[Rounds, ...]

    @property
    def ratio(self) -> float:
        """Geometric mean of the pairs' ratios."""
        return math.exp(self._log_ratio)

    @property
    def is_clear(self) -> bool:
        """True if the ratio is far enough from the allowed one, as much as the pairs differ."""
        if len(self.pairs) < _FEWEST_STARTS:
            return False
        return abs(self._log_ratio - math.log(self.allowed)) > _ERRORS * self._error

    @property
    def is_too_slow(self) -> bool:
        """True if the ratio is above the allowed one, and equal speeds would not explain it."""
        return self.ratio > self.allowed and self._log_ratio > _ERRORS * self._error

    @property
    def _log_ratio(self) -> float:
        return statistics.mean(pair.log_ratio for pair in self.pairs)

    @property
    def _error(self) -> float:
        """Standard error of the log ratio, from two pairs on."""
        deviation = statistics.stdev(pair.log_ratio for pair in self.pairs)
        return max(_LEAST_DEVIATION, deviation) / math.sqrt(len(self.pairs))

    def __str__(self) -> str:
        old = seconds(statistics.median(one for pair in self.pairs for one in pair.old_seconds))
        new = seconds(statistics.median(one for pair in self.pairs for one in pair.new_seconds))
        return f"{times(self.ratio)} the time ({new} an epoch, not {old})"


def gate(base: str, allowed: float) -> None:
    """Print how each training's time changed since `base`. Raise UserError if one is slower."""
    if allowed <= 1:
        raise ConfigError(f"--slower {allowed}: give a factor above 1, such as 1.15")
    top = Path(git(Path(), "rev-parse", "--show-toplevel")).resolve()
    now = _Checkout(top, Path.cwd().resolve(), "now")
    with tempfile.TemporaryDirectory() as temporary:
        before = _exported(now, base, Path(temporary).resolve())
        too_slow = [each for each in _changes(before, now, allowed) if each.is_too_slow]
    if too_slow:
        raise UserError(
            f"more than {ratio(allowed)} times as long as at {before.title}: "
            f"{', '.join(each.name for each in too_slow)}. If it is worth it, allow more: --slower"
        )


def _exported(now: _Checkout, base: str, folder: Path) -> _Checkout:
    """Write the files of the commit that this one and `base` come from to a folder."""
    try:
        commit = git(Path(), "merge-base", base, "HEAD")
    except UserError as error:
        raise ConfigError(
            f"there is no common commit with {base} here. Name another with --base, or fetch more: "
            f"a clone of CI often has one commit (`fetch-depth: 0`)"
        ) from error
    command = ["git", "archive", "--format=tar", commit]
    with (
        subprocess.Popen(command, cwd=now.top, stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as archive,
    ):
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)  # noqa: S202  # it is Git's own
    there = folder / now.folder.relative_to(now.top)
    if not (there / _PARAMS).is_file():
        raise ConfigError(f"{commit[:10]} has no {_PARAMS} here: name another with --base")
    return _Checkout(folder, there, commit[:10])


def _changes(before: _Checkout, now: _Checkout, allowed: float) -> Iterator[Change]:
    """Compare each training that both commits have, and print a line for it."""
    params, params_before = (read_params(each.folder / _PARAMS) for each in (now, before))
    cpu_host, gpu_host = fingerprint(params.devices)
    hosts: dict[DeviceLabel, CpuTarget | GpuTarget] = {"cpu": cpu_host}
    if not gpu_host.missing:
        hosts["gpu"] = gpu_host
    for (name, experiment), (device, host) in product(params.experiments.items(), hosts.items()):
        title = f"{name} on the {device.upper()}"
        if name not in params_before.experiments:
            print(f"{title}: new since {before.title}")
        elif host.processes > 1:
            print(f"{title}: not compared, as it trains in several processes")
        elif params.datasets[experiment.dataset].decode == "each_epoch":
            print(f"{title}: not compared, as it reads its data set in each epoch")
        elif pairs := _compare(name, device, experiment.dataset, before, now, allowed):
            change = Change(name, allowed, pairs)
            unclear = "" if change.is_clear else ". This is not clear: the machine is too busy"
            print(f"{title} since {before.title}: {change}{unclear}", flush=True)
            yield change
        else:
            print(f"{title}: unchanged since {before.title}")
    for name in params.scripts:
        print(f"{name}: not compared, as it is a script")


def _compare(
    name: str, device: DeviceLabel, dataset: str, before: _Checkout, now: _Checkout, allowed: float
) -> tuple[Rounds, ...]:
    """Time a training at both commits, in new processes until it is clear whether it is slower.

    Returns nothing if settings and code are the same.
    """
    pairs: tuple[Rounds, ...] = ()
    with exclusive_machine(f"which compares {name} with another commit"):
        while len(pairs) < _MOST_STARTS and not (pairs and Change(name, allowed, pairs).is_clear):
            with (
                _Side(before, now, name, device, dataset) as old,
                _Side(now, now, name, device, dataset) as new,
            ):
                if old.answer() == new.answer():
                    return ()
                pairs += (_take_turns(old, new, new_first=len(pairs) % 2 > 0),)
    return pairs


def _take_turns(old: _Side, new: _Side, *, new_first: bool) -> Rounds:
    """Time both sides in turns. Each has rested for a turn of the other.

    Two turns of a process in a row would not be alike: the second has used up its time on a core.
    """
    old.begin()
    new.begin()
    steps = max(old.least_steps, new.least_steps)
    while old.take_turn(steps) * steps / old.steps_per_epoch < _TURN_SECONDS:
        steps *= 2
    if steps > old.steps_per_epoch - 2:  # the first one is not timed, and the last may be smaller
        steps = -(-steps // old.steps_per_epoch) * old.steps_per_epoch
    new_steps = max(1, round(steps * new.steps_per_epoch / old.steps_per_epoch))
    if steps < old.steps_per_epoch:
        new_steps = max(1, min(new_steps, new.steps_per_epoch - 2))
    new.take_turn(new_steps)
    rounds, deadline = Rounds(), time.monotonic() + _MOST_SECONDS
    sides = [(old, steps, rounds.old_seconds), (new, new_steps, rounds.new_seconds)]
    if new_first:
        sides.reverse()
    while (count := len(rounds.old_seconds)) < _FEWEST_ROUNDS or (
        (count < _ENOUGH_ROUNDS or rounds.error > _ERROR) and time.monotonic() < deadline
    ):
        for side, side_steps, epoch_seconds in sides:
            epoch_seconds.append(side.take_turn(side_steps))
    return rounds


class _Side:
    """Process that trains one commit's experiment in turns."""

    def __init__(
        self, own: _Checkout, now: _Checkout, name: str, device: DeviceLabel, dataset: str
    ) -> None:
        self.steps_per_epoch = self.least_steps = 1
        self._what = f"{name} on the {device.upper()} ({own.title})"
        weights, data = now.folder / "data/weights" / name, now.folder / "data/splits" / dataset
        arguments = [name, device, "--data", str(data), "--weights", str(weights)]
        environment = dict(os.environ)
        if own is not now:
            arguments += ["--not-from", str(now.top)]
            environment["PYTHONPATH"] = os.pathsep.join(_moved_path(now.top, own.top))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "photofinish.regressions.side", *arguments],
            cwd=own.folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind:
            self._process.terminate()
        self._process.communicate()

    def answer(self) -> str:
        """Return the process's next line."""
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            raise UserError(f"{self._what} did not train, so that there is nothing to compare")
        return line.strip()

    def begin(self) -> None:
        """Prepare the training, after its identity was read."""
        self.steps_per_epoch, self.least_steps = map(int, self._ask("").split())

    def take_turn(self, steps: int) -> float:
        """Train so many steps, and return how long an epoch takes at their speed."""
        return float(self._ask(str(steps))) / steps * self.steps_per_epoch

    def _ask(self, question: str) -> str:
        assert self._process.stdin
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        return self.answer()


def _moved_path(now: Path, before: Path) -> Iterator[str]:
    """Yield the folders on Python's path that lie in the project, as the other commit has them."""
    for entry in filter(None, sys.path):
        folder = Path(entry).resolve()
        if folder.is_relative_to(now) and folder.name != "site-packages":
            yield str(before / folder.relative_to(now))
    if path := os.environ.get("PYTHONPATH"):
        yield path
