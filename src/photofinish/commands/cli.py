"""Arguments of the command line, and the function that each command calls.

Imports are inside functions, because `photofinish --help` needs none of them.
"""

from __future__ import annotations

import argparse
import io
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import photofinish
from photofinish.errors import EXIT_NOT_COMPARED, ConfigError, NotComparedError, UserError
from photofinish.gate import ALLOWED
from photofinish.stage.process import run_stage

_EPILOG = """\
start here:
  photofinish ask python train.py
                           answers in a minute for a script of yours, as it is
  photofinish ask NAME     the same for an experiment of params.yaml
  photofinish init         in the folder of your network
  photofinish run          trains on CPU and GPU; the answer is in report/index.html

`photofinish COMMAND --help` lists the arguments of a command.
"""

_GONE = {
    "gate --find": "`git bisect run photofinish gate --base GOOD` finds the slow commit",
    "plan --try": "`photofinish ask NAME --seconds 1` runs your code for a moment",
    "history": "`dvc exp show --all-commits` and `photofinish ui` compare commits",
}
"""What to use instead of a command or option of an earlier version."""


def main() -> None:
    """Run the command from the command line. Print expected errors without a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so lines reach a pipe before a stage's
    run_stage(_main)


def _main() -> None:
    parser = _parser()
    words = [word.partition("=")[0] for word in sys.argv[1:]]
    for gone, remedy in _GONE.items():
        command, *option = gone.split()
        if words[:1] == [command] and set(option) <= set(words):
            parser.error(f"`photofinish {gone}` is gone: {remedy}")
    args, others = parser.parse_known_args()
    if "call" not in args:
        parser.print_help()
        return
    if args.command == "run":
        args.arguments = others
    elif others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    args.call(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="photofinish",
        description=(
            "Is a GPU worth it for this training job, how much faster is it, why (or why not), and "
            "is the\nmodel the same?"
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"photofinish {photofinish.__version__}"
    )
    _add_commands(parser)
    return parser


def _add_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    def command(
        name: str, call: Callable[[argparse.Namespace], None], text: str
    ) -> argparse.ArgumentParser:
        sentence = f"{text[0].upper()}{text[1:]}."
        added = commands.add_parser(name, help=text, description=sentence, allow_abbrev=False)
        added.set_defaults(call=call)
        return added

    _add_ask_options(
        command("ask", _ask, "run a script or an experiment for a minute, and answer for all of it")
    )
    command("init", _init, "write the pipeline and a params.yaml into this folder")
    new = command("new", _new, "write a network to start from")
    new.add_argument("file", nargs="?", default="my_model.py", help="default: my_model.py")
    run = command("run", _run, "check params.yaml, then `dvc repro`: only what changed runs again")
    run.usage = "photofinish run [--example NAME] [arguments of dvc repro]"
    run.add_argument(
        "--example", metavar="NAME", help="copy examples/NAME.yaml over params.yaml first"
    )
    command("plan", _plan, "check params.yaml; `dvc status` then lists what will run")
    ui = command("ui", _ui, "bring MLflow up to date, and start its web pages")
    ui.add_argument("--port", type=int, default=5000, help="default: 5000")
    _add_gate_options(
        command("gate", _gate, "end with an error if training is slower than at another commit")
    )
    reference = command("reference", _reference, "record this machine's results for other machines")
    reference.add_argument("--machine", metavar="NAME", help="default: the hardware")
    rent = command("rent", _rent, "print how to train on a rented GPU, with its time and cost")
    rent.add_argument("--on", metavar="GPU", required=True, help="for example T4")
    machine = command("machine", _machine, "record what this machine is, for params.yaml to name")
    machine.add_argument("name", metavar="NAME", help="it writes machines/NAME.json")
    spread = command("spread", _spread, "train missing results on all machines at once")
    spread.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="default: tcp://127.0.0.1:8786; tcp://0.0.0.0:8786 is open to all",
    )
    worker = command("worker", _worker, "train here for a head, which `spread` starts")
    worker.add_argument(
        "head", nargs="?", metavar="ADDRESS", help="of the head (default: this machine)"
    )


def _add_gate_options(gate: argparse.ArgumentParser) -> None:
    sides = gate.add_mutually_exclusive_group()
    sides.add_argument(
        "--base", metavar="COMMIT", default="HEAD~1", help="what to compare with (default: HEAD~1)"
    )
    sides.add_argument(
        "--python", metavar="PYTHON", help="compare with the environment of another python"
    )
    gate.add_argument(
        "--slower", metavar="FACTOR", type=float, default=ALLOWED,
        help=f"how many times as long a training may take (default: {ALLOWED})",
    )  # fmt: skip
    gate.add_argument("--same-losses", action="store_true", help="other losses are an error, too")
    gate.epilog = "It exits with 1 if a training is slower, and with 125 if that is not clear."


def _positive(text: str) -> float:
    """Return a number above 0. argparse reports a ValueError."""
    if 0 < float(text) < math.inf:
        return float(text)
    raise ValueError(text)


def _add_ask_options(ask: argparse.ArgumentParser, nargs: str = argparse.REMAINDER) -> None:
    ask.usage = (
        "photofinish ask [options] python train.py [arguments of train.py]\n"
        "       photofinish ask [options] [NAME ...] [options]"
    )
    ask.epilog = (
        "Words that begin with the NAME of an experiment or script in params.yaml are names. "
        "Without words, all are asked about. Anything else is a command."
    )
    ask.add_argument("--epochs", type=_positive, help="epochs of the whole job")
    ask.add_argument("--steps", type=_positive, help="steps of the whole job")
    ask.add_argument(
        "--seconds", type=_positive,
        help="most seconds of training (default: 60, and 30 for each experiment)",
    )  # fmt: skip
    ask.add_argument(
        "--patience", type=_positive, default=600.0,
        help="most seconds until the first step (default: 600)",
    )  # fmt: skip
    ask.add_argument("--json", type=Path, metavar="FILE", help="write the answer here")
    ask.add_argument("--verbose", action="store_true", help="show the script's output")
    ask.add_argument("words", nargs=nargs, metavar="...", help="command that trains, or names")


def _ask(args: argparse.Namespace) -> None:
    from photofinish.commands.ask import ask
    from photofinish.commands.ask_experiments import are_experiments, ask_experiments
    from photofinish.scripts.run_script import Limits
    from photofinish.scripts.script_lines import Length
    from photofinish.stage.process import end_on_sigterm

    end_on_sigterm()  # which ends the script, too
    is_of_experiments = are_experiments(args.words)
    if is_of_experiments:  # options after a command are the command's
        options = argparse.ArgumentParser(prog="photofinish ask", allow_abbrev=False)
        _add_ask_options(options, nargs="*")
        args = options.parse_intermixed_args(args.words, args)
    json_file = args.json and args.json.absolute()
    if is_of_experiments:
        if args.steps or args.epochs:
            raise ConfigError("params.yaml has the epochs of an experiment: leave out the option")
        limits = Limits(args.seconds or 30.0, args.patience)
        ask_experiments(args.words, limits, json_file, shows_output=args.verbose)
        return
    length = None
    if args.steps:
        length = Length("max_steps", args.steps, "--steps")
    elif args.epochs:
        length = Length("epochs", args.epochs, "--epochs")
    ask(
        args.words,
        length,
        Limits(args.seconds or 60.0, args.patience),
        json_file,
        shows_output=args.verbose,
    )


def _init(_args: argparse.Namespace) -> None:
    from photofinish.commands.init import init

    init()


def _new(args: argparse.Namespace) -> None:
    from photofinish.commands.init import write_network

    write_network(args.file)


def _run(args: argparse.Namespace) -> None:
    from photofinish.commands import pipeline

    pipeline.enter()
    if args.example:
        pipeline.copy_example(args.example)
    pipeline.prepare()
    sys.exit(pipeline.repro(args.arguments))


def _plan(_args: argparse.Namespace) -> None:
    from photofinish.commands import pipeline

    pipeline.enter()
    pipeline.prepare()
    sys.exit(pipeline.repro(["plan"]))


def _ui(args: argparse.Namespace) -> None:
    from photofinish.commands import pipeline

    pipeline.enter()
    pipeline.show_runs(args.port)


def _gate(args: argparse.Namespace) -> None:
    from photofinish.commands import pipeline
    from photofinish.gate.gate import changes_since, changes_with, check

    python = None
    if args.python:
        python = Path(shutil.which(args.python) or args.python).expanduser().absolute()
    try:
        pipeline.enter()
        pipeline.prepare_data()
        if python:
            changes = changes_with(python, args.slower)
        else:
            changes = changes_since(args.base, args.slower)
    except UserError as error:
        raise NotComparedError(str(error)) from error
    except SystemExit:  # of a stage that printed why
        sys.exit(EXIT_NOT_COMPARED)
    check(changes, same_losses=args.same_losses)


def _reference(args: argparse.Namespace) -> None:
    from photofinish.commands import pipeline

    pipeline.enter()
    pipeline.record_results(args.machine)


def _rent(args: argparse.Namespace) -> None:
    from photofinish.commands.rent import rent

    task, commands = rent(args.on)
    print(task, end="", flush=True)
    print(commands, end="", file=sys.stderr)


def _machine(args: argparse.Namespace) -> None:
    from photofinish.commands import pipeline

    pipeline.enter()
    pipeline.record_machine(args.name)


def _spread(args: argparse.Namespace) -> None:
    from photofinish.commands import pipeline
    from photofinish.remote.spread import spread
    from photofinish.remote.worker import HEAD

    pipeline.check_signals()
    pipeline.enter()
    pipeline.check_age()
    pipeline.check_params()
    spread(args.listen or HEAD)


def _worker(args: argparse.Namespace) -> None:
    from photofinish.commands import pipeline
    from photofinish.remote.worker import HEAD, serve

    pipeline.check_signals()
    pipeline.enter()
    serve(args.head or HEAD)
