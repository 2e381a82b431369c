"""Lengths of a training: in its command line, in a Trainer or in its loops."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

_NAME = re.compile(
    "(?:(?:n|nb|no|num|number|of|max|maximum|total|train|training)_?)*(epoch|step|iter|iteration)s?"
)
"""Names with the length of a training. Names of a part or of an interval have other words."""
_ONE_OF_MANY = "step", "iter", "iteration", "niter"
TRAINER = "the trainer"
_TRAINED = (
    ("max_steps", "global_step"),
    ("max_epochs", "current_epoch"),
    ("num_train_epochs", "epoch"),
)
"""Names of each length of a Trainer, and of how much of it is done when it resumes."""
_TRAINERS = ("lightning.", "pytorch_lightning.", "transformers.")


def unit_of(name: str) -> str | None:
    """Return `epochs` or `steps` for a name of a training's length, else None."""
    found = _NAME.fullmatch(name.rpartition(".")[2].replace("-", "_").lower())
    if found is None or name in _ONE_OF_MANY:
        return None
    return "epochs" if found[1] == "epoch" else "steps"


def lengths_in_command(command: Sequence[str]) -> Iterator[tuple[str, float, str]]:
    """Yield each length on a command line: `--epochs 3`, `--max-steps=10`, `trainer.epochs=3`."""
    words = " ".join(command).split()  # a shell gets its command line as one argument
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, has_value, value = word.partition("=")
        name = option.lstrip("-")
        if not unit_of(name) or not (has_value or option.startswith("-")):
            continue
        try:
            number = float(value if has_value else following)
        except ValueError:
            continue
        if 0 < number < math.inf:
            yield name, number, option


def length_of_training() -> dict[str, Any] | None:
    """Return the length that the running Trainer or the loops around the step have."""
    if not hasattr(CodeType, "co_positions"):  # before Python 3.11
        return _length_of_trainer(lambda _: 1)
    from .loops import length_of_loops, repeats_of

    return _length_of_trainer(repeats_of) or length_of_loops()


def _length_of_trainer(repeats: Callable[[Any], int | None]) -> dict[str, Any] | None:
    """Return what the running Trainer of Lightning or Hugging Face has left to do.

    `repeats` returns how often the loops around a frame run it.
    """
    frame = inspect.currentframe()
    while frame:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        # Read f_locals only in these frames, because reading keeps local variables alive.
        if module.startswith(_TRAINERS) and function in ("fit", "train"):
            trainer = frame.f_locals["self"]
            settings = getattr(trainer, "args", trainer)
            for name, done in _TRAINED:
                value = getattr(settings, name, None)
                if value is not None and value > 0:
                    holders = trainer, getattr(trainer, "state", None)
                    resumed = (getattr(holder, done, None) for holder in holders)
                    count = repeats(frame.f_back)
                    value = (value - next(filter(None, resumed), 0)) * (count or 1)
                    return {"name": name, "value": value, "by": TRAINER, "is_part": count is None}
        frame = frame.f_back
    return None
