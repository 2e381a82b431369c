"""The energy of a training, from the counters of NVIDIA's GPUs (NVML). They count everything that runs on the GPU."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import pynvml

from photofinish.config.base import Record

LEAST_SECONDS = 1.0
"""A shorter training gives no figure: the counter advances ten to fifty times a second."""


class Energy(Record):
    """Energy of one part of the machine, from the first epoch's start to the last one's end."""

    of: Literal["cpu", "gpu"]
    """`cpu` only in records of earlier versions"""
    status: Literal["measured", "unavailable"]
    joules: float | None = None
    source: Literal["nvml", "rapl"] | None = None
    reason: str | None = None
    """why there is no figure"""


class EnergyMeter:
    """Measures the energy of a process's GPUs, by their UUIDs; None is a GPU that NVML does not have."""

    def __init__(self, uuids: Sequence[str | None]) -> None:
        self._uuids = uuids
        self._handles: list[Any] = []
        self._begun_joules: float | None = None
        self._begun_seconds = 0.0
        self._reason = "the training was not watched"

    def begin(self) -> None:
        """Start to count."""
        if None in self._uuids:
            self._reason = "only NVIDIA's GPUs have a counter that is read"
            return
        try:
            pynvml.nvmlInit()
            self._handles = [
                pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") for uuid in self._uuids
            ]
        except pynvml.NVMLError as error:
            self._reason = f"the NVIDIA driver has no counter of this GPU ({error})"
            return
        self._begun_joules = self._joules()
        self._begun_seconds = time.monotonic()

    def training_ended(self) -> Energy:
        """Return the energy since `begin`, or why it is unknown."""
        now_joules = self._joules() if self._begun_joules is not None else None
        if now_joules is None or self._begun_joules is None:
            return Energy(of="gpu", status="unavailable", reason=self._reason)
        joules, seconds = now_joules - self._begun_joules, time.monotonic() - self._begun_seconds
        if seconds < LEAST_SECONDS or joules <= 0:
            reason = f"a training of {seconds:.2g} s is too short for the counter"
            return Energy(of="gpu", status="unavailable", reason=reason)
        return Energy(of="gpu", status="measured", joules=joules, source="nvml")

    def _joules(self) -> float | None:
        """Read the counters, which start when the driver is loaded."""
        try:
            return (
                sum(
                    int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
                    for handle in self._handles
                )
                / 1e3
            )
        except pynvml.NVMLError as error:
            self._reason = f"the NVIDIA driver does not report the GPU's energy ({error})"
            return None


def added_up(energies: Iterable[Energy]) -> tuple[Energy, ...]:
    """Return the sum over several processes, without a figure if one of them has none."""
    shares = list(energies)
    if not shares:
        return ()
    if missing := next((share for share in shares if share.joules is None), None):
        return (missing,)
    return (shares[0].model_copy(update={"joules": sum(share.joules or 0.0 for share in shares)}),)


def unavailable(energies: Iterable[Energy], reason: str) -> tuple[Energy, ...]:
    """Return the same parts of the machine without their figures, and why."""
    return tuple(Energy(of=energy.of, status="unavailable", reason=reason) for energy in energies)
