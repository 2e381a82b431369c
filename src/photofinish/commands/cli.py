"""Arguments of the command line, and the function that each command calls.

Imports are inside functions, because `photofinish --help` needs none of them.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import photofinish
from photofinish.commands import pipeline
from photofinish.commands.ask_options import add_ask_options, ask_by_options
from photofinish.errors import EXIT_NOT_COMPARED, NotComparedError, UserError
from photofinish.gate import ALLOWED
from photofinish.remote import HEAD
from photofinish.stage.process import run_stage

_Call = Callable[[argparse.Namespace], None]
_GROUPS = {
    "ask about a script, for example `photofinish ask python train.py`": {
        "ask": "run a script for a minute: is a GPU worth it for its whole job?",
    },
    "start a project, for example `photofinish init`": {
        "init": "write the pipeline and a params.yaml into this folder",
        "new": "write a network to start from",
    },
    "train and compare, for example `photofinish run`": {
        "plan": "check params.yaml; `dvc status` then lists what will run",
        "run": "check params.yaml, then `dvc repro`: only changes run again",
        "report": "print the last answers again, or open their page",
        "ui": "start MLflow's pages, with all results",
    },
    "check in CI for slower training, for example `photofinish gate --base main`": {
        "gate": "fail if training is slower than at another commit",
    },
    "use other machines, for example `photofinish rent T4`": {
        "rent": "print how to train on a rented GPU (starts nothing)",
        "reference": "record this machine's results, to compare with on others",
        "machine": "describe this machine so that params.yaml can assign jobs to it",
        "spread": "train missing results on all machines at once",
        "worker": "run jobs sent by `photofinish spread`",
    },
}
"""Commands by group, as the help lists them."""
_EXAMPLES = {
    "ask": "ask --epochs 90 python train.py",
    "init": "init --example own-network",
    "new": "new net.py",
    "plan": "plan; dvc status",
    "run": "run train-cpu@digits-mlp",
    "report": "report --open",
    "ui": "ui --port 5001",
    "gate": "gate --base main --slower 1.2",
    "rent": "rent T4 -- python train.py",
    "reference": "reference --machine lab-pc",
    "machine": "machine lab-pc",
    "spread": "spread --listen tcp://0.0.0.0:8786",
    "worker": "worker tcp://lab-pc:8786",
}

_DESCRIPTION = """\
Is a GPU worth it for this training job, how much faster is it, why (or why not),
and is the model the same?
"""
_EPILOG = "`photofinish COMMAND --help` lists a command's options. Exit codes: docs/commands.md."

_OF_PIPELINE = (
    "PIL", "dvc", "filelock", "jinja2", "markupsafe", "matplotlib", "mlflow", "pandas",
    "safetensors", "sklearn", "torch", "torchmetrics", "torchvision", "yaml",
)  # fmt: skip
"""Modules that only `photofinish[pipeline]` brings."""


def main() -> None:
    """Run the command from the command line. Print expected errors without a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so lines reach a pipe before a stage's
    run_stage(_main)


def _main() -> None:
    parser = _parser()
    args, others = parser.parse_known_args()
    if "call" not in args:
        parser.print_help()
        return
    if args.command == "run":
        args.arguments = others
    elif others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    try:
        args.call(args)
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in (*_OF_PIPELINE, "dask", "distributed"):
            raise
        extra = "pipeline" if module in _OF_PIPELINE else "fleet"
        raise UserError(
            f"`photofinish {args.command}` needs packages that are missing here, such as {module}: "
            f"pip install 'photofinish[{extra}]'"
        ) from error


def _parser() -> argparse.ArgumentParser:
    groups = [
        "\n".join([f"{group}:", *(f"    {name:10} {text}" for name, text in commands.items())])
        for group, commands in _GROUPS.items()
    ]
    parser = argparse.ArgumentParser(
        prog="photofinish",
        usage="photofinish COMMAND ...",
        description="\n".join([_DESCRIPTION, *groups]),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"photofinish {photofinish.__version__}"
    )
    _add_commands(parser)
    return parser


def _command(commands: Any, name: str, call: _Call) -> argparse.ArgumentParser:
    (text,) = (group[name] for group in _GROUPS.values() if name in group)
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        description=f"{text[0].upper()}{text[1:]}{'' if text.endswith('?') else '.'}",
        epilog=f"example:\n  photofinish {_EXAMPLES[name]}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.set_defaults(call=call)
    return command


