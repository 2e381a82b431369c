"""Compare this folder's trainings with those of another commit, on one machine at one time.

Both commits train the same packed data in turns of a fraction of a second, so what else the machine
does slows both. No record of another machine is needed, and no machine is too noisy.
"""

from __future__ import annotations

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
from photofinish.locks import exclusive_machine
from photofinish.machine.fingerprint import CpuTarget, GpuTarget, fingerprint
from photofinish.remote.jobs import git
from photofinish.results.records import DeviceLabel
from photofinish.wording import counted, ratio, seconds, times

ALLOWED = 1.15
"""Default of --slower."""
_TURN_SECONDS = 0.05
"""Least time of a turn. Short ones find a machine's quiet moments."""
_FEWEST_ROUNDS, _MOST_SECONDS = 12, 20.0
"""Rounds and time of a pair of processes, of which those that start in slow memory stay slower."""
_STARTS = 3
"""Pairs of processes, at most."""
_QUICKEST, _AGREEMENT = 3, 1.03
"""Number of quickest turns that count, and how far apart they are when more turns gain nothing."""
_PARAMS = Path("params.yaml")


@dataclass(frozen=True)
class _Checkout:
    """Files of a commit, or those of the working tree."""

    top: Path
    folder: Path
    """Folder of params.yaml."""
    title: str


@dataclass(frozen=True)
class _Change:
    """Duration of a training's epoch at both commits, by the quickest turns."""

    base_seconds: float
    seconds: float

    @property
    def ratio(self) -> float:
        """Time over the base's."""
        return self.seconds / self.base_seconds


def gate(base: str, slower: float) -> None:
    """Print how each training's time changed since `base`. Raise UserError if one is slower."""
    if slower <= 1:
        raise ConfigError(f"--slower {slower}: give a factor above 1, such as 1.15")
    top = Path(git(Path(), "rev-parse", "--show-toplevel")).resolve()
    now = _Checkout(top, Path.cwd().resolve(), "now")
    with tempfile.TemporaryDirectory() as temporary:
        before = _exported(now, base, Path(temporary).resolve())
        ratios = list(_ratios(before, now, slower))
    if too_slow := sum(each > slower for each in ratios):
        raise UserError(
            f"{counted(too_slow, 'training')} slower than {ratio(slower)} times "
            f"{before.title}. If it is worth it, allow more with --slower"
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
        archive.extractall(folder, filter="data")
    there = folder / now.folder.relative_to(now.top)
    if not (there / _PARAMS).is_file():
        raise ConfigError(f"{commit[:10]} has no {_PARAMS} here: name another with --base")
    return _Checkout(folder, there, commit[:10])


def _ratios(before: _Checkout, now: _Checkout, slower: float) -> Iterator[float]:
    """Compare each training that both commits have, print a line for it, and yield the ratio."""
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
        elif change := _compare(name, device, experiment.dataset, before, now, slower):
            print(
                f"{title}: {times(change.ratio)} the time of {before.title} "
                f"({seconds(change.seconds)} an epoch, {seconds(change.base_seconds)} there)",
                flush=True,
            )
            yield change.ratio
        else:
            print(f"{title}: unchanged since {before.title}")


def _compare(
    name: str, device: DeviceLabel, dataset: str, before: _Checkout, now: _Checkout, slower: float
) -> _Change | None:
    """Return how a training's time changed, or None if settings and code are the same.

    Processes start again while it looks slower, or while the machine is too busy to be sure.
    """
    old_turns, new_turns = _Turns(), _Turns()
    with exclusive_machine(f"which compares {name} with another commit"):
        for _start in range(_STARTS):
            with (
                _Side(before, now, name, device, dataset) as old,
                _Side(now, now, name, device, dataset) as new,
            ):
                if old.answer() == new.answer():
                    return None
                _take_turns(old, old_turns, new, new_turns)
            change = _Change(old_turns.quickest_seconds, new_turns.quickest_seconds)
            if change.ratio <= slower and old_turns.agree and new_turns.agree:
                break
    return change


class _Turns:
    """Durations of an epoch by each turn of a side.

    Other programs only ever slow a turn down, so the quickest ones are nearest to the truth.
    """

    def __init__(self) -> None:
        self._epoch_seconds: list[float] = []

    def add(self, epoch_seconds: float) -> None:
        self._epoch_seconds.append(epoch_seconds)

    @property
    def _quickest(self) -> list[float]:
        return sorted(self._epoch_seconds)[:_QUICKEST]

    @property
    def quickest_seconds(self) -> float:
        """Mean of the quickest."""
        return statistics.mean(self._quickest)

    @property
    def agree(self) -> bool:
        """True if the quickest are about equal, as on a quiet machine."""
        return self._quickest[-1] <= _AGREEMENT * self._quickest[0]


def _take_turns(old: _Side, old_turns: _Turns, new: _Side, new_turns: _Turns) -> None:
    """Time both sides in turns until the quickest of each agree."""
    for side in (old, new):
        side.begin()
    steps = max(old.least_steps, new.least_steps)
    while old.take_turn(steps) < _TURN_SECONDS:
        steps *= 2
    if steps > old.steps_per_epoch:
        steps = -(-steps // old.steps_per_epoch) * old.steps_per_epoch
    share = steps / old.steps_per_epoch
    sides = [(old, old_turns), (new, new_turns)]
    deadline, rounds = time.monotonic() + _MOST_SECONDS, 0
    while rounds < _FEWEST_ROUNDS or (
        time.monotonic() < deadline and not (old_turns.agree and new_turns.agree)
    ):
        for side, turns in sides if rounds % 2 else reversed(sides):
            steps = max(1, round(share * side.steps_per_epoch))
            turns.add(side.take_turn(steps) / steps * side.steps_per_epoch)
        rounds += 1


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
            [sys.executable, "-m", "photofinish.gate.side", *arguments],
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
        """Train so many steps, and return how long they took."""
        return float(self._ask(str(steps)))

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
