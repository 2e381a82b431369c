"""`make mutants`: small changes to the code, one at a time, and whether the quick tests about it notice each.

    make mutants MODULE=training/trainer.py    one module
    make mutants MODULE=comparing              a package of them
    make mutants                               training, data, results and comparing: hours

mutmut makes the changes and runs the tests, in a copy of the project under .mutants/. Here is what it leaves open:
which test files are about a module, and which survivors are known. They stand in surviving_mutants.txt, each with its
reason; a survivor that doesn't is an error.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conftest import ROOT, clone_project
from source_imports import SOURCES

PACKAGE = SOURCES / "photofinish"
TESTS = ROOT / "tests"
KNOWN = TESTS / "surviving_mutants.txt"
MUTATED = ("training", "data", "results", "comparing")
_NOT_NOTICED = (0, 5, 33)  # mutmut's exit codes: the tests passed, or none runs the code
_OUT_OF_TIME = (-24, 24, 36, 152, 255)

_SETTINGS = """\
[mutmut]
source_paths = src
only_mutate = {module}
also_copy =
    {others}
pytest_add_cli_args_test_selection =
    {tests}
pytest_add_cli_args =
    -m
    not slow and not gpu
    -p
    no:cacheprovider
timeout_multiplier = 5.0
timeout_constant = 3.0
process_isolation = forkserver
debug = true
use_git_change_detection = false
"""
_IN_OTHER_PROCESSES = """\
import os

# mutmut asks which tests run which function: where a test starts a process in another folder, it has no settings of it.
if os.environ.get("MUTANT_UNDER_TEST") == "stats":
    os.environ["MUTANT_UNDER_TEST"] = ""
"""


@dataclass(frozen=True)
class Tried:
    """The mutants of a module: how many, and the lines that those change which nothing noticed."""

    count: int
    out_of_time: int
    """counted as noticed: their tests didn't end, or the machine was too busy for them to"""
    survivors: list[str]


def main(chosen: str) -> int:
    """Try the mutants of a module or package, or of all four; 1 if any survives that isn't known to."""
    known = _known_survivors()
    wrong, count, noticed = 0, 0, 0
    for module in _modules(chosen):
        name = str(module.relative_to(PACKAGE))
        tried = _try_mutants(module)
        survivors = Counter(tried.survivors)
        unknown = [line for line in survivors if not any(_is_it(each, line) for each in known)]
        gone = [
            each for each in known if each.startswith(f"{name} ") and not any(_is_it(each, line) for line in survivors)
        ]
        count, noticed = count + tried.count, noticed + tried.count - survivors.total()
        late = f", {tried.out_of_time} of them by running out of time" if tried.out_of_time else ""
        print(f"{name}: {tried.count - survivors.total()} of {tried.count} noticed{late}", flush=True)
        for line in unknown:
            print(f"  survives, and is not in {KNOWN.name}: {line}")
        for line in gone:
            print(f"  is noticed, or no longer made; take it out of {KNOWN.name}: {line}")
        wrong += len(unknown)
    print(f"{noticed} of {count} mutants noticed ({noticed / max(count, 1):.0%})")
    return 1 if wrong else 0


def _modules(chosen: str) -> list[Path]:
    if not chosen:
        return [path for package in MUTATED for path in _modules(package)]
    path = PACKAGE / chosen
    if not path.exists():
        raise SystemExit(f"error: MODULE={chosen}: there is no {path.relative_to(ROOT)}")
    return [path] if path.is_file() else sorted(file for file in path.rglob("*.py") if file.name != "__init__.py")


def _known_survivors() -> list[str]:
    known = []
    for line in KNOWN.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            change, separator, reason = line.rpartition("  # ")
            if not separator or not reason:
                raise SystemExit(f"error: {KNOWN.relative_to(ROOT)}: no reason (`  # why`) in the line: {line}")
            known.append(change)
    return known


def _is_it(known: str, change: str) -> bool:
    """Whether a known survivor is this change: in its module, or any (`*`), a piece of the line taken for another."""
    (where, taken, given), (module, before, after) = _parts(known), _parts(change)
    places = [found.start() for found in re.finditer(re.escape(taken), before)]
    return where in ("*", module) and any(before[:at] + given + before[at + len(taken) :] == after for at in places)