def _add_commands(parser: argparse.ArgumentParser) -> None:
    # Without help, argparse lists no command: it has no groups of them.
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", prog="photofinish", help=argparse.SUPPRESS
    )
    command = partial(_command, commands)
    add_ask_options(command("ask", ask_by_options))
    command("init", _init).add_argument(
        "--example", metavar="NAME", help="write this example as params.yaml"
    )
    command("new", _new).add_argument(
        "file", nargs="?", default="my_model.py", help="default: my_model.py"
    )
    run = command("run", pipeline.run)
    run.usage = "photofinish run [--example NAME] [--verbose] [arguments of dvc repro]"
    run.add_argument("--example", metavar="NAME", help="write this example as params.yaml first")
    run.add_argument("--verbose", action="store_true", help="also show DVC's output")
    command("plan", _plan)
    forms = command("report", pipeline.show_answers).add_mutually_exclusive_group()
    forms.add_argument("--open", action="store_true", help="open report/index.html in the browser")
    forms.add_argument("--json", action="store_true", help="print report/answers.json")
    command("ui", pipeline.show_runs).add_argument(
        "--port", type=int, default=5000, help="default: 5000"
    )
    gate = command("gate", _gate)
    gate.add_argument(
        "--base", metavar="COMMIT", default="HEAD~1", help="what to compare with (default: HEAD~1)"
    )
    gate.add_argument(
        "--slower", metavar="FACTOR", type=float, default=ALLOWED,
        help=f"how many times as long a training may take (default: {ALLOWED})",
    )  # fmt: skip
    gate.add_argument("--same-losses", action="store_true", help="also fail if losses changed")
    gate.epilog = f"{gate.epilog}\n\nExit codes: 1 if a training is slower, 125 if that is unclear."
    command("reference", pipeline.record_results).add_argument(
        "--machine", metavar="NAME", help="its name (default: the hardware)"
    )
    rent = command("rent", _rent)
    rent.usage = "photofinish rent GPU [-- python train.py [arguments of train.py]]"
    rent.add_argument("gpu", metavar="GPU", help="for example T4")
    rent.add_argument(
        "words", nargs="*", metavar="...", help="command that trains (default: the pipeline)"
    )
    command("machine", pipeline.record_machine).add_argument(
        "name", metavar="NAME", help="name of the machine and of its file"
    )
    command("spread", _spread).add_argument(
        "--listen", metavar="ADDRESS", default=HEAD,
        help=f"where workers connect (default: {HEAD}; tcp://0.0.0.0:8786 is open to all)",
    )  # fmt: skip
    command("worker", _worker).add_argument(
        "head", nargs="?", metavar="ADDRESS", default=HEAD,
        help="where `spread` runs (default: this machine)",
    )  # fmt: skip


def _init(args: argparse.Namespace) -> None:
    from photofinish.commands.init import init

    init(args.example)


def _new(args: argparse.Namespace) -> None:
    from photofinish.commands.init import write_network

    write_network(args.file)


def _plan(_args: argparse.Namespace) -> None:
    pipeline.enter()
    pipeline.run_stages(["plan"], shows_plan=True)


def _gate(args: argparse.Namespace) -> None:
    from photofinish.gate.gate import changes_since, check

    try:
        pipeline.enter()
        pipeline.run_stages(["split", "download-weights"])
        changes = changes_since(args.base, args.slower)
    except UserError as error:
        raise NotComparedError(str(error)) from error
    except SystemExit:  # of a stage that printed why
        sys.exit(EXIT_NOT_COMPARED)
    check(changes, same_losses=args.same_losses)


def _rent(args: argparse.Namespace) -> None:
    from photofinish.commands.rent import rent

    task, commands = rent(args.gpu, args.words)
    print("Nothing is started or paid for. Below are a task and the commands.", file=sys.stderr)
    print(task, end="", flush=True)
    print(commands, end="", file=sys.stderr)


def _spread(args: argparse.Namespace) -> None:
    from photofinish.remote.spread import spread

    pipeline.enter()
    pipeline.check_params()
    spread(args.listen)


def _worker(args: argparse.Namespace) -> None:
    from photofinish.remote.worker import serve

    pipeline.enter()
    serve(args.head)
