"""`photofinish init`, `photofinish new` and examples: the first files of a user's repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from photofinish.commands.pipeline import PARAMS, PLAN, has_git
from photofinish.config.base import is_name
from photofinish.errors import ConfigError
from photofinish.files import OWN_FOLDER
from photofinish.git import git_succeeds
from photofinish.wording import unknown_name

_PACKAGE = Path(__file__).parent.parent
FIRST_PARAMS = Path(__file__).parent / PARAMS
"""The params.yaml that `init` writes."""
_COPIED = ("dvc.yaml", "stages/*.py", "reference/README.md")
_PLOTS = Path(".dvc/plots")
_MADE = (
    *("data/plan", "data/raw", "data/splits", "data/weights"),
    *("results", "report", "metrics", "plots"),
)
"""Outputs of stages, which DVC deletes before a stage runs."""
_IGNORED_BY_GIT = (
    *("/.photofinish/", "/data/plan/", "/data/raw/", "/data/splits/", "/data/weights/"),
    *("/results/", "/report/", "/mlruns/", "/mlflow.db*", "/dvc_plots/", "__pycache__/"),
)
_IGNORED_BY_DVC = ("/.photofinish", "/mlruns", ".venv", "venv")
_WITHOUT_SCRIPTS = frozenset({"build", "dist", "node_modules", "site-packages", "test", "tests"})
_TRAINS = re.compile(r"\.backward\(.*\.step\(|Trainer\(.*\.(fit|train)\(", re.S)
"""A training's loop, or a call of Lightning's Trainer or Hugging Face's."""
_RUNS = re.compile(r"^(if .*__name__|for |while |with |[\w.]+\()", re.M)
"""A statement of a file that does something when it is run."""


def init(example_name: str | None = None) -> None:
    """Write the pipeline and a params.yaml into the current folder, or into a new subfolder."""
    example = find_example(example_name) if example_name else None
    folder = _free_folder()
    scripts = [] if example else find_scripts(Path())
    _set_up_dvc()
    source = pipeline_files()
    for path in chain.from_iterable(map(source.glob, _COPIED)):
        _copy(path, folder / path.relative_to(source))
    for path in (source / _PLOTS).iterdir():
        if not (_dvc_root() / _PLOTS / path.name).exists():
            _copy(path, _dvc_root() / _PLOTS / path.name)
    write_example(example or FIRST_PARAMS, folder)
    if scripts:
        text = _with_scripts((folder / PARAMS).read_text(encoding="utf-8"), scripts, folder)
        (folder / PARAMS).write_text(text, encoding="utf-8")
    _add_lines(folder / ".gitignore", _IGNORED_BY_GIT)
    _add_lines(folder / ".dvcignore", _IGNORED_BY_DVC)

    print(f"Wrote dvc.yaml, stages/, reference/ and params.yaml into {folder.resolve()}")
    if not has_git():
        print(
            "This folder isn't a Git repository, so DVC runs without one. To change that, run "
            "`git init; dvc config --unset core.no_scm`."
        )
    if scripts:
        print(
            f"params.yaml runs {scripts[0]} as it is. For an answer in about a minute:\n"
            f"  photofinish ask python {scripts[0].as_posix()}\n"
            f"Next: `photofinish run` runs it to the end, on each device."
        )
    elif example:
        print(
            f"params.yaml is the example {example_name}: "
            f"its first lines say what it needs.\n"
            f"Next: photofinish run"
        )
    else:
        print(
            "params.yaml trains a small built-in network on 8x8 images of digits, "
            "as an example.\n"
            "Next: name your network and data in params.yaml, then run: photofinish run"
        )


def write_network(file: str) -> None:
    """Copy the template of a custom network, and print the settings for params.yaml."""
    if not re.fullmatch(r"\S+\.py", file):
        raise ConfigError(f"{file}: name a Python file, as in photofinish new net.py")
    if Path(file).exists():
        raise ConfigError(f"{file} exists: choose another name, as in photofinish new net.py")
    _copy(pipeline_files() / "examples/my_model.py", Path(file))
    folder = OWN_FOLDER if (OWN_FOLDER / PLAN).is_file() else Path()
    print(f"Wrote {file}. Add this below experiments in params.yaml, then run `photofinish run`:")
    print("  mine:\n    dataset: digits\n    model:")
    path = Path(os.path.relpath(file, folder)).as_posix()
    path = path if path.startswith("../") else f"./{path}"
    print(f"      name: {path}:Net\n      width: 32")


def pipeline_files() -> Path:
    """Return the folder with the files to copy, in a wheel or at the top of this repository."""
    packaged = _PACKAGE / "pipeline"
    return packaged if packaged.is_dir() else _PACKAGE.parent.parent


def find_example(name: str) -> Path:
    examples = {path.stem: path for path in _examples()}
    if name not in examples:
        raise ConfigError(f"--example {name}: {unknown_name('example', name, list(examples))}")
    return examples[name]


def write_example(example: Path, folder: Path) -> None:
    """Write an example as params.yaml, and those files of its code that are missing."""
    shutil.copyfile(example, folder / PARAMS)
    code = example.with_suffix("")
    for path in code.glob("*.py"):
        target = folder / "examples" / code.name / path.name
        if not target.exists():
            _copy(path, target)


