"""The energy that a training took, off the hardware's own counters: NVML's for NVIDIA's GPUs, RAPL's for CPUs.

They are read at the two ends of the training and between epochs, in microseconds. Both count whatever runs on the
same GPU or CPU package meanwhile. No torch here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import pynvml

from photofinish.machine.accelerators import SliceError, whole_gpu
from photofinish.params.base import Record

_MOST_PACKAGE_WATTS = 500
"""A CPU package that draws more could let its counter run over twice between two readings, unseen."""
_EXCEPT_OFTEN_SECONDS = 20.0
"""between two readings, where epochs are shorter"""

MachinePart = Literal["cpu", "gpu"]
EnergySource = Literal["nvml", "rapl"]


class Energy(Record):
    """Of one part of the machine, from the first epoch's start to the last one's end."""

    of: MachinePart
    """the GPUs in use, or whole CPU packages"""
    status: Literal["measured", "unavailable"]
    joules: float | None = None
    source: EnergySource | None = None
    reason: str | None = None
    """why there is no figure"""


class CounterError(Exception):
    """A counter that isn't there or can't be read, and why."""


class NvidiaGpus:
    """Every GPU since Volta counts its energy since the driver was loaded; torch runs on nothing older."""

    least_seconds = 1.0
    """In less, it tells nothing: the counter moves on ten to fifty times a second."""

    def __init__(self, uuids: Sequence[str | None]) -> None:
        try:
            self._handles = [whole_gpu(uuid) for uuid in uuids if uuid]
        except pynvml.NVMLError as error:
            raise CounterError(f"the NVIDIA driver doesn't answer ({error})") from error
        except SliceError as error:
            raise CounterError(str(error)) from error

    def joules(self) -> float:
        """The joules that all these GPUs together have used."""
        try:
            return sum(int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) for handle in self._handles) / 1e3
        except pynvml.NVMLError as error:
            raise CounterError(f"the NVIDIA driver doesn't tell the GPU's energy ({error})") from error


class CpuPackages:
    """RAPL, of Intel and AMD. Whole packages alone count: their parts (core, dram) are in them, `psys` around them."""

    least_seconds = 0.05
    """Likewise: the counters move on a thousand times a second."""

    def __init__(self, powercap: Path = Path("/sys/class/powercap")) -> None:
        zones = sorted(powercap.glob("intel-rapl:*"))
        self._packages = [zone for zone in zones if _text(zone / "name").startswith("package")]
        if not self._packages:
            raise CounterError(f"{powercap} has no counter of a CPU's energy (RAPL)")
        self._ranges = [int(_text(package / "max_energy_range_uj")) for package in self._packages]
        self._longest_seconds = min(self._ranges) / 1e6 / _MOST_PACKAGE_WATTS
        self._passed = 0
        self._last, self._last_seconds = self._read(), time.monotonic()

    def joules(self) -> float:
        """The joules of all packages. A counter that has reached the end of its range starts again at 0."""
        now, now_seconds = self._read(), time.monotonic()
        if now_seconds - self._last_seconds > self._longest_seconds:
            raise CounterError(
                f"an epoch lasted longer than {self._longest_seconds:.0f} s, in which the CPU's counter may run over"
            )
        differences = zip(now, self._last, self._ranges, strict=True)
        self._passed += sum((new - old) % most for new, old, most in differences)
        self._last, self._last_seconds = now, now_seconds
        return self._passed / 1e6

    def _read(self) -> list[int]:
        return [int(_text(package / "energy_uj")) for package in self._packages]


Counter = NvidiaGpus | CpuPackages


class EnergyMeter:
    """Of one part of the machine. A counter that fails once gives no figure any more."""

    def __init__(self, of: MachinePart, source: EnergySource, open_counter: Callable[[], Counter]) -> None:
        self._of, self._source, self._open_counter = of, source, open_counter
        self._begun_joules = self._begun_seconds = self._last_seconds = 0.0
        self._counter: Counter | None = None
        self._reason = "the training was not watched"

    def begin(self) -> None:
        """Count from here on."""
        try:
            self._counter = self._open_counter()
        except CounterError as error:
            self._reason = str(error)
        self._begun_joules = self._joules()
        self._begun_seconds = time.monotonic()

    def epoch_ended(self) -> None:
        """Read the counter now and then, so that one that runs over is read before it does so twice."""
        if time.monotonic() - self._last_seconds > _EXCEPT_OFTEN_SECONDS:
            self._joules()

    def training_ended(self) -> Energy:
        """What was used since the beginning, or why that isn't known."""
        joules = self._joules() - self._begun_joules
        seconds = time.monotonic() - self._begun_seconds
        if self._counter and (seconds < self._counter.least_seconds or joules <= 0):
            self._give_up(f"a training of {seconds:.2g} s is too short for the counter")
        if self._counter is None:
            return Energy(of=self._of, status="unavailable", reason=self._reason)
        return Energy(of=self._of, status="measured", joules=joules, source=self._source)

    def _joules(self) -> float:
        self._last_seconds = time.monotonic()
        try:
            return self._counter.joules() if self._counter else 0.0
        except CounterError as error:
            self._give_up(str(error))
            return 0.0

    def _give_up(self, reason: str) -> None:
        self._counter, self._reason = None, reason


def energy_meters(device_kind: str, nvidia_uuids: Sequence[str | None], *, first_of_machine: bool) -> list[EnergyMeter]:
    """The meters for one process's devices; of several on one machine, only the first counts the CPU."""

    def gpus() -> Counter:
        if device_kind == "cuda" and all(nvidia_uuids):
            return NvidiaGpus(nvidia_uuids)
        raise CounterError(f"no counter is known for {'AMD GPUs' if device_kind == 'cuda' else device_kind}")

    meters = [] if device_kind == "cpu" else [EnergyMeter("gpu", "nvml", gpus)]
    return [*meters, EnergyMeter("cpu", "rapl", CpuPackages)] if first_of_machine else meters


def added_up(energies: Iterable[Energy]) -> tuple[Energy, ...]:
    """The sum over several processes for each part of the machine, or none where any lacks its share."""
    parts: dict[MachinePart, list[Energy]] = {}
    for energy in energies:
        parts.setdefault(energy.of, []).append(energy)
    return tuple(
        next((share for share in shares if share.joules is None), None)
        or shares[0].model_copy(update={"joules": sum(share.joules or 0.0 for share in shares)})
        for shares in parts.values()
    )


def unavailable(energies: Iterable[Energy], reason: str) -> tuple[Energy, ...]:
    """The same parts of the machine without their figures, and why."""
    return tuple(Energy(of=energy.of, status="unavailable", reason=reason) for energy in energies)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except PermissionError as error:
        raise CounterError(f"only root may read {path}: `sudo chmod a+r {path}` allows it to others") from error
    except OSError as error:
        raise CounterError(f"{path} can't be read ({error.strerror})") from error
