"""Cores that a GPU wants from a loader, and how long it would wait in the machine with the lowest
price."""

from __future__ import annotations

from dataclasses import dataclass

from photofinish.comparing.device_results import ScriptResult, TrainingResult
from photofinish.comparing.estimated_job import Estimate
from photofinish.comparing.prices import cheapest_machine


@dataclass(frozen=True)
class LoaderNeed:
    """Loading that keeps a GPU busy, by its estimated steps and by one core of this machine."""

    gpu_samples_a_second: float
    core_samples_a_second: float
    cores: int
    """Cores of the machine with the lowest price."""
    vcpus: int

    @property
    def wanted_cores(self) -> float:
        """Cores that load as fast as the GPU trains."""
        return self.gpu_samples_a_second / self.core_samples_a_second

    @property
    def waiting_share(self) -> float:
        """Share of its time that the GPU waits, even with a worker for each core."""
        return max(0.0, 1 - self.cores / self.wanted_cores)


def loader_need(
    run: TrainingResult | ScriptResult, estimate: Estimate | None, name: str
) -> LoaderNeed | None:
    """Return what this accelerator wants, or None if steps, loading or the machine aren't known."""
    loader, machine = run.timings.loader, cheapest_machine(name)
    if not loader or not loader.whole_seconds or estimate is None or machine is None:
        return None
    rate = run.timings.training_image_count / estimate.steps_seconds
    core_rate = loader.batch_size / loader.whole_seconds
    return LoaderNeed(rate, core_rate, machine.cores, machine.vcpus)
