"""photofinish: is a GPU worth it for this training job, and is the model the same?"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from photofinish.reporting.answers import Answers

_Batch = TypeVar("_Batch")
__version__ = "0.1.0"


def report() -> "Answers":
    """Return the answers of this folder's report, which a notebook shows."""
    # By name, so that the code of `report` is no part of what other stages run.
    answers: Answers = import_module("photofinish.reporting.answers").read_answers()
    return answers


def steps(loader: "Iterable[_Batch]") -> "Iterable[_Batch]":
    """Return `loader`, timed while photofinish runs the script.

    Use it where optimizer steps or epochs can't be seen: each batch then counts as a step, unless
    an optimizer steps.
    """
    hooks = sys.modules.get("_photofinish.hooks")
    if hooks is None and "PHOTOFINISH_RECORDS" in os.environ:  # such as with `python -I`
        hooks = import_module("photofinish.inside.hooks")
    recorder = hooks.start() if hooks else None
    return recorder.named(loader) if recorder else loader
