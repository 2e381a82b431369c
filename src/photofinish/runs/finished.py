"""A finished result that DVC has not stored yet: the next run restores it, and measures nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from photofinish.runs.run import Run


def keep_result(run: Run) -> None:
    """Copy a complete result to the run's checkpoints, for a kill before DVC stores it."""
    if "DVC_STAGE" not in os.environ:
        return
    folder = _folder(run)
    new = folder.with_name(f".{folder.name}")
    for leftover in (new, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(run.out, new)
    new.rename(folder)


def restore_result(run: Run) -> bool:
    """Return True if a result that DVC lost was put back. Once DVC stored it, it is not used."""
    folder = _folder(run)
    if "DVC_STAGE" not in os.environ or not folder.is_dir():
        return False
    shutil.copytree(folder, run.out, dirs_exist_ok=True)
    print(f"{run.title}  had finished: its result is restored")
    return True


def _folder(run: Run) -> Path:
    """Return a folder beside the run's checkpoints. Its name changes once DVC stored a result."""
    return run.checkpoint_folder() / "result"
