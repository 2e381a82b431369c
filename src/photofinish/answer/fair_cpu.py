"""Times of a busy run on an idle machine, and times with fewer threads.

Other programs can only make a run longer. The quickest of many short steps on the CPU are as fast
as on an idle machine. A longer step loses a core to another program before it ends, so it is known
by its CPU time, and only with a single thread: OpenMP's threads spin for each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from photofinish.answer.estimates import LAUNCH_SECONDS
from photofinish.answer.step_costs import fixed_share
from photofinish.machine.fingerprint import CpuTarget
from photofinish.machine.load import LoadWindow, load_warnings
from photofinish.results.job import Job
from photofinish.results.measurements import InTurns

BUSY = 2.0
"""Smallest assumed factor by which other programs slowed a run on a busy machine, by hand.

It is that of a core shared by two. If it were less, noise would make a GPU look worth it.
"""
SLICE_SECONDS = 0.002
"""Longest step, by hand, whose quickest tenth is as fast with other programs running."""
SHARED_CACHES = 1.2
"""Factor by which CPU time grows if other programs use the caches.

With two busy loops running, steps took 1.09 to 1.2 times the CPU time of a quiet machine.
"""
FASTER = 1.1
"""Smallest speed-up, by hand, by which fewer threads count. Less may be chance."""
SLOW_KERNELS = 0.1
"""Share of an fp32 product's rate, by hand, below which half-precision kernels count as slow.

