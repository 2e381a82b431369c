"""Lengths of a training: in its command line, in a Trainer or in its loops."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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


@dataclass(eq=False)
class Loop:
    """A loop around the running step."""

    place: str = ""
    text: str = ""
    size: float = math.nan
    """Number of iterations if nothing ends it before, or NaN if that is not known."""
    count: float | None = None
    """Number of its iterations, or None if that is not known."""
    is_pass: bool = False
    """True if it goes once through data whose number of batches is not known here."""
    is_range: bool = False
    values: dict[str, Any] = field(default_factory=dict)
    """Values of the variables that it sets to each item."""
    sets: set[str] = field(default_factory=set)
    """Variables that its statements set, other than by adding to them."""
    limits: list[tuple[str, ...]] = field(default_factory=list)
    """Counters that end it, each with its limit."""
    may_stop_at: str = ""
    """Place of a condition that may end it before its last iteration."""
    follows: str = ""
    """Not a loop, but what trains after the step: "more", or "again" for the same call."""

    def end(self, count: float | None) -> None:
        """Set the number of iterations of a loop that something ends."""
        self.count, self.is_pass = count, False


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
        return _length_of_trainer(lambda _: [])
    from .loops import loops_around

    return _length_of_trainer(loops_around) or length_of_loops()


def length_of_loops() -> dict[str, Any] | None:
    """Return the epochs or steps that the loops around the running step have, and where.

    It is a part of the training if loops around these repeat it an unknown number of times, or if
    more training follows. Return None if the number of iterations is not clear.
    """
    from .loops import loops_around

    loops = loops_around(inspect.currentframe()) or []
    counted = [at for at, loop in enumerate(loops) if loop.count is not None] or [0]
    passes = [at for at, loop in enumerate(loops) if loop.is_pass and at > counted[0]]
    last = max((at for at in counted if at < min(passes, default=len(loops))), default=0)
    # What follows within an iteration is of its epoch, or of another optimizer.
    within = ("more", "again") if passes else ("more",)
    loops = [loop for at, loop in enumerate(loops) if at < last or loop.follows not in within]
    end = max((at for at, loop in enumerate(loops) if loop.is_pass), default=-1)
    unclear = [at for at, loop in enumerate(loops) if loop.count is None and at != end]
    inner = loops[max(unclear, default=-1) + 1 :]
    known = [*itertools.takewhile(lambda loop: loop.count is not None, inner)]
    value = math.prod(loop.count or 0 for loop in known)
    if not known or value < 1 or not all(loop.count for loop in inner[len(known) + 1 :]):
        return None
    shown = [loop for loop in known if loop.count != 1] or known[-1:]
    by = f"{' x '.join(loop.text for loop in shown)} in {shown[0].place}"
    if any(loop.may_stop_at for loop in shown[1:]):
        return None  # far below the product
    stops = [loop.may_stop_at for loop in known if loop.may_stop_at]
    return {
        "name": "epochs" if len(inner) > len(known) else "max_steps",
        "value": value,
        "by": f"{by}, may stop at {stops[0]}" if stops else by,
        "may_stop": bool(stops),
        "is_part": len(inner) < len(loops),
    }


def _length_of_trainer(loops_around: Callable[[Any], Any]) -> dict[str, Any] | None:
    """Return what the running Trainer of Lightning or Hugging Face has left to do."""
    frame = inspect.currentframe()
    while frame:
        module = frame.f_globals.get("__name__", "")
        function = frame.f_code.co_name
        # Read f_locals only in these frames, because reading keeps local variables alive.
        if module.startswith(_TRAINERS) and function in ("fit", "train"):
            trainer = frame.f_locals.get("self")
            settings = getattr(trainer, "args", trainer)
            for name, done in _TRAINED:
                value = getattr(settings, name, None)
                if isinstance(value, (int, float)) and value > 0:
                    holders = trainer, getattr(trainer, "state", None)
                    resumed = (getattr(holder, done, None) for holder in holders)
                    loops = loops_around(frame.f_back)
                    counts: list[Any] = [loop.count for loop in loops] if loops else []
                    is_part = loops is None or None in counts
                    value -= next(filter(None, resumed), 0)
                    value *= 1 if is_part else math.prod(counts)
                    return {"name": name, "value": value, "by": TRAINER, "is_part": is_part}
        frame = frame.f_back
    return None
