"""Checkpoints of one training run: atomic, checked by sha256, the last two kept.

They are outside DVC's outs, which DVC deletes before a stage runs. Each file's name has its sha256,
because torch.load doesn't check its input.
"""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from photofinish.files import sha256_of_bytes, write_bytes_atomically

CHECKPOINT_SECONDS = 1.0
"""Minimum time between two checkpoints."""
CHECKPOINT_TIMES = 30
"""Minimum time between two checkpoints, in durations of the last save: they take 3 % at most."""
KEPT = 2
CHECKPOINT_DAYS = 30

State = dict[str, Any]


def prune_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of runs that saved no checkpoint in CHECKPOINT_DAYS."""
    oldest_unix_seconds = time.time() - CHECKPOINT_DAYS * 24 * 3600
    for run in folder.glob("*"):
        if run.stat().st_mtime < oldest_unix_seconds:
            shutil.rmtree(run, ignore_errors=True)


class CheckpointStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._saved_seconds = time.monotonic()
        self._last_save_seconds = 0.0

    def is_due(self) -> bool:
        """Return True if enough time has passed since the last save."""
        wait_seconds = max(CHECKPOINT_SECONDS, CHECKPOINT_TIMES * self._last_save_seconds)
        return time.monotonic() - self._saved_seconds >= wait_seconds

    def save(self, epochs_done: int, state: State) -> None:
        """Write a checkpoint, then delete all but the last two."""
        started_seconds = time.monotonic()
        buffer = io.BytesIO()
        torch.save(_loadable(state), buffer)
        data = buffer.getvalue()
        path = self.folder / f"epoch-{epochs_done:06d}.{sha256_of_bytes(data)}.pt"
        write_bytes_atomically(path, data)
        for old in self.paths()[KEPT:]:
            old.unlink(missing_ok=True)
        self._saved_seconds = time.monotonic()
        self._last_save_seconds = self._saved_seconds - started_seconds

    def load_latest(self, say: Callable[[str], None] = print) -> State | None:
        """Load the newest intact checkpoint. Report and remove damaged checkpoints."""
        for path in self.paths():
            data = path.read_bytes()
            problem = "is damaged"
            if sha256_of_bytes(data) == path.name.split(".")[1]:
                try:
                    state: State = torch.load(
                        io.BytesIO(data), map_location="cpu", weights_only=True
                    )
                except UnpicklingError:  # it has code, which is not executed
                    problem = "has more than tensors and numbers in it"
                else:
                    return state
            say(f"checkpoint {path} {problem} and is not used")
            path.unlink()
        return None

    def paths(self) -> list[Path]:
        """Return the existing checkpoints, the newest first."""
        return sorted(self.folder.glob("epoch-*.*.pt"), reverse=True)


def _loadable(value: Any) -> Any:
    """Return a state that loads without code. NumPy's numbers become Python's."""
    if type(value) is dict:  # a network's state is an OrderedDict with versions beside it
        return {key: _loadable(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_loadable, value))
    return value.item() if isinstance(value, np.generic) else value