PyTorch 2.14 computes fp16 at 1/23 of it on a CPU without fp16 instructions.
"""
_ENOUGH_STEPS, _ENOUGH_TRIES = 10, 5
"""Fewest steps that have a quickest tenth, and fewest samples that compare threads, by hand."""


def fair_seconds(run: Job) -> float:
    """Return the least time of the job as it ran: without interruptions, on fair settings.

    If fewer threads were faster, it uses them. With slow kernels, it computes in fp32.
    """
    # Without the interruptions, a resumed training would have started only once.
    once_seconds = run.once_seconds - run.interruptions * run.startup_seconds
    fair = [change.job_seconds for change in (fewer_threads(run), slow_kernels(run)) if change]
    saved_seconds = run.whole_seconds - min(fair, default=run.whole_seconds)
    return max(0.0, once_seconds) + max(0.0, run.passes_seconds - saved_seconds)


def idle_seconds(run: Job) -> float | None:
    """Return the job's time with an idle machine's epochs, or None if these are not known.

    A start-up that computes most of its time takes its CPU time.
    """
    least_seconds = least_epoch_seconds(run)
    if least_seconds is None:
        return None
    faster = min(1.0, least_seconds / run.mean_epoch_seconds)
    waited_seconds, cpu_seconds = 0.0, run.startup_cpu_seconds or 0.0
    if BUSY * cpu_seconds >= run.startup_seconds:  # else it may wait for a download
        waited_seconds = max(0.0, run.startup_seconds - cpu_seconds / SHARED_CACHES)
    return run.once_seconds - waited_seconds + faster * run.passes_seconds


def slowdown_of_a_thread(load: Sequence[LoadWindow]) -> float:
    """Return the factor by which other programs may have slowed work of a single thread.

    The time of threads that were ready to run without a core is a lower bound.
    """
    if not load_warnings(load):
        return 1.0
    running_seconds = sum(window.own_cpu_seconds for window in load)
    waited_seconds = sum(window.waited_for_core_seconds or 0.0 for window in load)
    return max(BUSY, 1 + waited_seconds / running_seconds if running_seconds else BUSY)


def least_epoch_seconds(run: Job) -> float | None:
    """Return the least time of a training pass on an idle machine, or None if unknown."""
    step_seconds = least_step_seconds(run)
    if step_seconds is None or run.steps_per_epoch is None:
        return None
    return run.steps_per_epoch * (step_seconds + least_batch_seconds(run))


def least_step_seconds(run: Job) -> float | None:
    """Return the least time of a step on an idle machine, or None if unknown.

    A script's step includes the wait for its batch. With several threads, only short steps are
    known: other programs make the threads of a longer one wait for each other.
    """
    if not isinstance(run.host, CpuTarget):
        return None
    quickest_seconds, cpu_seconds, steps = math.inf, None, run.steady_state
    if run.loop_steps:
        quickest_seconds = run.loop_steps.quickest_seconds
        cpu_seconds = run.loop_steps.cpu_seconds
    elif steps and steps.cpu_seconds:
        cpu_seconds = _quickest(steps.cpu_seconds) / steps.steps_per_sample
    if steps and steps.steps_per_sample == 1 and len(steps.sample_seconds) >= _ENOUGH_STEPS:
        quickest_seconds = min(quickest_seconds, _quickest(steps.sample_seconds))
    if quickest_seconds <= SLICE_SECONDS:
        return quickest_seconds
    return cpu_seconds / SHARED_CACHES if run.host.threads == 1 and cpu_seconds else None


def least_batch_seconds(run: Job) -> float:
    """Return the least wait for a batch on a quiet machine, or 0 if unknown.

    A script's steps include it.
    """
    waits = [(part.waiting_seconds or 0.0, part) for part in run.parts if part.holds != "start"]
    if run.loop_steps or not waits:
        return 0.0
    quickest_seconds = _quickest([seconds / part.steps for seconds, part in waits])
    # Workers use no CPU time of the thread that waits.
    cpu_seconds = sum(part.waiting_cpu_seconds for _, part in waits) / SHARED_CACHES
    waited_seconds = sum(seconds for seconds, _ in waits) / slowdown_of_a_thread(run.measured_load)
    least_seconds = max(cpu_seconds, waited_seconds) / sum(part.steps for _, part in waits)
    # An epoch may be smaller than a batch.
    return min(1.0, run.epoch_steps or 1.0) * min(quickest_seconds, least_seconds)


def least_startup_seconds(run: Job) -> float:
    if run.startup_cpu_seconds is not None:
        return min(run.startup_seconds, run.startup_cpu_seconds)
    return run.startup_seconds / BUSY


@dataclass(frozen=True)
class FewerThreads:
    threads: int
    turns: InTurns
    job_seconds: float
    """Time of the job with this number of threads."""


def fewer_threads(run: Job) -> FewerThreads | None:
    """Return the number of threads with which steps were more than a tenth faster, or None.

    Returns None on a busy machine, where threads wait for each other.
    """
    if run.busy or run.step_warnings or run.steps_per_epoch is None:
        return None
    tried, own = run.tried_threads, run.steady_state
    if own is None or not tried or len(own.sample_seconds) < _ENOUGH_TRIES:
        return None
    threads, best = min(tried.items(), key=lambda steps: steps[1].median_seconds)
    if own.median_seconds <= FASTER * best.median_seconds:
        return None
    share = min(1.0, run.steps_per_epoch * own.median_seconds / run.measured_epoch_seconds)
    saved_share = share * (1 - best.median_seconds / own.median_seconds)
    job_seconds = run.whole_seconds - saved_share * run.passes_seconds
    return FewerThreads(threads, InTurns(base=own, changed=best), job_seconds)


@dataclass(frozen=True)
class SlowKernels:
    """Half-precision steps that the CPU computes far below its fp32 rate."""

    share: float
    """Share of an fp32 product's rate."""
    job_seconds: float
    """Time of the job with steps at an fp32 product's rate."""


def slow_kernels(run: Job) -> SlowKernels | None:
    """Return how slow half-precision steps are if most of an epoch is their arithmetic, or None."""
    operations, rate = run.operations, run.fp32_flops_a_second
    if not (operations and rate and run.steps_per_epoch):
        return None
    quickest_seconds = min(run.step_seconds)
    fixed = operations.kernels * LAUNCH_SECONDS[1] / quickest_seconds
    if steps := run.attribution:
        other_seconds = min(steps.other_batch.step_seconds)
        fixed = fixed_share(
            operations.images, quickest_seconds, steps.other_batch_images, other_seconds
        )
    computing = run.steps_per_epoch * run.median_step_seconds / run.measured_epoch_seconds
    share = operations.flops / quickest_seconds / rate
    if share >= SLOW_KERNELS or max(fixed, 1 - computing) > 0.5:
        return None
    saved_seconds = min(1.0, computing) * (1 - share) * run.passes_seconds
    return SlowKernels(share, run.whole_seconds - saved_seconds)


def _quickest(seconds: Sequence[float]) -> float:
    """Return the 10 % quantile."""
    return float(np.quantile(seconds, 0.1))
