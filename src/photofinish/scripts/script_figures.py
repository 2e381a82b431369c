"""Figures of a script's steps, from the blocks that its recorder wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import permutations
from operator import add
from typing import Any, Literal

from photofinish.inside.device import IDLE
from photofinish.inside.recorder import COUNTED, VALIDATES
from photofinish.results import TimedPart
from photofinish.results.measurements import LoopSteps

_WARM_UP = 2
"""Number of steps after the first that are left out."""
_MOST_PARTS = 10
LATER_STEPS = 10
"""Number of steps in the second epoch that show whether the first epoch is slower."""
_SLOWER = 1.1
"""Factor by which the first epoch must be slower if its excess is to count once."""
_USUAL = 0.5
"""A property of a larger share of the steps is a property of a step."""


@dataclass
class _Run:
    """Sums of consecutive blocks, in the order of a block's line."""

    began_at: float
    ended_at: float
    steps: int
    batches: int
    waiting_seconds: float
    making_seconds: float | None
    flags: int
    loader: int | None
    began_loader: int | None
    quickest_seconds: float | None
    cpu_seconds: float
    device_seconds: float = 0.0
    device_steps: int = 0
    seconds: float = 0.0
    """Time of the blocks. The recorder's own work lies between them."""

    def __add__(self, other: _Run) -> _Run:
        """Return both runs as one. A mean of quickest steps is weighted by the steps."""
        pairs = [(run.quickest_seconds, run.steps) for run in (self, other) if run.quickest_seconds]
        steps = sum(steps for _, steps in pairs)
        made = [run for run in (self, other) if run.making_seconds is not None]
        making_seconds = None
        if made_steps := sum(run.steps for run in made):  # only some periods are timed
            making_seconds = sum(run.making_seconds or 0.0 for run in made) / made_steps
            making_seconds *= self.steps + other.steps
        return _Run(
            self.began_at,
            other.ended_at,
            self.steps + other.steps,
            self.batches + other.batches,
            self.waiting_seconds + other.waiting_seconds,
            making_seconds,
            self.flags | other.flags,
            self.loader if other.loader is None else other.loader,
            self.began_loader if other.began_loader is None else other.began_loader,
            sum(quickest * count for quickest, count in pairs) / steps if steps else None,
            self.cpu_seconds + other.cpu_seconds,
            self.device_seconds + other.device_seconds,
            self.device_steps + other.device_steps,
            self.seconds + other.seconds,
        )


def trainings(blocks: Iterable[Any]) -> list[list[int]]:
    """Return the optimizers of each training in the process.

    Those of one training, such as of a GAN, step in the same blocks. Those of folds follow each
    other, and share a block by chance.
    """
    taken, shared = Counter[int](), Counter[tuple[int, int]]()
    for _began_at, _ended_at, steps, *_ in blocks:
        stepping = [number for number, count in enumerate(steps) if count]
        taken.update({number: steps[number] for number in stepping})
        shared.update({pair: steps[pair[0]] for pair in permutations(stepping, 2)})
    found: list[list[int]] = []
    for number in sorted(taken, key=lambda each: -taken[each]):
        for others in found:
            if any(shared[number, other] > _USUAL * taken[number] for other in others):
                others.append(number)
                break
        else:
            found.append([number])
    return [sorted(numbers) for numbers in found]


def merged(blocks: Iterable[Any], mains: Iterable[int]) -> list[_Run]:
    """Return blocks with steps of a main optimizer, or of a loader that began without a step.

    A block with steps of other optimizers alone is part of the next.
    """
    runs: list[_Run] = []
    is_open = False
    for began_at, ended_at, steps, *sums in blocks:
        count = sum(steps[main] for main in mains if main < len(steps))
        run = _Run(began_at, ended_at, count, *sums)
        run.seconds = ended_at - began_at
        if is_open:
            run = runs.pop() + run
        runs.append(run)
        is_open = not run.steps and any(steps)
    return runs


