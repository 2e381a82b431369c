"""A stage's end of the pipe to the tracking worker. It never waits for MLflow longer than it was allowed to.

Training goes on whatever becomes of MLflow: the results on disk are complete without it, and what it missed is
sent at the next sync.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from photofinish.errors import TerminatedError
from photofinish.tracking.documents import RunFacts

_REMOTE_PATIENCE_SECONDS = 9.0
_LOCAL_PATIENCE_SECONDS = 120.0
"""A local database is slow at worst; it doesn't hang."""
_FLUSH_SECONDS = 1.0
_CLOSED = None


class Tracker:
    """Starts the worker at once; all the waiting for it, over a whole stage, stays within its patience."""

    def __init__(self) -> None:
        remote = not os.environ.get("MLFLOW_TRACKING_URI", "sqlite:").startswith(("sqlite:", "file:", "/", "."))
        self._patience_seconds = _REMOTE_PATIENCE_SECONDS if remote else _LOCAL_PATIENCE_SECONDS
        self.waited_seconds = 0.0
        self._unanswered = 1  # the worker's first word is that it is ready
        self._epochs: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._flushed_at_seconds = time.monotonic()
        self._training_images = 0
        self._process: subprocess.Popen[str] | None = subprocess.Popen(
            [sys.executable, "-m", "photofinish.tracking.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # out of reach of the terminal's Ctrl-C
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, name="tracker", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            killed = isinstance(error, (KeyboardInterrupt, TerminatedError))
            self._ask(
                "stopped", status="KILLED" if killed else "FAILED", reason=str(error) or kind.__name__ if kind else ""
            )
        self._wait()
        self._close()

    def start(self, facts: RunFacts, training_key: str, training_images: int) -> None:
        self._training_images = training_images
        self._ask("start", facts=asdict(facts), training_key=training_key)

    def wait_until_ready(self) -> None:
        """Before the timed pass, so that the worker's start doesn't compete with it for the cores."""
        self._wait()

    def epoch_ended(self, metrics: dict[str, Any], timing: dict[str, Any]) -> None:
        self._epochs.append((metrics, timing))
        if time.monotonic() - self._flushed_at_seconds >= _FLUSH_SECONDS:
            self._flush()
            self._wait()

    def training_ended(
        self, name: str, device: str, results: Path, checkpoints: list[Path], pickled: Path | None
    ) -> None:
        self._flush()
        self._ask(
            "training_ended",
            name=name,
            device=device,
            results=str(results),
            checkpoints=[str(path) for path in checkpoints],
            pickled=str(pickled) if pickled else None,
        )
        self._wait()

    def sync(self, names: list[str], results: Path, report: Path | None = None) -> None:
        self._ask("sync", names=names, results=str(results), report=str(report) if report else None)
        self._wait()

    def _flush(self) -> None:
        if self._epochs:
            self._ask("epochs", epochs=self._epochs, training_images=self._training_images)
            self._epochs = []
            self._flushed_at_seconds = time.monotonic()

    def _ask(self, do: str, **arguments: Any) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            self._unanswered += 1
        except OSError:  # the worker is gone; its last answer, if any, says why
            self._wait()

    def _wait(self) -> None:
        """For every answer that is due, as long as patience lasts."""
        started_seconds = time.monotonic()
        while self._process is not None and self._unanswered:
            left_seconds = self._patience_seconds - self.waited_seconds - (time.monotonic() - started_seconds)
            try:
                answer = self._answers.get(timeout=max(0.0, left_seconds))
            except queue.Empty:
                self._give_up("it does not answer")
                break
            if answer not in ("ready", "done"):
                self._give_up(answer or "its process ended")
                break
            self._unanswered -= 1
        self.waited_seconds += time.monotonic() - started_seconds

    def _give_up(self, why: str) -> None:
        print(f"MLflow: {why}. The run goes on; `make ui` sends what was missed.", file=sys.stderr, flush=True)
        self._close(kill=True)

    def _close(self, *, kill: bool = False) -> None:
        if self._process is None:
            return
        if kill:
            self._process.kill()
        if self._process.stdin:
            try:
                self._process.stdin.close()
            except OSError:
                kill = True  # what was still in the pipe is lost with the worker
        self._process.wait()
        self._process = None

    def _listen(self) -> None:
        process = self._process
        if process is None or process.stdout is None:
            return
        for line in process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(_CLOSED)
