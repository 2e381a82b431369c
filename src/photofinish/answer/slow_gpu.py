"""Steps that take much longer on the GPU here than its data sheet lets expect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from photofinish.answer.estimates import NEWEST_LAUNCH_SECONDS, are_captured, estimate_step
from photofinish.answer.step_costs import HIDDEN_SHARE, EpochStep
from photofinish.config.compare import accelerators
from photofinish.machine.load import DOUBTFUL_SHARE
from photofinish.results.job import Job

MOST_OF_IT = 0.5
"""Share from which a GPU mostly waits, or launches: more than all else."""
_SLOWER = 2.0
"""Factor, by hand, above a slow step's estimate. Of 44 steps on GPUs, one took 1.3 times it."""
Cause = Literal["others", "clock", "host", "loading", "not known"]


@dataclass(frozen=True)
class SlowGpu:
    step_seconds: float
    expected_seconds: float
    cause: Cause
    """Likely cause."""


def slow_gpu(cpu: Job, gpu: Job, on_cpu: EpochStep) -> SlowGpu | None:
    """Return how slow a step is on a GPU, or None if the estimate may be off by as much.

    A script's step has its own code, too, which takes as long as on the CPU (`on_cpu`).
    """
    operations = gpu.operations if gpu.script else gpu.operations or cpu.operations
    sheets = {sheet.full_name: sheet for sheet in accelerators().values()}
    sheet = sheets.get(gpu.device_name) if gpu.device_count == 1 else None
    if not (operations and sheet and gpu.has_steps) or gpu.is_bound:
        return None
    precision = cpu.settings.precision if cpu.settings else gpu.precision
    is_captured = are_captured(cpu.settings, operations)
    quickest_seconds = min(cpu.step_seconds)
    step = estimate_step(operations, sheet, precision, quickest_seconds, is_captured=is_captured)
    rest_seconds = 0.0
    if gpu.script:
        rest_seconds = on_cpu.shares.get("the rest", 1.0) * (on_cpu.seconds or 0.0)
    if step is None or rest_seconds > step.seconds:
        return None
    if gpu.median_step_seconds <= _SLOWER * step.spread[2] + rest_seconds:
        return None
    return SlowGpu(gpu.median_step_seconds, step.seconds + rest_seconds, _cause(gpu))


def _cause(gpu: Job) -> Cause:
    windows = gpu.measured_load or gpu.load
    least_seconds = DOUBTFUL_SHARE * sum(window.wall_seconds for window in windows)
    if sum(window.wall_seconds for window in windows if window.gpu_others) > least_seconds:
        return "others"
    if sum(window.wall_seconds for window in windows if window.gpu_slowdowns) > least_seconds:
        return "clock"
    launches = gpu.attribution.launch_seconds if gpu.attribution else ()
    if launches and min(launches) >= HIDDEN_SHARE * min(gpu.step_seconds):
        return "host"
    if launching_share(gpu) > MOST_OF_IT:
        return "host"
    knows_waits = gpu.steady_state or (gpu.by_parts and gpu.by_parts.waiting_seconds)
    return "not known" if knows_waits else "loading"


def launching_share(gpu: Job) -> float:
    """Return the least share of a script's step that launching takes."""
    script, operations = gpu.script, gpu.operations
    if not script or script.idle_share < MOST_OF_IT or not operations:
        return 0.0  # the GPU's work hides it
    return min(1.0, operations.kernels * NEWEST_LAUNCH_SECONDS / gpu.median_step_seconds)
