"""Checks of `photofinish ask`, and its first line. Imports are few, so both come at once."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from photofinish.commands import pipeline
from photofinish.errors import ConfigError
from photofinish.wording import all_or_some, did_you_mean, seconds


def are_experiments(words: Sequence[str]) -> bool:
    """Return True for names in params.yaml, or for no words in a project. False for a command."""
    folder = pipeline.find()
    if folder is None:
        if not words:
            raise ConfigError("name a command that trains, as in photofinish ask python train.py")
        return False
    if not words:
        return True
    from photofinish.config.loader import read_names

    is_command = bool(shutil.which(words[0]))
    names = read_names(folder / pipeline.PARAMS)
    if words[0] in names:
        return True
    if not is_command:
        raise ConfigError(
            f"{words[0]} is neither a command nor a name in params.yaml;"
            f"{did_you_mean(words[0], names)} names there: {all_or_some(names)}"
        )
    return False


def is_python(word: str) -> bool:
    """Return True for the name or the path of a Python."""
    return bool(re.fullmatch(r"python[\d.]*(\.exe)?", Path(word).name))


def print_start(training_seconds: float) -> None:
    """Print what happens to the script, before the imports and measurements that take time."""
    print(
        f"Running your script for up to {seconds(training_seconds)} of training, then stopping it. "
        f"Its files (checkpoints, logs) are written as usual, over older ones, and kept. "
        f"Its output is hidden unless you give --show-output.",
        file=sys.stderr,
        flush=True,
    )
