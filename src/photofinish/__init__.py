"""photofinish: is a GPU worth it for this training job, and is the model the same?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from photofinish.reporting.answers import Answers

__version__ = "0.1.0"


def report() -> "Answers":
    """Return the answers of this folder's report, which a notebook shows."""
    # By name, so that the code of `reporting` is no part of what other stages run.
    answers: Answers = import_module("photofinish.reporting.answers").read_answers()
    return answers


def __getattr__(name: str) -> Any:
    """Import `steps` at its first use."""
    if name == "steps":
        return import_module("photofinish.custom_loops.timed_steps").steps
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
