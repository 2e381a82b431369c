"""Least times that a run would have taken on a quiet machine, and with fewer threads.

Other programs only make a run longer. On the CPU, the quickest of short steps are those of a quiet
machine. A longer step loses a core to another program before it ends, and OpenMP's threads then
spin for each other. So its work is measured with one thread, by that thread's CPU time. Shared
evenly among all threads, it is the least that a step takes.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from photofinish.machine.fingerprint import CpuTarget
from photofinish.machine.load import load_warnings
from photofinish.results import passed_seconds
from photofinish.results.job_times import JobTimes
from photofinish.results.measurements import SteadyState
from photofinish.results.records import Timings

BUSY = 2.0
"""Least factor by which other programs may have slowed a run on a busy machine."""
SPINNING = 60.0
"""Largest factor that was seen by which OpenMP's threads slow a run down.

It counts only where neither steps nor quiet windows show less."""
SLICE_SECONDS = 0.002
"""Longest step whose quickest tenth is as fast beside other programs as on a quiet machine."""
SHARED_CACHES = 1.2
"""Factor by which CPU time is longer beside other programs, which use the caches, too.

Beside two busy loops, steps' CPU time was 1.09 to 1.2 times that on a quiet machine."""
FASTER = 1.1
"""Least factor by which fewer threads are faster, if they are to count."""
_ENOUGH_STEPS, _ENOUGH_TRIES = 10, 5


def slowdown(run: JobTimes) -> float:
    """Return the factor by which other programs may have slowed a run, 1 on a quiet machine."""
    if not load_warnings(run.load):
        return 1.0
    if not isinstance(run.host, CpuTarget):
        return slowdown_of_a_thread(run)
    if least_seconds := least_epoch_seconds(run):
        return max(1.0, run.median_epoch_seconds / least_seconds)
    if run.host.threads == 1:
        return slowdown_of_a_thread(run)
    # The last window has the measurements after the training.
    windows = run.load[:-1]
    passed = sum(window.wall_seconds for window in windows)
    quiet = sum(window.wall_seconds for window in windows if not load_warnings([window]))
    spinning = min(SPINNING, passed / quiet) if quiet else SPINNING
    return max(spinning, slowdown_of_a_thread(run))


def slowdown_of_a_thread(run: JobTimes) -> float:
    """Return the factor by which other programs may have slowed work of a single thread.

    Threads that were ready to run but had no core show how much it was at least.
    """
    if not load_warnings(run.load):
        return 1.0
    running_seconds = sum(window.own_cpu_seconds for window in run.load)
    waited_seconds = sum(window.waited_for_core_seconds or 0.0 for window in run.load)
    return max(BUSY, 1 + waited_seconds / running_seconds if running_seconds else BUSY)


def least_epoch_seconds(run: JobTimes) -> float | None:
    """Return the least time of a training pass on a quiet machine, or None if nothing shows it."""
    step_seconds = least_step_seconds(run)
    if step_seconds is None or run.steps_per_epoch is None:
        return None
    batch_seconds = least_batch_seconds(run)
    loads_ahead = run.attribution and run.attribution.batch_alone_cpu_seconds is None
    if loads_ahead:
        return run.steps_per_epoch * max(step_seconds, batch_seconds)
    return run.steps_per_epoch * (step_seconds + batch_seconds)


def least_step_seconds(run: JobTimes) -> float | None:
    """Return the least time of a step on a quiet machine, or None if nothing shows it.

    A script's step has the wait for its batch. With several threads, only short ones are known, as
    other threads can't be tried.
    """
    host = run.host
    if not isinstance(host, CpuTarget):
        return None
    if run.loop_steps:
        if run.loop_steps.quickest_seconds <= SLICE_SECONDS:
            return run.loop_steps.quickest_seconds
        if host.threads == 1 and run.loop_steps.cpu_seconds:
            return run.loop_steps.cpu_seconds / SHARED_CACHES
        return None
    # Without parts, the samples of a script are the means of whole epochs.
    steps = run.attribution.same_batch if run.attribution else run.steady_state
    if (
        isinstance(run, Timings)
        and steps.steps_per_sample == 1
        and len(steps.sample_seconds) >= _ENOUGH_STEPS
    ):
        quickest_seconds = _quickest(steps.sample_seconds)
        if quickest_seconds <= SLICE_SECONDS:
            return quickest_seconds
    for tried in run.tried_threads:
        if tried.threads == 1:
            return _quickest(tried.cpu_seconds) / host.threads / SHARED_CACHES
    return None


def least_batch_seconds(run: JobTimes) -> float:
    """Return the least time to load a batch on a quiet machine; 0 if nothing shows it."""
    if run.attribution is None:
        return 0.0
    alone_seconds = run.attribution.batch_alone_seconds
    quickest_seconds = _quickest(alone_seconds)
    if quickest_seconds <= SLICE_SECONDS:
        return quickest_seconds
    cpu_seconds = run.attribution.batch_alone_cpu_seconds
    if cpu_seconds is not None:
        return cpu_seconds / SHARED_CACHES
    return statistics.fmean(alone_seconds) / slowdown_of_a_thread(run)


def least_startup_seconds(run: JobTimes) -> float:
    """Return the least time of the start-up on a quiet machine."""
    if run.startup_cpu_seconds is not None:
        return min(run.startup_seconds, run.startup_cpu_seconds)
    return run.startup_seconds / BUSY


@dataclass(frozen=True)
class FewerThreads:
    """A smaller number of threads that is faster."""

    threads: int
    steps: SteadyState
    job_seconds: float
    """Time of the job with so many threads."""


def fewer_threads(run: JobTimes) -> FewerThreads | None:
    """Return the number of threads with which steps were faster by more than a tenth, or None.

    On a busy machine threads wait for each other, so nothing is concluded.
    """
    if load_warnings(run.load) or load_warnings(run.load[-1:]) or run.steps_per_epoch is None:
        return None
    tried = {each.threads: each.steps for each in run.tried_threads}
    own = tried.pop(run.host.threads or 1, None)
    if own is None or not tried or len(own.sample_seconds) < _ENOUGH_TRIES:
        return None
    threads, best = min(tried.items(), key=lambda each: each[1].median_seconds)
    if own.median_seconds <= FASTER * best.median_seconds:
        return None
    share = min(1.0, run.steps_per_epoch * own.median_seconds / run.median_epoch_seconds)
    saved_share = share * (1 - best.median_seconds / own.median_seconds)
    passes_seconds = passed_seconds(run.epochs) + run.left_seconds(run.epochs)
    job_seconds = run.whole_seconds - saved_share * passes_seconds
    return FewerThreads(threads, best, job_seconds)


def _quickest(seconds: Sequence[float]) -> float:
    """Return the quickest tenth."""
    return float(np.quantile(seconds, 0.1))
