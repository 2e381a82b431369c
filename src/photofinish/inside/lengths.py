"""Lengths of a training: in its command line, in the script's arguments or in a Trainer."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_PARSED = ("epochs", "num_epochs", "max_epochs", "n_epochs", "max_steps", "max_iters")
"""Names of argparse's arguments with the length of a training, whose defaults count too."""
STEPS = (
    "max_steps",
    "max_iters",
    "max_train_steps",
    "num_train_steps",
    "train_steps",
    "total_steps",
    "num_steps",
    "n_steps",
    "num_iters",
    "num_iterations",
    "iterations",
    "iters",
    "steps",
)
"""Names of options with the number of steps."""
_EPOCHS = (
    "epochs",
    "num_epochs",
    "max_epochs",
    "n_epochs",
    "num_train_epochs",
    "train_epochs",
    "total_epochs",
    "nepochs",
    "epoch",
)
TRAINER = "the trainer"
_TRAINERS = ("lightning.", "pytorch_lightning.", "transformers.")


def lengths_in_command(command: Sequence[str]) -> Iterator[tuple[str, float, str]]:
    """Yield each length on a command line: `--epochs 3`, `--max-steps=10`, `trainer.epochs=3`."""
    words = " ".join(command).split()  # a shell gets its command line as one argument
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, has_value, value = word.partition("=")
        name = option.lstrip("-").rpartition(".")[2].replace("-", "_")
        if name not in STEPS + _EPOCHS or not (has_value or option.startswith("-")):
            continue
        try:
            number = float(value if has_value else following)
        except ValueError:
            continue
        if 0 < number < math.inf:
            yield name, number, option


def watch_arguments(note: Callable[[str, int, str], None]) -> None:
    """Call `note` with each length that the script's argparse finds, and with its option."""
    import argparse

    parse = argparse.ArgumentParser.parse_known_args

    @functools.wraps(parse)
    def parse_and_note(parser: Any, *arguments: Any, **named: Any) -> Any:
        parsed = parse(parser, *arguments, **named)
        for name in _PARSED:
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
