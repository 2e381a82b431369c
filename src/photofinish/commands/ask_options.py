"""Options of `photofinish ask`, and its first line, before which nothing slow is imported."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from photofinish.commands import pipeline
from photofinish.errors import ConfigError
from photofinish.wording import all_or_some, did_you_mean, seconds, unknown_name

if TYPE_CHECKING:
    from photofinish.config.compare import Comparing

_Settings = TypeVar("_Settings", bound="Comparing")


def add_ask_options(ask: argparse.ArgumentParser, nargs: str = argparse.REMAINDER) -> None:
    ask.usage = (
        "photofinish ask [options] [--] python train.py [arguments of train.py]\n"
        "       photofinish ask [options] [NAME ...] [options]"
    )
    ask.add_argument(
        "words", nargs=nargs, metavar="...",
        help="command that trains, or names: if the first argument is a name in params.yaml, all "
        "are names; without arguments, every experiment is answered; anything else, or anything "
        "after --, is a command",
    )  # fmt: skip
    job = ask.add_argument_group("length of the whole job, if the script doesn't show it")
    job.add_argument("--epochs", type=_positive, help="its epochs")
    job.add_argument("--steps", type=_positive, help="its steps")
    gpu = ask.add_argument_group("GPUs")
    gpu.add_argument(
        "--gpu", type=gpus, default=(), metavar="T4,L4",
        help="GPUs to consider, or all (default: params.yaml's, or six)",
    )  # fmt: skip
    gpu.add_argument(
        "--start-minutes", type=_not_negative, metavar="N",
        help="minutes of setup until a GPU is ready: 0 for your own, 1 for Colab (default: 5 for "
        "GPUs with a list price, otherwise 0)",
    )  # fmt: skip
    gpu.add_argument(
        "--price", type=_not_negative, metavar="N",
        help="USD an hour for these GPUs (or params.yaml's currency); 0 if free",
    )  # fmt: skip
    run = ask.add_argument_group("how the script runs")
    run.add_argument(
        "--seconds", type=_positive,
        help="watch at most this many seconds of training (default: 60; 30 per experiment)",
    )  # fmt: skip
    run.add_argument(
        "--patience", type=_positive, default=600.0, metavar="SECONDS",
        help="wait at most this long for the first step (default: 600)",
    )  # fmt: skip
    run.add_argument(
        "--no-seed", action="store_true",
        help="don't seed the script (its models are then compared only if it seeds itself)",
    )  # fmt: skip
    run.add_argument("--show-output", action="store_true", help="show the script's output")
    out = ask.add_argument_group("output")
    out.add_argument("--json", type=Path, metavar="FILE", help="write the answer to this file")
    out.add_argument("--html", type=Path, metavar="FILE", help="write it as a page")


def _positive(text: str) -> float:
    if number := _not_negative(text):
        return number
    raise argparse.ArgumentTypeError(f"{text} isn't a positive number")


def _not_negative(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} isn't a positive number")


def gpus(text: str) -> tuple[str, ...]:
    """Return the names of accelerators with commas between them, or of `all`."""
    from photofinish.config.compare import accelerators

    if text == "all":
        return tuple(accelerators())
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in accelerators():
            problem = unknown_name("accelerator", name, list(accelerators()))
            raise ConfigError(f"--gpu {name}: {problem}")
    return names


def ask_by_options(args: argparse.Namespace) -> None:
    from photofinish.stage.process import end_on_sigterm

    end_on_sigterm()  # which ends the script, too
    is_command = args.words[:1] == ["--"]
    if is_command:
        args.words = args.words[1:]
    is_of_experiments = not (is_command and args.words) and are_experiments(args.words)
    if is_of_experiments:  # options after a command are the command's
        options = argparse.ArgumentParser(prog="photofinish ask", allow_abbrev=False)
        add_ask_options(options, nargs="*")
        words = vars(args).pop("words")  # argparse would warn that it has a value
        args = options.parse_intermixed_args(words, args)
    terms = Terms(args.gpu, args.start_minutes, args.price)
    training_seconds = args.seconds or (30.0 if is_of_experiments else 60.0)
    if not is_of_experiments:
        print_start(training_seconds)

    # These take half a second, so the first line is printed before.
    from photofinish.commands.ask import ask
    from photofinish.reporting.ask_lines import AskFiles
    from photofinish.scripts.run_script import Limits
    from photofinish.scripts.script_lines import Length

    # A command for experiments may change the folder.
    files = AskFiles(*(path and path.absolute() for path in (args.json, args.html)))
    limits = Limits(training_seconds, args.patience, not args.no_seed, args.show_output)
    if is_of_experiments:
        from photofinish.commands.ask_experiments import ask_experiments

        if args.steps or args.epochs:
            raise ConfigError("--epochs and --steps are for commands: params.yaml has those here")
        ask_experiments(args.words, limits, files, terms)
        return
    length = None
    if args.steps:
        length = Length("max_steps", args.steps, "--steps")
    elif args.epochs:
        length = Length("epochs", args.epochs, "--epochs")
    ask(args.words, length, limits, files, terms)


@dataclass(frozen=True)
class Terms:
    """Options that replace settings of the section `compare`."""

    gpus: tuple[str, ...] = ()
    """Accelerators to consider, instead of the settings'."""
    start_minutes: float | None = None
    hour_price: float | None = None
    """Price of each accelerator that is considered."""

    def applied_to(self, settings: _Settings) -> _Settings:
        changes: dict[str, Any] = {"accelerators": self.gpus or settings.accelerators}
        if self.start_minutes is not None:
            changes["rental_minutes"] = self.start_minutes
        if self.start_minutes == 0:  # a GPU of one's own, which need not gain minutes
            changes["worth_saving"] = 0.0
        if self.hour_price is not None:
            prices = settings.prices.accelerator_hour
            prices = prices | dict.fromkeys(changes["accelerators"], self.hour_price)
            changes["prices"] = settings.prices.model_copy(update={"accelerator_hour": prices})
        return settings.model_copy(update=changes)


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

    names = read_names(folder / pipeline.PARAMS)
    if words[0] in names:
        return True
    if shutil.which(words[0]):
        return False
    raise ConfigError(
        f"{words[0]} is neither a command nor a name in params.yaml;"
        f"{did_you_mean(words[0], names)} names there: {all_or_some(names)}"
    )


def print_start(training_seconds: float) -> None:
    """Print what happens to the script, before the imports and measurements that take time."""
    print(
        f"Running your script for up to {seconds(training_seconds)} of training, then stopping it. "
        f"Its files (checkpoints, logs) are written as usual, over older ones, and kept. "
        f"Its output is hidden unless you give --show-output.",
        file=sys.stderr,
        flush=True,
    )
