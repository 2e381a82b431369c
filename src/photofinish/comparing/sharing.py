"""What several devices gain: the same training by how many of one kind shared it out, here and in records. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from photofinish.comparing.pairs import Pair
from photofinish.comparing.speedups import Interval, Speedup, epoch_speedup
from photofinish.results.records import DeviceLabel, Timings


@dataclass(frozen=True)
class Shared:
    """A training that so many devices shared, against that of the fewest."""

    experiment: str
    device: DeviceLabel
    machine: str | None
    """the one whose record it is; None for this project's own result"""
    timings: Timings
    fewest: int
    speedup: Speedup
    """of an epoch with its data"""

    @property
    def count(self) -> int:
        """GPUs, or processes on the CPU."""
        return self.timings.device_count

    @property
    def efficiency(self) -> float:
        """Which share of what so many devices could gain they did gain."""
        return self.speedup.ratio * self.fewest / self.count

    @property
    def efficiency_interval(self) -> Interval | None:
        """Of 95 %; None where the speed-up has none, and of the fewest, which it is measured against."""
        if self.speedup.interval is None or self.count == self.fewest:
            return None
        low, high = (end * self.fewest / self.count for end in self.speedup.interval)
        return low, high


def shared_trainings(pairs: Iterable[Pair]) -> list[Shared]:
    """By their experiments, kinds and numbers of devices; none of what only one number of devices has trained."""
    found = []
    for pair in pairs:
        by_kind: dict[tuple[DeviceLabel, str, int | None], dict[int, tuple[str | None, Timings]]] = {}
        runs: list[tuple[DeviceLabel, str | None, Timings]]
        runs = [(run.device, None, run.timings) for run in pair.trained]
        runs += [
            (each.reference.training.device, each.reference.machine, each.reference.timings) for each in pair.elsewhere
        ]
        for device, machine, timings in runs:  # its own first, which is then the one that counts
            threads = timings.host.threads if device == "cpu" else None  # of each process
            by_kind.setdefault((device, timings.device_name, threads), {}).setdefault(
                timings.device_count, (machine, timings)
            )
        for (device, *_), by_count in by_kind.items():
            fewest = min(by_count)
            of_fewest = by_count[fewest][1]
            found += [
                Shared(pair.experiment, device, machine, timings, fewest, epoch_speedup(of_fewest, timings))
                for _, (machine, timings) in sorted(by_count.items())
                if len(by_count) > 1
            ]
    return found
