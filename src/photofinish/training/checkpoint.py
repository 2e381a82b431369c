"""Checkpoints of one training run: atomic, checked by sha256, the last two kept.

They live outside DVC's outs, which DVC deletes before a stage runs. Each file carries its sha256 in its
name, since neither torch.save nor safetensors notices a flipped bit.
"""

from __future__ import annotations

import io
import re
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from photofinish.errors import UserError
from photofinish.files import add_sums, is_as_recorded, sha256_of_bytes, write_bytes_atomically

CHECKPOINT_SECONDS = 1.0
"""Least time between two checkpoints, so that epochs of milliseconds aren't spent on writing them."""
KEPT = 2
FORGOTTEN_AFTER_DAYS = 30
_NAME = re.compile(r"^epoch-(\d+)\.[0-9a-f]{64}\.pt$")

State = dict[str, Any]


def on_cpu(state: Any) -> Any:
    """The same, holding no memory of a device."""
    if isinstance(state, torch.Tensor):
        return state.cpu()
    if isinstance(state, dict):
        return {key: on_cpu(value) for key, value in state.items()}
    return [on_cpu(value) for value in state] if isinstance(state, list) else state


def remove_forgotten(folders: Iterable[Path]) -> None:
    """Remove what is left in `folders` of runs for which nothing was saved in FORGOTTEN_AFTER_DAYS."""
    oldest_unix_seconds = time.time() - FORGOTTEN_AFTER_DAYS * 24 * 3600
    for kept in (kept for folder in folders for kept in folder.glob("*")):
        if kept.stat().st_mtime < oldest_unix_seconds:
            shutil.rmtree(kept, ignore_errors=True)


class CheckpointStore:
    """One run's checkpoints, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._saved_seconds = time.monotonic()

    def is_due(self) -> bool:
        """Whether the last one was long enough ago."""
        return time.monotonic() - self._saved_seconds >= CHECKPOINT_SECONDS

    def save(self, epochs_done: int, state: State) -> None:
        """Write a checkpoint, then drop all but the last two."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getvalue()
        path = self.folder / f"epoch-{epochs_done:06d}.{sha256_of_bytes(data)}.pt"
        try:
            write_bytes_atomically(path, data)
        except OSError as error:
            raise UserError(
                f"checkpoint {path} can't be written: {error.strerror}. "
                f"Make room, then `dvc repro` goes on from the checkpoint before it."
            ) from error
        for old in self.paths()[KEPT:]:
            old.unlink(missing_ok=True)
        self._saved_seconds = time.monotonic()

    def load_latest(self, on_damage: Callable[[Path], None]) -> State | None:
        """The newest checkpoint that is whole; each damaged one is reported, removed and passed over."""
        for path in self.paths():
            data = path.read_bytes()
            if sha256_of_bytes(data) == path.name.split(".")[1]:
                state: State = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
                return state
            on_damage(path)
            path.unlink()
        return None

    def paths(self) -> list[Path]:
        """Of those that are there, the newest first."""
        found = [(int(name[1]), path) for path in self.folder.glob("epoch-*.pt") if (name := _NAME.match(path.name))]
        return [path for _, path in sorted(found, reverse=True)]

    def clear(self) -> None:
        """The run is complete: its results hold all that its checkpoints did."""
        shutil.rmtree(self.folder, ignore_errors=True)


class EpochWeights:
    """A file an epoch; the sha256 of each goes into the checkpoints, and in the end into the record."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.sha256: list[str] = []
        """of each epoch's file, the first epoch's first"""

    def save(self, weights: bytes) -> None:
        """Those of the next epoch; to be called before that epoch's checkpoint is written."""
        path = self._path(len(self.sha256) + 1)
        try:
            write_bytes_atomically(path, weights)
        except OSError as error:
            raise UserError(
                f"{path} can't be written: {error.strerror}. Make room, then `dvc repro` goes on from the last "
                f"checkpoint; or set save_weights to last in params.yaml"
            ) from error
        self.sha256.append(sha256_of_bytes(weights))

    def resume(self, sha256: list[str]) -> Path | None:
        """Go on after these epochs; or, where one's file is damaged or gone, name it and change nothing."""
        for path, expected in self._files(sha256):
            if not is_as_recorded(path, expected):
                return path
        self.sha256 = list(sha256)
        return None

    def copy_to(self, folder: Path) -> None:
        """Every epoch's file, as it was when the epoch ended; the sha256 of all go where `folder` lies."""
        sums = {}
        for path, expected in self._files(self.sha256):
            weights = path.read_bytes()
            if sha256_of_bytes(weights) != expected:
                raise UserError(f"{path} was damaged during the training: run `dvc repro`, which trains anew")
            write_bytes_atomically(folder / path.name, weights)
            sums[f"{folder.name}/{path.name}"] = expected
        if sums:
            add_sums(folder.parent, sums)

    def _files(self, sha256: list[str]) -> list[tuple[Path, str]]:
        return [(self._path(epoch), expected) for epoch, expected in enumerate(sha256, start=1)]

    def _path(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch:04d}.safetensors"