def _parts(change: str) -> tuple[str, str, str]:
    """The module, what a mutant takes, and what it gives."""
    module, _, changed = change.partition(" - `")
    taken, _, given = changed.removesuffix("`").partition("` + `")
    return module, taken, given


# -- the tests about a module ----------------------------------------------------------------------


def tests_about(module: Path) -> list[str]:
    """The test files that import a module, themselves, by a helper of theirs or by a fixture that they name; and the
    one that is named after it.

    Where there are none, those of the modules beside it that import it.
    """
    named = f"test_{module.stem}.py"
    package = {_dotted(path): _imports(path.read_text(encoding="utf-8")) for path in module.parent.glob("*.py")}
    about: set[str] = set()
    wider = {_dotted(module)}
    while wider - about:
        about |= wider
        if files := [path for path in sorted(TESTS.glob("test_*.py")) if path.name == named or _reaches(path, about)]:
            return [str(path.relative_to(ROOT)) for path in files]
        wider = {name for name, imported in package.items() if imported & about}
    raise SystemExit(f"error: {module.relative_to(ROOT)}: no test file imports it")


def _reaches(test_file: Path, modules: set[str]) -> bool:
    text = test_file.read_text(encoding="utf-8")
    imported = _imports(text)
    helpers = [TESTS / f"{name}.py" for name in imported if (TESTS / f"{name}.py").is_file() and name != "conftest"]
    return (
        bool(imported & modules)
        or any(re.search(rf"\b{fixture}\b", text) for fixture in _fixtures(frozenset(modules)))
        or any(_reaches(helper, modules) for helper in helpers)
    )


@cache
def _fixtures(modules: frozenset[str]) -> list[str]:
    """Those of conftest.py that import one of the modules when they are asked for."""
    conftest = ast.parse((TESTS / "conftest.py").read_text(encoding="utf-8"))
    functions = [node for node in conftest.body if isinstance(node, ast.FunctionDef)]
    return [function.name for function in functions if _imports(ast.unparse(function)) & modules]


def _dotted(module: Path) -> str:
    return ".".join(module.relative_to(SOURCES).with_suffix("").parts)


@cache
def _imports(source: str) -> frozenset[str]:
    """The names of the modules that a piece of code imports, those of `from package import module` too."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


# -- mutmut ----------------------------------------------------------------------------------------


def _try_mutants(module: Path) -> Tried:
    """Run mutmut over one module, in a fresh copy of the project of its own."""
    folder = ROOT / ".mutants" / module.relative_to(PACKAGE).with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    clone_project(folder)
    others = sorted(path.name for path in folder.iterdir() if path.name not in ("src", ".git", "tests"))
    settings = {"module": module.relative_to(ROOT), "others": _lines(others), "tests": _lines(tests_about(module))}
    (folder / "setup.cfg").write_text(_SETTINGS.format(**settings), encoding="utf-8")
    (folder / "src/sitecustomize.py").write_text(_IN_OTHER_PROCESSES, encoding="utf-8")
    ran = _mutmut(folder, "run")
    meta = folder / "mutants" / module.relative_to(ROOT).with_name(f"{module.name}.meta")
    if (
        not meta.is_file()
        or None in (codes := json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"]).values()
    ):
        told = "\n".join(line for line in ran.stdout.splitlines() if re.match("FAILED|ERROR|E  ", line))
        raise SystemExit(f"error: mutmut stopped on {module.relative_to(ROOT)}:\n{told or ran.stdout}{ran.stderr}")
    survivors = [name for name, code in codes.items() if code in _NOT_NOTICED]
    shown = (_mutmut(folder, "show", name).stdout for name in survivors)
    out_of_time = sum(code in _OUT_OF_TIME for code in codes.values())
    return Tried(len(codes), out_of_time, [f"{module.relative_to(PACKAGE)} {_change(diff)}" for diff in shown])


def _lines(names: Iterable[str]) -> str:
    return "\n    ".join(names)


def _mutmut(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": ""}
    command = [sys.executable, "-c", "from mutmut.__main__ import cli; cli()", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _change(diff: str) -> str:
    """The lines that a mutant takes and gives, in one line, which holds while the function around them changes."""
    changed = [line for line in diff.splitlines() if re.match(r"[-+](?![-+]{2})", line)]
    return " ".join(f"{line[0]} `{line[1:].strip()}`" for line in changed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or [""]))
