"""Numbers of a script's optimizers, and the optimizer whose step ends a period."""

from __future__ import annotations

import weakref
from typing import Any

OFTEN = 20
"""Ratio of steps from which on an optimizer hardly ever steps, compared to another, by hand."""
_MOST_OPTIMIZERS = 20
"""Optimizers, by hand, of which a script that makes one for each step seems to have no more."""


class Optimizers:
    """Numbers of optimizers. Another may get the address of one that is gone."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        """Numbers of the optimizers that exist, by their id."""
        self._gone: dict[Any, int] = {}
        """Numbers of the others, by their weights."""
        self._count = 0

    def add(self, key: Any) -> int:
        number = self.numbers[key] = self._count
        self._count += 1
        return number

    def in_place_of_one_gone(self, weights: list[Any]) -> int | None:
        """Return the number of an optimizer that is gone, which had these weights, or None."""
        number = self._gone.pop(_place(weights), None)
        if number is None and self._gone and self._count >= _MOST_OPTIMIZERS:
            _, number = self._gone.popitem()
        return number

    def keep(self, optimizer: Any, number: int) -> None:
        """Keep an optimizer's number for as long as it exists, and then by its weights."""
        self.numbers[id(optimizer)] = number
        place = _place(weights_of(optimizer))
        weakref.finalize(optimizer, self._forget, id(optimizer), place).atexit = False

    def _forget(self, key: int, place: Any) -> None:
        self._gone[place] = self.numbers.pop(key)


def weights_of(optimizer: Any) -> list[Any]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _place(weights: list[Any]) -> tuple[int, ...]:
    return (*map(id, weights[:1]), len(weights))


def main_optimizer(steps: list[int], named: int | None = None) -> int:
    """Return the optimizer that steps least often, or the last of them. Its step ends a period.

    An optimizer that hardly ever steps doesn't count. Batches of a named loader, which count as an
    optimizer's steps, count only if no optimizer steps.
    """
    if named:  # replays of an optimizer's step
        return named
    counts = [0 if number == named else count for number, count in enumerate(steps)]
    counts = counts if any(counts) else steps
    often = [number for number, count in enumerate(counts) if OFTEN * count >= max(counts) > 0]
    return min(reversed(often), key=lambda number: counts[number], default=0)
