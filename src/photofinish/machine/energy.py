"""The energy of a training run, from the counters of NVIDIA's GPUs (NVML)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import pynvml

from photofinish.config.base import Record

LEAST_SECONDS = 1.0
"""Shorter training runs get no figure: the counter advances 10 to 50 times a second."""


class Energy(Record):
    """Energy of the GPUs, from the first epoch's start to the last epoch's end."""

    joules: float | None = None
    reason: str | None = None
    """Reason for a missing figure."""


class EnergyMeter:
    """Meter of the GPUs' energy, including energy that other programs use.

    GPUs are given by UUID, which is None for a GPU that NVML does not list.
    """

    def __init__(self, uuids: Sequence[str | None]) -> None:
        self._uuids = uuids
        self._handles: list[Any] = []
        self._begun_joules: float | None = None
        self._begun_seconds = 0.0
        self._reason = "the training was not watched"

    def begin(self) -> None:
        if None in self._uuids:
            self._reason = "only NVIDIA's GPUs have a counter that is read"
            return
        try:
            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{id_}") for id_ in self._uuids]
            self._begun_joules = self._joules()
        except pynvml.NVMLError as error:
            self._reason = f"the NVIDIA driver does not report this GPU's energy ({error})"
        self._begun_seconds = time.monotonic()

    def training_ended(self) -> Energy:
        """Return the energy since `begin`, or why it is unknown."""
        if self._begun_joules is None:
            return Energy(reason=self._reason)
        try:
            joules = self._joules() - self._begun_joules
        except pynvml.NVMLError as error:
            return Energy(reason=f"the NVIDIA driver stopped reporting this GPU's energy ({error})")
        seconds = time.monotonic() - self._begun_seconds
        if seconds < LEAST_SECONDS or joules <= 0:
            return Energy(reason=f"a training of {seconds:.2g} s is too short for the counter")
        return Energy(joules=joules)

    def _joules(self) -> float:
        """Return the sum of the GPUs' counters. They count since the driver was loaded."""
        millijoules = sum(map(pynvml.nvmlDeviceGetTotalEnergyConsumption, self._handles))
        return float(millijoules) / 1e3


def added_up(energies: Iterable[Energy]) -> Energy | None:
    """Return the sum over several processes, or the first share without a figure."""
    shares = list(energies)
    for share in shares:
        if share.joules is None:
            return share
    return Energy(joules=sum(share.joules or 0.0 for share in shares)) if shares else None
