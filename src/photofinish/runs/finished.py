"""Finished results that DVC has not stored yet. The next run restores them without measuring."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from photofinish.errors import UserError
from photofinish.files import is_as_recorded, is_copy
from photofinish.results import records
from photofinish.runs.costs import epochs_in_time
from photofinish.runs.run import Run


def keep_result(run: Run) -> None:
    """Copy a complete result to the run's checkpoints, in case of a kill before DVC stores it.

    The result is complete without the copy, so a full disk does not fail the stage.
    """
    if "DVC_STAGE" not in os.environ:
        return
    folder = _folder(run)
    new = folder.with_name(f".{folder.name}")
    for leftover in (new, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        for name in (records.MODEL, records.TIMINGS_FOLDER):
            shutil.copytree(run.out / name, new / name)
        _experiment(run).write_text(os.environ.get("DVC_EXP_NAME", ""), encoding="utf-8")
        new.rename(folder)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        print(f"note: {run.title}  has no safety copy of its result: {error}")


def restore_result(run: Run) -> bool:
    """Restore a result that DVC lost, unless its time limit was raised. Return True if restored.

    A damaged copy is removed: DVC would store it, and every later stage fail.
    """
    folder = _folder(run)
    if "DVC_STAGE" not in os.environ or not folder.is_dir():
        return False
    file = _experiment(run)
    finished = file.read_text(encoding="utf-8") if file.is_file() else ""
    if is_copy() and finished and finished != os.environ.get("DVC_EXP_NAME"):
        print(f"{run.title}  trains again, so that its times are no copies of {finished}'s")
        shutil.rmtree(run.checkpoint_folder())
        return False
    timings = _timings_if_whole(folder)
    if not timings:
        print(f"{run.title}  {folder} is damaged and not used")
        shutil.rmtree(folder)
        return False
    limit_seconds = run.experiment.time_limit_seconds
    if timings.epochs_left and epochs_in_time(limit_seconds, timings.total_seconds, timings.epochs):
        return False  # the limit was raised, so the last checkpoint goes on
    shutil.copytree(folder, run.out, dirs_exist_ok=True)
    print(f"{run.title}  had finished: its result is restored")
    return True


def _timings_if_whole(folder: Path) -> records.TrainingTimes | None:
    model, file = folder / records.MODEL, folder / records.TIMINGS_FOLDER / records.TIMINGS
    try:
        timings = records.read_record(file, records.TrainingTimes)
        record = records.read_record(model / records.RECORD, records.TrainingRecord)
    except UserError:
        return None
    return timings if is_as_recorded(model / records.WEIGHTS, record.weights_sha256) else None


def _experiment(run: Run) -> Path:
    """Return the file with the name of the `dvc exp run` that finished, or with nothing."""
    return run.checkpoint_folder() / "experiment"


def _folder(run: Run) -> Path:
    """Return the folder in the run's checkpoints. Its path changes once DVC has stored a result."""
    return run.checkpoint_folder() / "result"
