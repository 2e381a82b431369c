"""Packages import only those before them, and no more than a machine needs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest
from source_imports import ROOT, SOURCES, imported_modules

from photofinish.errors import EXIT_INTERRUPTED

PACKAGE = SOURCES / "photofinish"
ORDER = (
    *("errors", "wording", "nested", "files", "git", "inside", "stage", "custom", "config"),
    *("machine", "data", "models", "results", "planning", "training"),
    *("tracking", "runs", "measure", "evaluation", "answer", "scripts", "reporting", "remote"),
    *("gate", "commands", "__main__"),
)
# Modules, and packages that they must do without.
RUNS_WITHOUT = {
    "the trainer": (
        "models.registry results training.batches "
        "training.failures training.input_paths training.step training.world "
        "training.torch_device training.trainer",
        "pydantic mlflow dvc pandas sklearn safetensors matplotlib rich psutil pynvml PIL",
    ),
    "what only reads files": (
        "answer.comparison answer.renting reporting.sentences config.loader data.local_files "
        "data.packed machine.fingerprint machine.load models.weights_download "
        "planning.plan stage.process reporting.report results.records results.references runs.run "
        "runs.stage tracking.client",
        "torch torchvision",
    ),
    "the stages that train and measure": (
        "runs.stage runs.train runs.views measure.measure_job measure.measure "
        "reporting.extrapolated",
        "dvc mlflow pandas sklearn scipy matplotlib jinja2 yaml ruamel requests torchmetrics "
        "sqlalchemy alembic cloudpickle",
    ),
}
IMPORT_WITHOUT = """
import importlib, sys
missing, modules = (argument.split() for argument in sys.argv[1:])

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Missing())
for module in modules:
    try:
        importlib.import_module(f"photofinish.{module}")
    except ImportError as error:
        print(f"{module}: {error}")
"""


def failing_imports(modules: str, missing: str) -> str:
    command = [sys.executable, "-c", IMPORT_WITHOUT, missing, modules]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("what", RUNS_WITHOUT)
def test_modules_import_without_packages_that_a_machine_may_lack(what: str) -> None:
    assert failing_imports(*RUNS_WITHOUT[what]) == ""


BEFORE_THE_FIRST_LINE = """
import sys
from photofinish.commands import ask_options
from photofinish.commands.cli import main
ask_options.print_start = lambda _: print(*{"numpy", "pydantic", "rich", "ruamel"} & {*sys.modules})
main()
"""


def test_the_first_line_of_ask_waits_for_no_slow_import(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BEFORE_THE_FIRST_LINE, "ask", "--epochs", "3", "no-program"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.stdout == "\n", ended.stderr
    assert "can't run no-program" in ended.stderr


def test_a_missing_package_is_noticed() -> None:
    assert failing_imports("results.records", "pydantic").startswith("results.records: ")


def test_answers_are_computed_from_jobs_alone() -> None:
    """Only results/ knows the records of a job and the settings of an experiment."""
    records = {"config.experiment", "results.records", "results.measured", "results.references"}
    forbidden = {f"photofinish.{module}" for module in records}
    for path in (PACKAGE / "answer").glob("*.py"):
        assert forbidden.isdisjoint(imported_modules(path)), path


def test_no_two_modules_and_no_two_types_have_one_name() -> None:
    paths = [path for path in SOURCES.rglob("*.py") if path.name != "__init__.py"]
    count = Counter(path.name for path in paths)
    for path in paths:
        text = path.read_text(encoding="utf-8")
        count.update(re.findall(r"^(?:class |(?=\w+ = Literal))(\w+)", text, re.MULTILINE))
    assert [name for name, times in count.items() if times > 1] == []


def test_no_package_imports_one_that_comes_after_it() -> None:
    def package_of(path: Path) -> str:
        return path.relative_to(PACKAGE).parts[0].removesuffix(".py")

    assert set(ORDER) == {
        package_of(path)
        for path in PACKAGE.iterdir()
        if path.name not in ("__init__.py", "__pycache__")
    }
    upwards = [
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in PACKAGE.rglob("*.py")
        for module in imported_modules(path)
        if module.startswith("photofinish.")
        and ORDER.index(module.split(".")[1]) > ORDER.index(package_of(path))
    ]
    assert upwards == []


NOT_FOR_OUTPUTS = r"photofinish\.(answer\.(?!record)|results\.(records|measured|job)|config\.exp)"


def test_outputs_read_answers_by_their_record_alone() -> None:
    paths = {*(PACKAGE / "reporting").glob("*.py")}
    paths.remove(PACKAGE / "reporting/extrapolated.py")  # a line before there is any answer
    modules = {module for path in paths for module in imported_modules(path)}
    assert [module for module in modules if re.match(NOT_FOR_OUTPUTS, module)] == []


providers_of_packages = cache(packages_distributions)


def undeclared(folders: tuple[str, ...], requirements: list[str]) -> set[str]:
    """Return the packages that are imported in the folders and that no requirement names."""
    declared = {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in requirements}
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    own = {"photofinish", "benchmarks", *(path.stem for path in files)}
    own |= {path.parent.name for path in files}
    imported = {module.partition(".")[0] for path in files for module in imported_modules(path)}
    providers = providers_of_packages()
    return {
        name
        for name in imported - own - sys.stdlib_module_names
        if not {one.lower().replace("_", "-") for one in providers.get(name, [name])} & declared
    }


def test_every_imported_package_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed, groups = project["project"]["dependencies"], project["dependency-groups"]
    extras = project["project"]["optional-dependencies"]
    assert undeclared(("src", "stages"), [*needed, *chain.from_iterable(extras.values())]) == set()
    for_tests = [*needed, *extras["pipeline"], *groups["dev"]]
    assert undeclared(("tests", "benchmarks", "examples"), for_tests) == set()
    assert "pydantic" in undeclared(("src",), [])


# Other packages have code of their own for Windows, so they keep what Linux has.
LIKE_WINDOWS = """
import builtins, importlib, os, signal, sys
imported = builtins.__import__

def without_posix(name, scope=None, *rest, **named):
    importer = (scope or {}).get("__name__", "")
    if importer.startswith("photofinish") and name in ("fcntl", "resource", "pwd", "termios"):
        raise ModuleNotFoundError(f"{importer} imports {name}")
    return imported(name, scope, *rest, **named)

builtins.__import__ = without_posix
for module in sys.argv[1].split():
    importlib.import_module(module)
for owner, name in ((signal, "setitimer"), (signal, "SIGALRM"), (os, "killpg"), (os, "sysconf")):
    delattr(owner, name)

from photofinish.commands import cli
from photofinish.stage.process import end_group, end_on_sigterm, run_stage
import subprocess, psutil

def main():
    end_on_sigterm()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    end_group(child.pid)
    print(child.wait())
    signal.raise_signal(signal.SIGINT)

sys.argv[1:] = []
cli.main()
run_stage(main)
"""


def test_as_on_windows_all_modules_import_and_an_interrupt_ends_what_was_started() -> None:
    paths = [path.relative_to(SOURCES).with_suffix("") for path in SOURCES.rglob("*.py")]
    modules = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    names = " ".join(sorted(name for name in modules if not name.endswith("__main__")))
    command = [sys.executable, "-c", LIKE_WINDOWS, names]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == EXIT_INTERRUPTED, ran.stderr
    assert "usage: photofinish COMMAND" in ran.stdout
    assert ran.stdout.endswith("\n-15\n")