def copy_example(name: str) -> None:
    """Write an example over params.yaml, unless that would overwrite a user's own."""
    example = find_example(name)
    if PARAMS.exists() and not _is_shipped():
        raise ConfigError(
            f"{PARAMS} is your own, and --example would overwrite it: move it away, "
            f"or run `photofinish init --example {name}` in another folder"
        )
    write_example(example, Path())
    print(f"{PARAMS} is now the example {name}")


def _examples() -> list[Path]:
    return sorted((pipeline_files() / "examples").glob("*.yaml"))


def _is_shipped() -> bool:
    """Return True if params.yaml is an example, or what `init` or a clone of this project has."""
    text = PARAMS.read_text(encoding="utf-8")
    if any(path.read_text(encoding="utf-8") == text for path in (*_examples(), FIRST_PARAMS)):
        return True
    is_clone = Path("src/photofinish/commands", PARAMS).is_file()
    return is_clone and git_succeeds("diff", "--quiet", "HEAD", "--", str(PARAMS))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _free_folder() -> Path:
    """Return the current folder, or a new subfolder if some of the files' names are taken."""
    if PLAN.is_file() or (OWN_FOLDER / PLAN).is_file():
        raise ConfigError("the pipeline is already here: start it with photofinish run")
    names = ("dvc.yaml", str(PARAMS), "stages", "reference", *_MADE)
    if not (taken := [name for name in names if Path(name).exists()]):
        return Path()
    if OWN_FOLDER.exists():
        names_here = ", ".join([*taken, f"{OWN_FOLDER}/"])
        raise ConfigError(
            f"nothing was written, because these already exist: {names_here}. Use another folder"
        )
    print(f"This folder has its own {', '.join(taken)}, so the pipeline goes to {OWN_FOLDER}/")
    return OWN_FOLDER


def _set_up_dvc() -> None:
    """Run `dvc init` unless this folder is in a DVC repository."""
    from dvc.cli import main as dvc

    if (_dvc_root() / ".dvc").is_dir():
        return
    options = [] if has_git() else ["--no-scm"]
    if not options and not Path(".git").exists():
        options = ["--subdir"]
    if status := dvc(["init", "--quiet", *options]):
        sys.exit(status)
    for key in ("core.analytics", "core.check_update"):
        dvc(["config", key, "false"])
    if has_git():
        subprocess.run(["git", "add", ".dvc/config"], check=False)


def _add_lines(file: Path, lines: Iterable[str]) -> None:
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if text and not text.endswith("\n"):
        text += "\n"
    missing = [line for line in lines if line not in text.splitlines()]
    file.write_text(text + "".join(f"{line}\n" for line in missing), encoding="utf-8")


def _dvc_root() -> Path:
    """Return the folder of DVC's repository, or the current folder if there is none."""
    current = Path.cwd()
    folders = current, *current.parents
    return next((folder for folder in folders if (folder / ".dvc").is_dir()), current)


def _with_scripts(text: str, scripts: list[Path], folder: Path) -> str:
    """Return params.yaml with a section of scripts. What trains a network becomes a comment."""
    lines: list[str] = []
    is_comment = False
    for line in text.splitlines():
        if line and not line.startswith(("#", " ")):
            is_comment = line.startswith(("defaults:", "datasets:", "experiments:"))
        if line.startswith("defaults:"):
            lines.append("# To train a network instead of the script, uncomment these sections:")
        if line.startswith("compare:"):
            lines += _script_lines(scripts, folder)
        lines.append(f"# {line}".rstrip() if is_comment and line else line)
    return "\n".join(lines) + "\n"


def _script_lines(scripts: list[Path], folder: Path) -> Iterator[str]:
    first, *others = scripts
    enter = "" if folder == Path() else f"cd {os.path.relpath('.', folder)} && "
    path = Path(os.path.relpath(first, folder)).as_posix()
    yield "scripts:                       # run as they are, once on each device"
    yield f"  {first.stem if is_name(first.stem) else 'mine'}:"
    yield f"    command: {enter}python {first.as_posix()}"
    yield f"    deps: [{path}]   # with what it imports; add the data that it reads"
    yield "    # epochs: 200              # of the whole job, if the command trains fewer"
    yield "    # metrics: metrics.json    # numbers that it writes: the report compares them"
    yield "    # If its epochs can't be seen, write: for batch in photofinish.steps(loader)"
    yield from (f"    # or python {other.as_posix()}" for other in others[:5])
    yield ""


def find_scripts(folder: Path) -> list[Path]:
    """Return the files to run for a training: they have its loop, or import a file that has."""
    texts = {file: file.read_text(encoding="utf-8", errors="replace") for file in _files(folder)}
    loops = {file for file, text in texts.items() if _TRAINS.search(text)}
    imported = {file.stem for file in loops if not _RUNS.search(texts[file])}
    scripts = []
    for file, text in texts.items():
        imports = " ".join(re.findall(r"^ *(?:from|import) .*", text, re.M))
        has_loop = file in loops or bool(imported & {*re.findall(r"\w+", imports)})
        if has_loop and _RUNS.search(text):
            scripts.append(file)
    return sorted(scripts, key=lambda file: (len(file.parts), not file.stem.startswith("train")))


def _files(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name not in _WITHOUT_SCRIPTS
            and not name.startswith(".")
            and not Path(here, name, "pyvenv.cfg").is_file()
        )
        yield from (Path(here, name) for name in sorted(files) if name.endswith(".py"))
