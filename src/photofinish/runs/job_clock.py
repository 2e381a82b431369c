"""Time of a job and of its start-up, without what only photofinish does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from photofinish.stage.rank import seconds_since_stage_start
from photofinish.tracking.client import NoTracker, Tracker


class JobClock:
    """Time of the job, summed over its processes if it was resumed, and of its start-up."""

    startup_seconds: float
    startup_cpu_seconds: float

    def __init__(self, tracker: Tracker | NoTracker, excluded_seconds: float) -> None:
        self._tracker = tracker
        self.started_at_unix_seconds = time.time() - seconds_since_stage_start()
        self.excluded_seconds = excluded_seconds
        """Wall time of this process that does not count, such as waits for locks and profiling."""
        self.excluded_cpu_seconds = 0.0
        """CPU time of the main thread that does not count."""
        self.earlier_seconds = 0.0
        """Job time of earlier processes, before the run was resumed."""

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Leave the block's time out of the job."""
        started_seconds, started_cpu_seconds = time.monotonic(), time.thread_time()
        yield
        self.excluded_seconds += time.monotonic() - started_seconds
        self.excluded_cpu_seconds += time.thread_time() - started_cpu_seconds

    def include(self, seconds: float) -> None:
        """Count a part of an excluded block."""
        self.excluded_seconds -= seconds

    def startup_ended(self) -> None:
        """Note how long the start-up took."""
        self.startup_seconds = seconds_since_stage_start() - self.excluded_seconds
        self.startup_cpu_seconds = time.thread_time() - self.excluded_cpu_seconds

    @property
    def tracking_seconds(self) -> float:
        """Time in which this process waited for MLflow."""
        return self._tracker.waited_seconds

    def elapsed_seconds(self) -> float:
        """Return how long the job has taken so far."""
        excluded_seconds = self.excluded_seconds + self.tracking_seconds
        return self.earlier_seconds + seconds_since_stage_start() - excluded_seconds
