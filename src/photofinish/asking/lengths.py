"""Lengths of a training, as the process of a script has them: in its arguments or in a Trainer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

_LENGTHS = ("epochs", "num_epochs", "max_epochs", "n_epochs", "max_steps", "max_iters")
"""Names of command-line arguments with the length of a training."""
_TRAINERS = ("lightning.", "pytorch_lightning.", "transformers.")


def watch_arguments(note: Callable[[str, int, str], None]) -> None:
    """Call `note` with each length that the script's argparse finds, and with its option."""
    import argparse

    parse = argparse.ArgumentParser.parse_known_args

    @functools.wraps(parse)
    def parse_and_note(parser: Any, *arguments: Any, **named: Any) -> Any:
        parsed = parse(parser, *arguments, **named)
        for name in _LENGTHS:
            value = getattr(parsed[0], name, None)
            if isinstance(value, int) and value > 0:
                note(name, value, f"--{name}")
        return parsed

    argparse.ArgumentParser.parse_known_args = parse_and_note  # type: ignore[assignment]


def lengths_of_a_trainer() -> Iterator[tuple[str, int]]:
    """Yield the steps or epochs of the running Trainer of Lightning or Hugging Face."""
    frame = inspect.currentframe()
    while frame:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        # Read f_locals only in these frames, because reading keeps local variables alive.
        if module.startswith(_TRAINERS) and function in ("fit", "train"):
            trainer = frame.f_locals["self"]
            settings = getattr(trainer, "args", trainer)
            for name in ("max_steps", "max_epochs", "num_train_epochs"):
                value = getattr(settings, name, None)
                if value is not None and value > 0:
                    yield name, value
            return
        frame = frame.f_back