class Figures:
    """Figures of the steps that were seen. The main optimizer ends a step."""

    def __init__(self, runs: list[_Run], named: int | None, *, is_on_cpu: bool) -> None:
        """Sort the runs. `named` is the number of the loader that the script names."""
        self._is_on_cpu = is_on_cpu
        self.steps = sum(run.steps for run in runs)
        given = Counter[int]()
        for run in runs:
            if run.loader is not None:
                given[run.loader] += run.steps
        is_fed = given.total() > _USUAL * self.steps
        self.loader = max(given, key=given.__getitem__) if named is None and is_fed else named
        """Number of the loader that gave most steps their batches, if loaders did."""
        runs = self._with_whole_validations(runs)
        places = [place for place, run in enumerate(runs) if run.steps]
        first, last = places[0], places[-1]
        self.first_step_at, self.last_step_at = runs[first].ended_at, runs[last].ended_at
        self.first_waiting_seconds = runs[first].waiting_seconds
        """Time until the first step's batches were there, with the start of workers."""
        begins = sum(bool(run.steps and self._begins(run)) for run in runs)
        self._has_epochs = begins <= _USUAL * self.steps
        validations = sum(bool(run.flags & VALIDATES) for run in runs)
        self._has_validation = validations <= _USUAL * self.steps
        self.epochs = 1 if runs[first].loader in (None, self.loader) else 0
        """Number of epochs that were begun."""
        self.longest_epoch_steps: int | None = None
        """Number of steps in the longest epoch that ended, or None if this one is longer."""
        self._validations: list[tuple[_Run, int]] = []
        """Validations, each with the number of steps until its end."""
        starts: list[tuple[int, _Run]] = []
        steady: list[tuple[int, _Run]] = []
        pending, longest = None, 0
        own = taken = runs[first].steps
        for run in runs[first + 1 :]:
            run = pending + run if pending else run
            holds = self._holds(run)
            pending = run if holds == "nothing" else None
            if pending:
                continue
            if self._has_epochs and run.steps and self._begins(run):
                longest = max(longest, own) if self.epochs else 0
                self.epochs += 1
                own = 0
            taken += run.steps
            own += run.steps
            if holds == "validation":
                self._validations.append((run, taken))
            elif not run.flags & COUNTED:
                (starts if holds == "start" else steady).append((max(0, self.epochs - 1), run))
        if own <= longest:
            self.longest_epoch_steps = longest
        left = _WARM_UP if sum(run.steps for _, run in steady) > _WARM_UP else 0
        while left > 0:
            left -= steady.pop(0)[1].steps
        self._steady = steady
        """Runs of usual steps, each with its epoch."""
        self._starts = starts

    def _begins(self, run: _Run) -> bool:
        return self.loader is not None and run.began_loader == self.loader

    def _may_validate(self, run: _Run) -> bool:
        is_other = not run.steps and run.loader not in (None, self.loader)
        return is_other or bool(run.flags & VALIDATES)

    def _with_whole_validations(self, runs: list[_Run]) -> list[_Run]:
        """Join the runs of a validation over several loaders, which has no step within."""
        joined = runs[:1]
        for run in runs[1:]:
            before = joined[-1]
            if not before.steps and self._may_validate(before) and self._may_validate(run):
                joined[-1] = before + run
            else:
                joined.append(run)
        return joined

    def _holds(self, run: _Run) -> str:
        if self._has_validation and self._may_validate(run):
            return "validation"
        if not run.steps:
            return "nothing"
        return "start" if self._has_epochs and self._begins(run) else "steps"

    @cached_property
    def _groups(self) -> list[list[tuple[int, _Run]]]:
        """Steady runs, those of the first epoch separately if its steps are slower."""
        early = [each for each in self._steady if each[0] == 0]
        later = self._steady[len(early) :]
        if early and sum(run.steps for _, run in later) >= LATER_STEPS:
            first, rest = (reduce(add, (run for _, run in runs)) for runs in (early, later))
            if first.seconds / first.steps > _SLOWER * rest.seconds / rest.steps:
                return [early, later]
        return [self._steady] if self._steady else []

    @cached_property
    def _all_steady(self) -> _Run:
        return reduce(add, (run for _, run in self._steady))

    @cached_property
    def _usual(self) -> list[_Run]:
        """Up to ten consecutive parts, without a slower first epoch."""
        return [run for _, run in _in_parts(self._groups[-1])] if self._groups else []

    @property
    def is_timed(self) -> bool:
        """Return True if a step could be timed."""
        return bool(self._steady)

    @property
    def parts(self) -> tuple[TimedPart, ...]:
        """Parts in the order of time: starts of epochs, and steps."""
        found: list[tuple[int, _Run, Literal["start", "steps"]]]
        found = [(epoch, run, "start") for epoch, run in self._starts]
        for group in self._groups:
            found += [(epoch, run, "steps") for epoch, run in _in_parts(group)]
        found.sort(key=lambda each: each[1].began_at)
        return tuple(
            TimedPart(
                seconds=run.seconds,
                steps=float(run.steps),
                epoch=epoch,
                holds=holds,
                waiting_seconds=self._waiting(run),
            )
            for epoch, run, holds in found
        )

    def _waiting(self, run: _Run) -> float | None:
        """Return how long nothing was computed because batches were awaited, if it is known."""
        if self._is_on_cpu:
            # Without a loader, the script's code makes the batch before its first module begins.
            return run.waiting_seconds if self.loader is not None else run.making_seconds or 0.0
        timed = run if run.device_steps else self._all_steady
        if self.loader is None or not timed.device_steps:
            return None
        host_seconds = max(0.0, run.seconds - run.waiting_seconds) / run.steps
        device_seconds = timed.device_seconds / timed.device_steps
        # Events time the current stream only. A step on another stream appears shorter.
        step_seconds = device_seconds if device_seconds > host_seconds / 2 else host_seconds
        return min(run.waiting_seconds, max(0.0, run.seconds - run.steps * step_seconds))

    @property
    def part_seconds(self) -> list[float]:
        """Mean step in each of up to ten consecutive parts."""
        return [run.seconds / run.steps for run in self._usual]

    @property
    def step_seconds(self) -> float:
        """Mean duration of a step."""
        return sum(run.seconds for run in self._usual) / sum(run.steps for run in self._usual)

    @property
    def is_known_well(self) -> bool:
        """True if a step's mean time is off by less than two runs differ."""
        from photofinish.answer.uncertainty import MACHINE, error_of_mean

        return error_of_mean(self.part_seconds) < MACHINE

    @property
    def batches_per_step(self) -> float:
        return sum(run.batches for run in self._usual) / sum(run.steps for run in self._usual)

    @property
    def idle_share(self) -> float:
        """Share of the steps in blocks at whose end the device was idle."""
        idle = [run.steps for _, run in self._steady if run.flags & IDLE]
        return sum(idle) / self._all_steady.steps

    @property
    def waiting_share(self) -> float | None:
        """Share of a step's time spent waiting for batches, or None if it is not known."""
        waits = [self._waiting(run) for run in self._usual]
        known = [seconds for seconds in waits if seconds is not None]
        if len(known) < len(waits):
            return None
        return sum(known) / sum(run.seconds for run in self._usual)

    @property
    def validation_step_seconds(self) -> float:
        """Time of validation for each training step, or 0 without validation."""
        if not self._validations:
            return 0.0
        excess = [
            max(0.0, run.seconds - run.steps * self.step_seconds) for run, _ in self._validations
        ]
        (_, began), (_, ended) = self._validations[0], self._validations[-1]
        if ended > began:  # the first may come before its time, as in step 0
            return sum(excess[1:]) / (ended - began)
        return sum(excess) / max(ended, self.steps - ended)

    @property
    def validated_at_end_seconds(self) -> float:
        """Time of validation after the last step."""
        at_end = (run for run, steps in self._validations if steps == self.steps and not run.steps)
        return sum(run.seconds for run in at_end)

    @property
    def loop_steps(self) -> LoopSteps | None:
        """Steps on the CPU with all threads of the process."""
        quickest = [run.quickest_seconds for run in self._usual if run.quickest_seconds]
        if not self._is_on_cpu or not quickest:
            return None
        cpu_seconds = min(run.cpu_seconds / run.steps for run in self._usual)
        return LoopSteps(quickest_seconds=min(quickest), cpu_seconds=cpu_seconds or None)


def _in_parts(runs: list[tuple[int, _Run]]) -> Iterator[tuple[int, _Run]]:
    """Yield up to ten parts of about as many steps, each with its first epoch."""
    count, total = min(_MOST_PARTS, len(runs)), sum(run.steps for _, run in runs)
    part: list[tuple[int, _Run]] = []
    ended, taken = 0, 0
    for epoch, run in runs:
        part.append((epoch, run))
        taken += run.steps
        if taken * count >= (ended + 1) * total:
            ended = taken * count // total
            yield part[0][0], reduce(add, (each for _, each in part))
            part = []
