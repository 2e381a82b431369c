"""Commands within a project: the pipeline, MLflow's UI, and records of this machine."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from photofinish.errors import ConfigError, UserError
from photofinish.files import OWN_FOLDER
from photofinish.git import git_succeeds

if TYPE_CHECKING:
    import argparse

    from photofinish.config.loader import Params

PARAMS = Path("params.yaml")
PLAN = Path("stages/plan.py")
_DVC = Path(".dvc")
_STYLES = {
    r"\b(Yes|Probably yes), [^:]+(?=:)": "bold green",
    r"\bNo(, don't rent|, use the CPU| GPU will help)(?=:)": "bold red",
    r"\b(Close call|Can't tell)[^:]*(?=:)": "bold yellow",
    r"Next:|Same model:": "bold",
    r"`[^`]+`": "green",
    r"[█▒]+|▏": "cyan",
    r"░+": "bright_black",
}


def enter() -> None:
    """Change to the folder of the pipeline, and put this Python first on PATH for its stages."""
    folder = find()
    if folder is None:
        raise ConfigError(f"{Path.cwd()} has no pipeline: `photofinish init` writes one")
    if find_spec("torch") is None:  # which is not imported here: it takes seconds
        raise ModuleNotFoundError(name="torch")
    os.chdir(folder)
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    os.environ["PATH"] = os.pathsep.join(folders)


def find() -> Path | None:
    """Return the folder of the pipeline: this folder, or the folder that `init` makes in it."""
    return next((folder for folder in (Path(), OWN_FOLDER) if (folder / PLAN).is_file()), None)


def run_stages(stages: list[str], *, shows_plan: bool = False) -> None:
    """Run stages and their dependencies, if they changed. Exit if a stage fails."""
    check_params(is_shown=shows_plan)
    os.environ["PHOTOFINISH_QUIET"] = "1"  # to `plan`, which DVC runs again
    if status := _repro(stages):
        sys.exit(status)


def stages_before(params: Params, experiments: Iterable[str]) -> list[str]:
    from photofinish.config.networks import published_weights

    chosen = [params.experiments[name] for name in experiments]
    stages = ["plan", *dict.fromkeys(f"split@{experiment.dataset}" for experiment in chosen)]
    if any(published_weights(experiment.model) for experiment in chosen):
        stages.append("download-weights")
    return stages


def run(args: argparse.Namespace) -> None:
    """Run stages, and exit if one fails. Unless some are named, end with the answers."""
    enter()
    from photofinish.commands.init import copy_example
    from photofinish.reporting.answers import read_answers

    if args.example:
        copy_example(args.example)
    check_params()
    asks_dvc = {"--dry", "-i", "--interactive"} & {*args.arguments}
    if status := _repro(args.arguments, shows_dvc=args.verbose or bool(asks_dvc)):
        sys.exit(status)
    if not asks_dvc and all(word.startswith("-") for word in args.arguments):
        kept = "; `git add dvc.lock metrics plots`" if has_git() else ""
        print_answer(
            f"\n{read_answers()}\n"
            f"Next: `photofinish report --open` shows pictures; change a line of "
            f"params.yaml and run `photofinish run`{kept}."
        )


def _repro(arguments: list[str], *, shows_dvc: bool = False) -> int:
    """Run `dvc repro` with these arguments, and return its status.

    DVC works without Git. Unless shown, it prints problems only.
    """
    from dvc.cli import main as dvc
    from dvc.logger import set_loggers_level

    # `dvc init --no-scm` has set it, and `dvc config --unset` shall do so for good.
    is_set = any("no_scm" in file.read_text(encoding="utf-8") for file in _DVC.glob("config*"))
    if not has_git() and not is_set:  # a ZIP without .git, which DVC would refuse
        dvc(["config", "--local", "core.no_scm", "true"])
    if shows_dvc:
        return int(dvc(["repro", *arguments]))
    with set_loggers_level(logging.WARNING), redirect_stdout(StringIO()):
        return int(dvc(["repro", *arguments]))


def check_params(*, is_shown: bool = False) -> None:
    """Exit with the problems in params.yaml, which DVC would read before the stage `plan` runs."""
    output = None if is_shown else subprocess.DEVNULL
    command = [sys.executable, str(PLAN)]
    if status := subprocess.run(command, stdout=output, check=False).returncode:
        sys.exit(status)


def has_git() -> bool:
    """Return True if this folder is in a Git repository."""
    return shutil.which("git") is not None and git_succeeds("rev-parse", "--git-dir")


def show_answers(args: argparse.Namespace) -> None:
    top = Path.cwd()
    enter()
    import webbrowser

    from photofinish.reporting.answers import read_answers

    answers = read_answers()
    page = Path.cwd() / "report/index.html"
    if args.json:
        print(answers.model_dump_json(indent=2))
        return
    if not args.open:
        print_answer(str(answers))
    elif not webbrowser.open(page.as_uri()):
        raise UserError(f"no browser was found here. Open {page}")
    print(f"The report: {page.relative_to(top)}")


def print_answer(text: str) -> None:
    """Print an answer's lines, in colours on a terminal and as they are elsewhere."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in text.splitlines():
        styled = Text(line)
        for pattern, style in _STYLES.items():
            styled.highlight_regex(pattern, style)
        console.print(styled)


