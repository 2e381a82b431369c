"""A stage's end of the pipe to the tracking worker. It never waits for MLflow longer than it was allowed to.

Training goes on whatever becomes of MLflow: the results on disk are complete without it, and what it missed is
sent at the next sync.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from photofinish.errors import TerminatedError
from photofinish.files import state_folder, write_text_atomically
from photofinish.processes import dvc_began_at_unix_seconds, seconds_since_stage_start
from photofinish.tracking.documents import RunFacts

_REMOTE_PATIENCE_SECONDS = 7.5
_LAST_TRY_SECONDS = 2.0
"""With the patience above, less than the 10 seconds that are promised for a whole `dvc repro`."""
_LOCAL_PATIENCE_SECONDS = 120.0
"""A local database is slow at worst; it doesn't hang."""
_SHORT_OF_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "4",
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "4",
}
"""so that the worker itself can tell what is wrong with a server"""
READY_BUT_SLOW = "ready, but slow"
"""what the worker says of a server whose shortest answer takes long"""
_WAITED = "mlflow-waited.json"
"""In the state folder: when the last `dvc repro` that waited for a server began, and how long it did."""
_FLUSH_SECONDS = 1.0
_END_SECONDS = 1.0


class Tracker:
    """Starts the worker at once; all the waiting for a server, over a whole stage, stays within its patience.

    A server that hangs, fails or is slow has that once for all stages of a `dvc repro`. Where it has used that up,
    they do without MLflow, and one that is to `try_again` looks for a moment whether the server is back.
    """

    def __init__(self, *, try_again: bool = False) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:"
        self._remote = uri.startswith("databricks") or (":" in uri and not uri.startswith(("sqlite:", "file:")))
        self._waited_before_seconds = _waited_in_this_repro_seconds() if self._remote else 0.0
        left_seconds = _REMOTE_PATIENCE_SECONDS - self._waited_before_seconds
        far_seconds = max(left_seconds, _LAST_TRY_SECONDS) if try_again else left_seconds
        self._patience_seconds = far_seconds if self._remote else _LOCAL_PATIENCE_SECONDS
        self._is_slow = False
        self.waited_seconds = 0.0
        self._unanswered = 1  # the worker's first word is that it is ready
        self._epochs: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._flushed_at_seconds = time.monotonic()
        self._training_images = 0
        self._process: subprocess.Popen[str] | None = None
        if find_spec("mlflow") is None:  # which training itself doesn't need
            print("MLflow is not installed here: this run is not tracked", file=sys.stderr, flush=True)
        elif self._patience_seconds > 0:
            self._process = self._start_worker()

    def _start_worker(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "photofinish.tracking.mlflow_worker"],
            env=_SHORT_OF_PATIENCE | os.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # out of reach of the terminal's Ctrl-C
        )
        self._messages: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._ready = threading.Event()
        for end in (self._tell, self._listen):
            threading.Thread(target=end, args=(process,), name="tracker", daemon=True).start()
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted = isinstance(error, KeyboardInterrupt | TerminatedError)
        if error is not None:
            self.stop("KILLED" if interrupted else "FAILED", str(error) or type(error).__name__)
        if interrupted:
            self._leave()
        else:
            self._wait()
            if self._remote and self._is_slow and self._process:
                _note_waited_in_this_repro(self._waited_before_seconds + self.waited_seconds)
            self._close()

    def start(self, facts: RunFacts, training_key: str, training_images: int) -> None:
        """Open a run, or that of the same training again if it was killed."""
        self._training_images = training_images
        started_ms = round((time.time() - seconds_since_stage_start()) * 1000)
        self._ask("start", facts=asdict(facts), training_key=training_key, started_ms=started_ms)

    def wait_until_ready(self) -> None:
        """Before the timed pass, so that the worker's start doesn't compete with it for the cores."""
        self._wait()

    def epoch_ended(self, metrics: dict[str, Any], timing: dict[str, Any]) -> None:
        """Tell of it, with those that follow soon after."""
        self._epochs.append((metrics, timing))
        if time.monotonic() - self._flushed_at_seconds < _FLUSH_SECONDS or not self._collect(time.monotonic()):
            return  # too soon, or still busy with the epochs before: these go with the next ones
        self._flush()
        if not self._remote:
            self._wait()  # a database on disk works on these cores: outside the timed pass, then

    def training_ended(self, name: str, device: str, results: Path, checkpoints: list[Path]) -> None:
        """Let MLflow show all that the training left on disk."""
        self._flush()
        paths = [str(path) for path in checkpoints]
        self._ask("training_ended", name=name, device=device, results=str(results), checkpoints=paths)
        self._wait()

    def stop(self, status: str, reason: str) -> None:
        """Close the run, if one was opened, of a training that won't end."""
        self._ask("stopped", status=status, reason=reason)

    def sync(self, names: list[str], results: Path, report: Path | None = None) -> None:
        """Let MLflow show what these experiments, and their comparison, left on disk."""
        self._ask("sync", names=names, results=str(results), report=str(report) if report else None)
        self._wait()

    def _flush(self) -> None:
        if self._epochs:
            self._ask("epochs", epochs=self._epochs, training_images=self._training_images)
            self._epochs = []
            self._flushed_at_seconds = time.monotonic()

    def _ask(self, do: str, **arguments: Any) -> None:
        if self._process is not None:
            self._messages.put(json.dumps({"do": do, **arguments}) + "\n")
            self._unanswered += 1

    def _wait(self) -> None:
        """For every answer that is due, as long as patience lasts: with a server in all, with a database each time."""
        started_seconds = time.monotonic()
        spent_seconds = self.waited_seconds if self._remote else 0.0
        if not self._collect(started_seconds + self._patience_seconds - spent_seconds):
            self._give_up("it does not answer in time")
        self.waited_seconds += time.monotonic() - started_seconds

    def _collect(self, until_seconds: float) -> bool:
        """Take answers until none is due any more, or until the time is up: then False."""
        while self._process is not None and self._unanswered:
            try:
                answer = self._answers.get(timeout=max(0.0, until_seconds - time.monotonic()))
            except queue.Empty:
                return False
            if answer not in ("ready", READY_BUT_SLOW, "done"):
                self._give_up(answer or "its process ended")
                return True
            self._is_slow |= answer == READY_BUT_SLOW
            self._unanswered -= 1
        return True

    def _give_up(self, why: str) -> None:
        print(f"MLflow: {why}. The run goes on; `make ui` sends what was missed.", file=sys.stderr, flush=True)
        if self._remote:
            _note_waited_in_this_repro(_REMOTE_PATIENCE_SECONDS)
        self._close(kill=True)

    def _leave(self) -> None:
        """The stage is to end now. What the worker has heard it puts right, and then ends by itself; one that isn't
        ready has heard nothing. It isn't killed: it may be making MLflow's tables, which would be left broken."""
        if self._process is None:
            return
        if self._ready.is_set() and self._collect(time.monotonic() + _END_SECONDS):
            self._close()
            return
        self._messages.put(None)
        if not self._ready.is_set() and self._process.stdin:
            self._process.stdin.close()
        self._process = None

    def _close(self, *, kill: bool = False) -> None:
        if self._process is None:
            return
        self._messages.put(None)
        if not kill:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # even a kill waits for a disk that hangs
            self._process.wait(_END_SECONDS)
        self._process = None

    def _tell(self, process: subprocess.Popen[str]) -> None:
        """In a thread of its own: the pipe to a worker that hangs fills up, and then a write waits for ever."""
        assert process.stdin
        self._ready.wait()
        # A worker that is gone is noticed in `_listen`; one that was left before it was ready has its pipe closed.
        with contextlib.suppress(OSError, ValueError), process.stdin as pipe:
            for message in iter(self._messages.get, None):
                pipe.write(message)
                pipe.flush()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        with process.stdout as pipe:
            for line in pipe:
                self._ready.set()
                self._answers.put(json.loads(line))
        self._ready.set()
        self._answers.put(None)


def _waited_in_this_repro_seconds() -> float:
    path, dvc = state_folder() / _WAITED, dvc_began_at_unix_seconds()
    began, seconds = json.loads(path.read_text(encoding="utf-8")) if dvc and path.is_file() else (None, 0.0)
    return float(seconds) if began == dvc else 0.0


def _note_waited_in_this_repro(seconds: float) -> None:
    if dvc := dvc_began_at_unix_seconds():
        write_text_atomically(state_folder() / _WAITED, json.dumps([dvc, seconds]))
