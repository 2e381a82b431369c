"""Connection of a stage to MLflow: calls to one worker process, with a time limit.

Results on disk are complete without MLflow, and the next sync sends what is missing.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from photofinish.errors import TerminatedError
from photofinish.results import EpochMetrics, EpochTiming
from photofinish.stage.process import seconds_since_stage_start
from photofinish.tracking import first_line

if TYPE_CHECKING:
    from photofinish.config.experiment import Experiment
    from photofinish.data import PartName

REMOTE_SECONDS = 8.0
"""Longest time that a stage waits for a server, over all calls."""
FLUSH_SECONDS = 1.0
WORKER = "photofinish.tracking.mlflow_worker"
_LOCAL_SECONDS = 120.0
"""Longest time that a call waits for a database on disk, which may be slow but does not hang."""
_INTERRUPTED_SECONDS = 5.0
"""Longest time that an interrupted stage waits for its run to be closed."""
_SERVERS = ("http", "databricks", "postgresql", "mysql", "mssql")


class NoTracker:
    """Tracker that does nothing, for all ranks but 0."""

    waited_seconds = 0.0

    def wait_until_ready(self) -> None:
        """Return at once."""

    def epoch_ended(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        """Ignore the epoch."""

    def training_ended(
        self, name: str, device: str, results: Path, checkpoints: list[Path]
    ) -> None:
        """Ignore the result."""


class Tracker:
    """Connection of a stage to MLflow. Closes with a printed line after an error or time-out."""

    def __init__(self) -> None:
        self.waited_seconds = 0.0
        self._is_remote = os.environ.get("MLFLOW_TRACKING_URI", "").startswith(_SERVERS)
        self._calls: list[futures.Future[None]] = []
        self._epochs: list[tuple[EpochMetrics, EpochTiming]] = []
        self._flushed_at_seconds = time.monotonic()
        self._training_images = 0
        self._pool: futures.ProcessPoolExecutor | None = futures.ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), _end_with_stage
        )
        others = multiprocessing.active_children()
        # The worker inherits this: the terminal sends it Ctrl-C too, but only the stage should act.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._call("open_project")
        signal.signal(signal.SIGINT, before)
        self._workers = [one for one in multiprocessing.active_children() if one not in others]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        is_interrupted = isinstance(error, KeyboardInterrupt | TerminatedError)
        try:
            if error is not None:
                status = "KILLED" if is_interrupted else "FAILED"
                self.stop(status, str(error) or type(error).__name__)
            if is_interrupted:
                futures.wait(self._calls, _INTERRUPTED_SECONDS)
            else:
                self._wait()
        finally:
            self._close()

    def start(
        self,
        name: str,
        device: str,
        experiment: Experiment,
        training_key: str,
        data_sha256: str,
        samples: dict[PartName, int],
    ) -> None:
        """Open a run, or resume the run of the same training if that was killed."""
        self._training_images = samples["train"]
        started_ms = round((time.time() - seconds_since_stage_start()) * 1000)
        data = data_sha256, samples
        self._call("start", name, device, experiment, training_key, *data, started_ms)

    def wait_until_ready(self) -> None:
        """Wait for the worker, so that its start does not slow down the timed pass."""
        self._wait()

    def epoch_ended(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        """Log an epoch, together with epochs that follow within a second."""
        self._epochs.append((metrics, timing))
        is_busy = not all(call.done() for call in self._calls)
        if is_busy or time.monotonic() - self._flushed_at_seconds < FLUSH_SECONDS:
            return
        self._flush()
        if not self._is_remote:
            self._wait()  # a database on disk uses this machine's cores: not in the timed pass

    def training_ended(
        self, name: str, device: str, results: Path, checkpoints: list[Path]
    ) -> None:
        """Complete the run with the files of the training."""
        self._flush()
        self._call("training_ended", name, device, results, checkpoints)
        self._wait()

    def stop(self, status: str, reason: str) -> None:
        """Close the run of a training that failed or was stopped, if there is a run."""
        self._call("stopped", status, reason)

    def sync(self, names: list[str], results: Path, report: Path) -> None:
        self._call("sync", names, results, report)
        self._wait()

    def _flush(self) -> None:
        if self._epochs:
            self._call("epochs", self._epochs, self._training_images)
            self._epochs = []
            self._flushed_at_seconds = time.monotonic()

    def _call(self, function: str, *arguments: Any) -> None:
        if self._pool is None:
            return
        try:
            self._calls.append(self._pool.submit(_run, WORKER, function, arguments))
        except futures.BrokenExecutor:
            self._give_up("its process ended")

    def _wait(self) -> None:
        """Wait for all calls. For a server, the time limit applies to the whole stage."""
        began_seconds = time.monotonic()
        limit = REMOTE_SECONDS - self.waited_seconds if self._is_remote else _LOCAL_SECONDS
        done, late = futures.wait(self._calls, max(0.0, limit), futures.FIRST_EXCEPTION)
        self.waited_seconds += time.monotonic() - began_seconds
        errors = [call.exception() for call in self._calls if call in done]
        self._calls = list(late)
        if error := next(filter(None, errors), None):
            is_dead = isinstance(error, futures.BrokenExecutor)
            self._give_up("its process ended" if is_dead else str(error))
        elif late:
            self._give_up("it does not answer in time")

    def _give_up(self, why: str) -> None:
        text = f"MLflow: {why}. The run goes on; `photofinish ui` sends what was missed."
        print(text, file=sys.stderr, flush=True)
        self._close()

    def _close(self) -> None:
        """Kill the worker. Either everything is written, or the stage gave up waiting."""
        if self._pool:
            for process in self._workers:
                process.kill()
            # Wait for the pool's thread: it closes pipes that Python's exit writes to.
            self._pool.shutdown(cancel_futures=True)
            self._pool, self._calls = None, []


def _end_with_stage() -> None:
    """End the worker if its stage is killed. The next worker closes the run."""
    if hasattr(os, "setsid"):
        os.setsid()  # torchrun kills the whole process group of a rank

    def watch() -> None:
        stage = multiprocessing.parent_process()
        assert stage
        stage.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run(module: str, function: str, arguments: tuple[Any, ...]) -> None:
    """Call a function of the worker's module. Raise only errors that unpickle without MLflow."""
    try:
        getattr(importlib.import_module(module), function)(*arguments)
    except Exception as error:  # noqa: BLE001  # training must not depend on MLflow
        raise RuntimeError(first_line(error)) from None
