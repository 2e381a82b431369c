"""Figures of a script's steps, from the blocks that its recorder wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import permutations
from operator import add
from typing import Any, Literal, NamedTuple

from photofinish.inside.device import IDLE
from photofinish.inside.recorder import COUNTED, VALIDATES
from photofinish.results import TimedPart
from photofinish.results.measured import LATER_PARTS, slow_and_usual, step_of, wait_of
from photofinish.results.measurements import LoopSteps

_WARM_UP = 2
"""Number of steps after the first that are left out."""
_MOST_PARTS = 10
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


@dataclass(frozen=True)
class Figures:
    """Figures of the steps that were seen. The main optimizer ends a step."""

    steps: int
    epochs: int
    longest_epoch_steps: int | None
    """Number of steps in the longest epoch that ended, or None if this one is longer."""
    loader: int | None
    """Number of the loader that gave most steps their batches, if loaders did."""
    batches_per_step: float
    first_step_at: float
    last_step_at: float
    first_waiting_seconds: float
    """Time until the first step's batches were there, with the start of workers."""
    parts: tuple[TimedPart, ...]
    """Parts in the order of time: starts of epochs, and steps."""
    step_seconds: float
    """Mean duration of a step."""
    waiting_share: float | None
    """Share of a step's time spent waiting for batches, or None if it is not known."""
    validation_step_seconds: float
    """Time of validation for each training step, or 0 without validation."""
    validated_at_end_seconds: float
    """Time of validation after the last step."""
    idle_share: float
    """Share of the steps in blocks at whose end the device was idle."""
    loop_steps: LoopSteps | None
    """Steps on the CPU with all threads of the process."""

    @property
    def is_known_well(self) -> bool:
        """True if a step's mean time is off by less than two runs differ.

        False while a second epoch is too short to show whether the first one is slower.
        """
        from photofinish.answer.times import MACHINE, error_of_mean

        slow, usual = slow_and_usual(self.parts)
        later = sum(part.epoch > 0 for part in usual)
        if not slow and 0 < later < min(LATER_PARTS, len(usual)):
            return False
        return error_of_mean([part.seconds / part.steps for part in usual]) < MACHINE


class _Placed(NamedTuple):
    """Run with its place in the training."""

    run: _Run
    holds: str
    """One of first, start, steps, counted and validation."""
    epochs: int
    """Number of epochs that were begun, with its own."""
    steps: int
    """Number of steps until its end."""


def figures_of_runs(runs: list[_Run], named: int | None, *, is_on_cpu: bool) -> Figures | None:
    """Return the figures of runs, or None before a step could be timed.

    `named` is the number of the loader that the script names.
    """
    steps = sum(run.steps for run in runs)
    loader = _main_loader(runs, steps) if named is None else named
    placed = list(_placed(runs, steps, loader))
    steady = [each for each in placed if each.holds == "steps"]
    left = _WARM_UP if sum(each.run.steps for each in steady) > _WARM_UP else 0
    while left > 0:
        left -= steady.pop(0).run.steps
    if not steady:
        return None
    whole = _sum(steady)

    def part(each: _Placed) -> TimedPart:
        run = each.run
        holds: Literal["start", "steps"] = "start" if each.holds == "start" else "steps"
        waited_seconds = _waiting(run, whole, has_loader=loader is not None, is_on_cpu=is_on_cpu)
        epoch = max(0, each.epochs - 1)
        return TimedPart(run.seconds, float(run.steps), epoch, holds, waited_seconds)

    slow, _ = slow_and_usual([part(each) for each in steady])
    usual = list(_in_parts(steady[len(slow) :]))
    timed = [each for each in placed if each.holds == "start"]
    timed += [*_in_parts(steady[: len(slow)]), *usual]
    parts = tuple(part(each) for each in sorted(timed, key=lambda each: each.run.began_at))
    usual_parts = [part(each) for each in usual]
    step_seconds, wait_seconds = step_of(usual_parts), wait_of(usual_parts)
    validations = [each for each in placed if each.holds == "validation"]
    at_end = [each.run for each in validations if each.steps == steps and not each.run.steps]
    return Figures(
        steps=steps,
        epochs=placed[-1].epochs,
        longest_epoch_steps=_longest_epoch(placed),
        loader=loader,
        batches_per_step=_sum(usual).batches / _sum(usual).steps,
        first_step_at=placed[0].run.ended_at,
        last_step_at=[run for run in runs if run.steps][-1].ended_at,
        first_waiting_seconds=placed[0].run.waiting_seconds,
        parts=parts,
        step_seconds=step_seconds,
        waiting_share=None if wait_seconds is None else wait_seconds / step_seconds,
        validation_step_seconds=_validation_step_seconds(validations, steps, step_seconds),
        validated_at_end_seconds=sum(run.seconds for run in at_end),
        idle_share=sum(each.run.steps for each in steady if each.run.flags & IDLE) / whole.steps,
        loop_steps=_loop_steps([each.run for each in usual]) if is_on_cpu else None,
    )