def show_runs(args: argparse.Namespace) -> None:
    """Bring MLflow up to date, then become its server, unless the runs are on another server."""
    enter()
    from photofinish.tracking.mlflow_worker import bring_up_to_date

    bring_up_to_date(args.port)
    address = os.environ.get("MLFLOW_TRACKING_URI", "")
    if address.startswith("http"):
        return
    # By default MLflow starts 15 processes (2.3 GB), half of them for language models' judges.
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    # With one worker, Ctrl-C would end in the server's traceback.
    command = [sys.executable, "-m", "mlflow", "ui", "--workers", "2", "--port", str(args.port)]
    store = ["--backend-store-uri", address] if address else []
    sys.stdout.flush()
    os.execv(sys.executable, [*command, *store])  # noqa: S606  # no shell is meant


def record_results(args: argparse.Namespace) -> None:
    enter()
    from photofinish.results.references import record_all

    _evaluate_alone()
    record_all(Path("data/plan/experiments"), Path("results"), Path("reference"), args.machine)


def _evaluate_alone() -> None:
    """Evaluate experiments that only one device has trained. The stage needs both results."""
    from photofinish.config.base import read_plan
    from photofinish.config.experiment import ExperimentPlan
    from photofinish.config.losses_and_metrics import MetricsPlan
    from photofinish.results.records import EVALUATED, MODEL
    from photofinish.results.trained import DEVICE_LABELS

    for file in sorted(Path("data/plan/experiments").glob("*.json")):
        results = Path("results", file.stem)
        models = {device: results / device / MODEL for device in DEVICE_LABELS}
        learned = {device: folder for device, folder in models.items() if folder.is_dir()}
        if len(learned) != 1:
            continue
        from photofinish.data.packed import PackedSplit
        from photofinish.evaluation.evaluate import evaluate, write_evaluation

        data = PackedSplit(Path("data/splits", read_plan(file, ExperimentPlan).dataset))
        metrics = read_plan(Path("data/plan/metrics", file.name), MetricsPlan).metrics
        write_evaluation(evaluate(file.stem, learned, data, metrics), results / EVALUATED)


def record_machine(args: argparse.Namespace) -> None:
    enter()
    from photofinish.machine.fingerprint import Machine
    from photofinish.results.records import write_record

    path = Path("machines", f"{args.name}.json")
    write_record(path, Machine.here())
    print(
        f"Wrote {path}. Commit it, and name it in params.yaml, as in gpu: {{machine: {args.name}}}"
    )
