"""What is measured around a training: energy, and the loop's time between its timed passes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Literal, get_args

from photofinish.machine.energy import Energy, EnergyMeter, added_up
from photofinish.results.measurements import Overhead
from photofinish.training.torch_device import nvidia_uuid
from photofinish.training.world import World

_Purpose = Literal["display", "saving", "tracking", "watching"]


class EnergyOfAllRanks:
    """Energy counters of every rank's GPUs. A CPU has none."""

    def __init__(self, team: World) -> None:
        self._team = team
        uuids = [nvidia_uuid(device) for device in team.devices]
        self._meters = [] if team.devices[0].type == "cpu" else [EnergyMeter(uuids)]

    def begin(self) -> None:
        """Start to count."""
        for meter in self._meters:
            meter.begin()

    def training_ended(self) -> tuple[Energy, ...]:
        """Return the sum over all ranks. Every rank takes part."""
        of_all = self._team.all_gather_object([meter.training_ended() for meter in self._meters])
        return added_up(chain.from_iterable(of_all))


class OverheadMeter:
    """Seconds that the training loop spends between its timed passes, by purpose."""

    def __init__(self) -> None:
        self._started_seconds = time.perf_counter()
        self._seconds: dict[_Purpose, float] = dict.fromkeys(get_args(_Purpose), 0.0)

    @contextmanager
    def spent_on(self, purpose: _Purpose) -> Iterator[None]:
        """Add the time of the block to `purpose`."""
        started_seconds = time.perf_counter()
        yield
        self._seconds[purpose] += time.perf_counter() - started_seconds

    def overhead(self, passes_seconds: float) -> Overhead:
        """Return what the loop spent since the meter was made, apart from its timed passes."""
        loop_seconds = time.perf_counter() - self._started_seconds
        rest_seconds = loop_seconds - passes_seconds - sum(self._seconds.values())
        named = {f"{purpose}_seconds": seconds for purpose, seconds in self._seconds.items()}
        return Overhead(passes_seconds=passes_seconds, rest_seconds=max(0.0, rest_seconds), **named)