def _main_loader(runs: list[_Run], steps: int) -> int | None:
    fed = Counter[int]()
    for run in runs:
        if run.loader is not None:
            fed[run.loader] += run.steps
    return max(fed, key=fed.__getitem__) if fed.total() > _USUAL * steps else None


def _placed(runs: list[_Run], steps: int, loader: int | None) -> Iterator[_Placed]:
    """Yield the runs from the first step on. A run without a step is a part of the next."""

    def begins(run: _Run) -> bool:
        return bool(run.steps) and loader is not None and run.began_loader == loader

    def may_validate(run: _Run) -> bool:
        is_other = not run.steps and run.loader not in (None, loader)
        return is_other or bool(run.flags & VALIDATES)

    joined = runs[:1]
    for run in runs[1:]:
        # A validation over several loaders has no step within.
        if not joined[-1].steps and may_validate(joined[-1]) and may_validate(run):
            joined[-1] += run
        else:
            joined.append(run)
    has_epochs = sum(map(begins, joined)) <= _USUAL * steps
    has_validation = sum(bool(run.flags & VALIDATES) for run in joined) <= _USUAL * steps
    first = next(place for place, run in enumerate(joined) if run.steps)
    epochs = int(joined[first].loader in (None, loader))
    taken = joined[first].steps
    yield _Placed(joined[first], "first", epochs, taken)
    pending: list[_Run] = []
    for run in joined[first + 1 :]:
        run = reduce(add, [*pending, run])
        validates = has_validation and may_validate(run)
        pending = [] if run.steps or validates else [run]
        if pending:
            continue
        taken += run.steps
        holds = "counted" if run.flags & COUNTED else "steps"
        if has_epochs and begins(run):
            epochs += 1
            holds = "start" if holds == "steps" else holds
        yield _Placed(run, "validation" if validates else holds, epochs, taken)


def _longest_epoch(placed: list[_Placed]) -> int | None:
    """Return the number of steps in the longest epoch that ended, unless the last is longer."""
    steps = Counter[int]()
    for each in placed:
        steps[each.epochs] += each.run.steps
    last = steps.pop(placed[-1].epochs)
    longest = max((count for epochs, count in steps.items() if epochs), default=0)
    return longest if last <= longest else None


def _waiting(run: _Run, steady: _Run, *, has_loader: bool, is_on_cpu: bool) -> float | None:
    """Return how long nothing was computed because batches were awaited, if it is known."""
    if is_on_cpu:
        # Without a loader, the script's code makes the batch before its first module begins.
        return run.waiting_seconds if has_loader else run.making_seconds or 0.0
    timed = run if run.device_steps else steady
    if not has_loader or not timed.device_steps:
        return None
    host_seconds = max(0.0, run.seconds - run.waiting_seconds) / run.steps
    device_seconds = timed.device_seconds / timed.device_steps
    # Events time the current stream only. A step on another stream appears shorter.
    step_seconds = device_seconds if device_seconds > host_seconds / 2 else host_seconds
    return min(run.waiting_seconds, max(0.0, run.seconds - run.steps * step_seconds))


def _validation_step_seconds(validations: list[_Placed], steps: int, step_seconds: float) -> float:
    """Return the time of validation for each training step, or 0 without validation."""
    if not validations:
        return 0.0
    excess = [max(0.0, each.run.seconds - each.run.steps * step_seconds) for each in validations]
    began, ended = validations[0].steps, validations[-1].steps
    if ended > began:  # the first may come before its time, as in step 0
        return sum(excess[1:]) / (ended - began)
    return sum(excess) / max(ended, steps - ended)


def _loop_steps(runs: list[_Run]) -> LoopSteps | None:
    quickest = [run.quickest_seconds for run in runs if run.quickest_seconds]
    if not quickest:
        return None
    cpu_seconds = min(run.cpu_seconds / run.steps for run in runs)
    return LoopSteps(quickest_seconds=min(quickest), cpu_seconds=cpu_seconds or None)


def _sum(placed: list[_Placed]) -> _Run:
    return reduce(add, (each.run for each in placed))


def _in_parts(placed: list[_Placed]) -> Iterator[_Placed]:
    """Yield up to ten parts of about as many steps, each in its first epoch."""
    count = min(_MOST_PARTS, len(placed))
    total = sum(each.run.steps for each in placed)
    part: list[_Placed] = []
    ended, taken = 0, 0
    for each in placed:
        part.append(each)
        taken += each.run.steps
        if taken * count >= (ended + 1) * total:
            ended = taken * count // total
            yield part[0]._replace(run=_sum(part))
            part = []
