"""`photofinish init` and `photofinish new`: the first files of a user's repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Template

from photofinish.commands.found_network import (
    FoundNetwork,
    find_networks,
    find_scripts,
    parse_files,
)
from photofinish.commands.pipeline import PARAMS, PLAN, has_git
from photofinish.config.base import is_name
from photofinish.errors import ConfigError
from photofinish.files import OWN_FOLDER

_PACKAGE = Path(__file__).parent.parent
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


def init() -> None:
    """Write the pipeline and a params.yaml into the current folder, or into a new subfolder."""
    folder = _free_folder()
    trees = parse_files(Path())
    networks, scripts = find_networks(trees), find_scripts(trees)
    _set_up_dvc()
    for path in _copied_files():
        _copy(_pipeline() / path, folder / path)
    for path in (_pipeline() / _PLOTS).iterdir():
        if not (_dvc_root() / _PLOTS / path.name).exists():
            _copy(path, _dvc_root() / _PLOTS / path.name)
    template = Template((Path(__file__).parent / PARAMS).read_text(encoding="utf-8"))
    text = template.substitute(experiment=_experiment(networks, folder))
    if scripts:
        text = _with_scripts(text, scripts, folder)
    (folder / PARAMS).write_text(text, encoding="utf-8")
    _add_lines(folder / ".gitignore", _IGNORED_BY_GIT)
    _add_lines(folder / ".dvcignore", _IGNORED_BY_DVC)

    print(f"Wrote dvc.yaml, stages/, reference/ and params.yaml into {folder.resolve()}")
    if not scripts:
        trained = _name(networks[0], folder) if networks else "a small built-in network"
        print(f"params.yaml trains {trained} on 8x8 images of digits, as an example.")
    if not has_git():
        print(
            "There is no Git repository here, so DVC has none to keep its files in. For one, run "
            "`git init; dvc config --unset core.no_scm`."
        )
    if scripts:
        print(f"params.yaml runs {scripts[0]} as it is. An answer in a minute, before that:")
        print(f"  photofinish ask python {scripts[0].as_posix()}")
        print("Next: `photofinish run` runs it to its end, on each device.")
    else:
        print("Next: name your data in params.yaml if it is another, then: photofinish run")


def write_network(file: str) -> None:
    """Copy the template of a custom network, and print the settings for params.yaml."""
    if not re.fullmatch(r"\S+\.py", file):
        raise ConfigError(f"{file}: name a Python file, as in photofinish new net.py")
    if Path(file).exists():
        raise ConfigError(f"{file} exists: choose another, as in photofinish new net.py")
    _copy(_pipeline() / "examples/my_model.py", Path(file))
    folder = OWN_FOLDER if (OWN_FOLDER / PLAN).is_file() else Path()
    print(f"Wrote {file}. Add to params.yaml, below experiments, then run `photofinish run`:")
    print("  mine:\n    dataset: digits\n    model:")
    print(f"      name: {_path(Path(file), folder)}:Net\n      width: 32")


def _pipeline() -> Path:
    """Return the folder with the files to copy, in a wheel or at the top of this repository."""
    packaged = _PACKAGE / "pipeline"
    return packaged if packaged.is_dir() else _PACKAGE.parent.parent


def _copied_files() -> Iterator[Path]:
    for pattern in _COPIED:
        yield from (path.relative_to(_pipeline()) for path in _pipeline().glob(pattern))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _free_folder() -> Path:
    """Return the current folder, or a new subfolder if some of the files' names are taken."""
    if PLAN.is_file() or (OWN_FOLDER / PLAN).is_file():
        raise ConfigError("the pipeline is here already: photofinish run")
    names = ("dvc.yaml", str(PARAMS), "stages", "reference", *_MADE)
    if not (taken := [name for name in names if Path(name).exists()]):
        return Path()
    if OWN_FOLDER.exists():
        names_here = ", ".join([*taken, f"{OWN_FOLDER}/"])
        raise ConfigError(f"nothing was written, since these exist: {names_here}")
    print(f"This folder has its own {', '.join(taken)}: the pipeline goes to {OWN_FOLDER}/")
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
    """Append the lines that a file lacks."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if text and not text.endswith("\n"):
        text += "\n"
    missing = [line for line in lines if line not in text.splitlines()]
    file.write_text(text + "".join(f"{line}\n" for line in missing), encoding="utf-8")


def _dvc_root() -> Path:
    """Return the folder of DVC's repository, or the current folder if there is none."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".dvc").is_dir()), here)


def _path(file: Path, folder: Path) -> str:
    """Return a file's path relative to params.yaml, as users write it there."""
    path = Path(os.path.relpath(file, folder)).as_posix()
    return path if path.startswith("../") else f"./{path}"


def _name(network: FoundNetwork, folder: Path = Path()) -> str:
    return f"{_path(network.file, folder)}:{network.name}"


def _with_scripts(text: str, scripts: list[Path], folder: Path) -> str:
    """Return params.yaml with a section of scripts. What trains a network becomes a comment."""
    lines: list[str] = []
    is_comment = False
    for line in text.splitlines():
        if line and not line.startswith(("#", " ")):
            is_comment = line.startswith(("defaults:", "datasets:", "experiments:"))
        if line.startswith("defaults:"):
            lines.append("# To train a network, not the script below, uncomment these sections:")
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
    yield "    # For its epochs and causes, in its loop: for batch in photofinish.steps(loader)"
    yield from (f"    # or python {other.as_posix()}" for other in others[:5])
    yield ""


def _experiment(networks: list[FoundNetwork], folder: Path) -> str:
    """Return an experiment for params.yaml, with the first network found."""
    if not networks:
        return (
            "  digits-cnn:                  # `photofinish new` writes a network of your own\n"
            "    dataset: digits\n"
            "    model: {name: cnn, channels: [32, 64], hidden: [128]}\n"
        )
    first, *others = networks
    lines = [
        f"  {first.name if is_name(first.name) else 'mine'}:",
        "    dataset: digits",
        "    model:",
        f"      name: {_name(first, folder)}",
    ]
    for argument in first.required:
        lines.append(f"      # {argument}: ...   # {first.name} has no default for it")
    lines += [f"      # or {_name(other, folder)}" for other in others[:5]]
    return "\n".join(lines) + "\n"
