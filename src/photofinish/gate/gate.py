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
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import comb
from pathlib import Path
from types import TracebackType
from typing import Self

from photofinish.config.loader import read_params
from photofinish.errors import ConfigError, UserError
from photofinish.locks import exclusive_machine
from photofinish.machine.fingerprint import GpuTarget, fingerprint
from photofinish.remote.jobs import git
from photofinish.results.records import DEVICE_LABELS, DeviceLabel
from photofinish.wording import counted, ratio, seconds, times

_FEWEST_ROUNDS, _MOST_ROUNDS = 11, 61
_MOST_CHANCE = 0.01
"""Chance of a sign test at which rounds end."""
_STARTS = 3
"""Pairs of processes that must all be slower. Memory's layout alone makes some a little slower."""
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
    """Times of one training at both commits: medians over rounds."""

    base_seconds: float
    seconds: float
    """Duration of an epoch."""
    ratio: float


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
    hosts = dict(zip(DEVICE_LABELS, fingerprint(params.devices), strict=True))
    for (name, experiment), (device, host) in product(params.experiments.items(), hosts.items()):
        title = f"{name} on the {device.upper()}"
        if isinstance(host, GpuTarget) and host.missing:
            continue
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

    It is slower only if new processes say so again.
    """
    changes: list[_Change] = []
    with exclusive_machine(f"which compares {name} with another commit"):
        while len(changes) < _STARTS and all(change.ratio > slower for change in changes):
            with (
                _Side(before, now, name, device, dataset) as old,
                _Side(now, now, name, device, dataset) as new,
            ):
                if old.answer() == new.answer():
                    return None
                changes.append(_take_turns(old, new, slower))
    return min(changes, key=lambda change: change.ratio)


def _take_turns(old: _Side, new: _Side, slower: float) -> _Change:
    """Time both sides in turns, until it is sure whether most rounds are slower.

    Without being sure after many rounds, the machine was too noisy, and the median decides.
    """
    for side in (old, new, old, new):  # a first turn finds its length
        side.take_turn()
    rounds: list[tuple[float, float]] = []
    while len(rounds) < _MOST_ROUNDS and not _is_sure(rounds, slower):
        sides = (old, new) if len(rounds) % 2 else (new, old)
        taken = {side: side.take_turn() for side in sides}
        rounds.append((taken[old], taken[new]))
    return _Change(
        base_seconds=statistics.median(base for base, _ in rounds),
        seconds=statistics.median(own for _, own in rounds),
        ratio=statistics.median(own / base for base, own in rounds),
    )


def _is_sure(rounds: list[tuple[float, float]], slower: float) -> bool:
    """Return True if by a sign test the median round is slower, or is not."""
    count, above = len(rounds), sum(own > slower * base for base, own in rounds)
    most = max(above, count - above)
    chance = sum(comb(count, number) for number in range(most, count + 1)) / 2**count
    return count >= _FEWEST_ROUNDS and chance < _MOST_CHANCE


class _Side:
    """Process that trains one commit's experiment in turns."""

    def __init__(
        self, own: _Checkout, now: _Checkout, name: str, device: DeviceLabel, dataset: str
    ) -> None:
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

    def take_turn(self) -> float:
        """Return how long an epoch takes at the speed of a turn."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self.answer())


def _moved_path(now: Path, before: Path) -> Iterator[str]:
    """Yield the folders on Python's path that lie in the project, as the other commit has them."""
    for entry in filter(None, sys.path):
        folder = Path(entry).resolve()
        if folder.is_relative_to(now) and folder.name != "site-packages":
            yield str(before / folder.relative_to(now))
    if path := os.environ.get("PYTHONPATH"):
        yield path
