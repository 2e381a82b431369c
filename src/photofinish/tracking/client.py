"""A stage's side of MLflow: calls to one worker process, each with a time limit.

The worker's start and its imports overlap with the stage's own. A server that hangs cannot hang a training. The results
on disk are complete without MLflow, and the next sync sends what it missed.
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
from importlib.util import find_spec
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from photofinish.errors import TerminatedError
from photofinish.processes import seconds_since_stage_start
from photofinish.tracking.documents import RunFacts

REMOTE_SECONDS = 8.0
"""longest wait of a stage for a server, all calls together"""
_LOCAL_SECONDS = 120.0
"""longest wait for a database on disk, at each call: it may be slow, but does not hang"""
_INTERRUPTED_SECONDS = 5.0
"""longest wait of a stage that Ctrl-C or SIGTERM ends, for its run to be closed"""
_KILLED_SECONDS = 1.0
FLUSH_SECONDS = 1.0
WORKER = "photofinish.tracking.mlflow_worker"


class TrackingError(Exception):
    """An error of MLflow's as one line, which a process without MLflow can unpickle."""


class Tracker:
    """One stage's connection to MLflow; after the first error or time-out it prints one line and does nothing more."""

    def __init__(self) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:"
        self._is_remote = uri.startswith("databricks") or (":" in uri and not uri.startswith(("sqlite:", "file:")))
        self.waited_seconds = 0.0
        self._calls: list[futures.Future[None]] = []
        self._opened: futures.Future[None] | None = None
        self._epochs: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._flushed_at_seconds = time.monotonic()
        self._training_images = 0
        self._pool: futures.ProcessPoolExecutor | None = None
        self._worker: set[BaseProcess] = set()
        if find_spec("mlflow") is None:  # training does not need it
            print("MLflow is not installed here: this run is not tracked", file=sys.stderr, flush=True)
            return
        # If this process is killed, Python cleans up the pool's semaphores, with a warning that says nothing to a user.
        os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
        self._pool = futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (WORKER,))
        others = set(multiprocessing.active_children())
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: the terminal's Ctrl-C is for the stage
        try:
            self._call("open_project")
            self._opened = next(iter(self._calls), None)
        finally:
            signal.signal(signal.SIGINT, before)
        self._worker = set(multiprocessing.active_children()) - others

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_interrupted = isinstance(error, KeyboardInterrupt | TerminatedError)
        try:
            if error is not None:
                self.stop("KILLED" if is_interrupted else "FAILED", str(error) or type(error).__name__)
            if not is_interrupted:
                self._wait()
            elif self._opened and self._opened.done():  # else there is no run to close
                futures.wait(self._calls, _INTERRUPTED_SECONDS)
        finally:
            self._close()

    def start(self, facts: RunFacts, training_key: str, training_images: int) -> None:
        """Open a run, or resume the run of the same training if that was killed."""
        self._training_images = training_images
        started_ms = round((time.time() - seconds_since_stage_start()) * 1000)
        self._call("start", facts, training_key, started_ms)

    def wait_until_ready(self) -> None:
        """Wait until the worker has started, so that its start does not slow down the timed pass."""
        self._wait()

    def epoch_ended(self, metrics: dict[str, Any], timing: dict[str, Any]) -> None:
        """Log an epoch, together with those that follow within a second."""
        self._epochs.append((metrics, timing))
        is_busy = not all(call.done() for call in self._calls)
        if is_busy or time.monotonic() - self._flushed_at_seconds < FLUSH_SECONDS:
            return
        self._flush()
        if not self._is_remote:
            self._wait()  # a database on disk uses this machine's cores, so not during the timed pass

    def training_ended(self, name: str, device: str, results: Path, checkpoints: list[Path]) -> None:
        """Complete the run from the files of the training."""
        self._flush()
        self._call("training_ended", name, device, results, checkpoints)
        self._wait()

    def stop(self, status: str, reason: str) -> None:
        """Close the run, if there is one, of a training that failed or was stopped."""
        self._call("stopped", status, reason)

    def sync(self, names: list[str], results: Path, report: Path | None = None) -> None:
        """Mirror the results of these experiments, and their comparison."""
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
        """Wait for all calls; a server has its limit once for a stage, a database on disk at each wait."""
        began_seconds = time.monotonic()
        limit_seconds = REMOTE_SECONDS - self.waited_seconds if self._is_remote else _LOCAL_SECONDS
        done, late = futures.wait(self._calls, max(0.0, limit_seconds), futures.FIRST_EXCEPTION)
        self.waited_seconds += time.monotonic() - began_seconds
        errors = [call.exception() for call in self._calls if call in done]
        error = next(filter(None, errors), None)
        self._calls = list(late)
        if error:
            self._give_up(str(error) if isinstance(error, TrackingError) else "its process ended")
        elif late:
            self._give_up("it does not answer in time")

    def _give_up(self, why: str) -> None:
        print(f"MLflow: {why}. The run goes on; `make ui` sends what was missed.", file=sys.stderr, flush=True)
        self._close()

    def _close(self) -> None:
        """End the worker at once: either all is written, or no more is waited for."""
        if self._pool:
            for process in self._worker:
                process.kill()
            connection.wait([process.sentinel for process in self._worker], _KILLED_SECONDS)
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool, self._calls = None, []


def _begin(worker: str) -> None:
    """Let the worker end when its stage was killed, which the pool does not see to."""
    threading.Thread(target=_end_with_stage, args=(worker,), daemon=True).start()


def _end_with_stage(worker: str) -> None:
    stage = multiprocessing.parent_process()
    assert stage
    stage.join()
    try:
        if worker in sys.modules:
            sys.modules[worker].stopped("KILLED", "its process was killed")
    finally:
        os._exit(1)


def _run(module: str, function: str, arguments: tuple[Any, ...]) -> None:
    """Call a function of the worker's module, which imports MLflow: a stage does not need it."""
    try:
        getattr(importlib.import_module(module), function)(*arguments)
    except Exception as error:  # noqa: BLE001  # whatever happens to MLflow, the training goes on
        line = next(iter(str(error).strip().splitlines()), "")
        raise TrackingError(line or type(error).__name__) from None
