"""A finished training's result, kept until DVC has it: DVC deletes a stage's outs before it runs it, and knows of a
result only once it has read and stored all of it. A stage that was killed in between hands over what is kept here.

It lies under the run's key, and below that under what dvc.lock says of the stage: that is another thing as soon as DVC
has the result, so that `dvc repro --force` trains again.

An experiment that was only renamed takes over the result of its old name in the same way.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from photofinish.files import read_sums, removed_folder, sha256_of_bytes, sha256_of_file, state_folder
from photofinish.results.records import LEARNED, TIMED, TIMINGS, DeviceLabel


def finished_folder() -> Path:
    """Where they are kept, by the keys of their runs."""
    return state_folder() / "finished"


def keep(key: str, result: Path) -> None:
    """Keep what a stage of DVC's is about to end with, in place of earlier results of the key."""
    if "DVC_STAGE" in os.environ:
        shutil.rmtree(finished_folder() / key, ignore_errors=True)
        try:
            shutil.copytree(result, _place(key))
        except OSError:  # no room for a second one, say: the result itself is there
            shutil.rmtree(finished_folder() / key, ignore_errors=True)


def hand_over(key: str, result: Path) -> bool:
    """Put a result into place that was finished before DVC had it; False where there is none, or none that is whole."""
    if "DVC_STAGE" not in os.environ or not (finished_folder() / key).is_dir():
        return False
    kept = _place(key)
    if not all(is_whole(kept / part) for part in (LEARNED, TIMED)):
        return False  # cut off, where there are checkpoints still; or damaged
    shutil.copytree(kept, result, dirs_exist_ok=True)
    shutil.rmtree(state_folder() / "checkpoints" / key, ignore_errors=True)  # it may have been killed before they went
    return True


def take_over(key: str, identity: str, device: DeviceLabel) -> str | None:
    """Keep for `hand_over` what the same training left under a name that params.yaml has no more; that name.

    Only for a stage that DVC has no result of: where it has one, it is asked to train again.
    """
    if "DVC_STAGE" not in os.environ or _entry_in_lock():
        return None
    for result in removed_folder().glob(f"*/{device}"):
        timings = result / TIMED / TIMINGS
        # Not parsed: there may be hundreds, and a sha256 is nowhere by chance.
        is_same = timings.is_file() and identity in timings.read_text(encoding="utf-8", errors="replace")
        if is_same and all(is_whole(result / part) for part in (LEARNED, TIMED)):
            shutil.rmtree(finished_folder() / key, ignore_errors=True)
            (finished_folder() / key).mkdir(parents=True)
            result.rename(_place(key))
            return result.parent.name
    return None


def is_whole(folder: Path) -> bool:
    """Whether every file that its SHA256SUMS names is there, as it was."""
    try:
        return all(sha256_of_file(folder / name) == digest for name, digest in read_sums(folder).items())
    except OSError:
        return False


def _place(key: str) -> Path:
    return finished_folder() / key / sha256_of_bytes(_entry_in_lock().encode())


def _entry_in_lock() -> str:
    """What dvc.lock says of the stage; nothing where it was never run."""
    lock, stage = Path("dvc.lock"), os.environ["DVC_STAGE"].rpartition(":")[2]
    text = lock.read_text(encoding="utf-8") if lock.is_file() else ""
    # Not parsed: that takes seconds where there are hundreds of stages.
    entry = re.search(rf"^  {re.escape(stage)}:$(\n   .*)*", text, re.MULTILINE)
    return entry[0] if entry else ""
