"""Cores that a loader needs to keep a GPU busy, and the GPU's waiting in the cheapest machine."""

from __future__ import annotations

from dataclasses import dataclass

from photofinish.answer.estimated_job import Estimate
from photofinish.answer.prices import cheapest_machine
from photofinish.answer.result import Result


@dataclass(frozen=True)
class LoaderNeed:
    """Loading that keeps a GPU busy, from its estimated steps and the speed of one core here."""

    gpu_samples_a_second: float
    core_samples_a_second: float
    cores: int
    """Cores of the cheapest machine with this GPU."""
    vcpus: int

    @property
    def wanted_cores(self) -> float:
        """Number of cores that load as fast as the GPU trains."""
        return self.gpu_samples_a_second / self.core_samples_a_second

    @property
    def waiting_share(self) -> float:
        """Share of time that the GPU waits, even with a worker for each core."""
        return max(0.0, 1 - self.cores / self.wanted_cores)


def loader_need(run: Result, estimate: Estimate | None, name: str) -> LoaderNeed | None:
    """Return the need of this accelerator, or None if steps, loading or machine are unknown."""
    loader, machine = run.timings.loader, cheapest_machine(name)
    if not loader or not loader.whole_seconds or estimate is None or machine is None:
        return None
    rate = run.timings.training_image_count / estimate.steps_seconds
    core_rate = loader.batch_size / loader.whole_seconds
    return LoaderNeed(rate, core_rate, machine.cores, machine.vcpus)
