"""Examples of params.yaml, which `photofinish init` and `photofinish run` write."""

from __future__ import annotations

import shutil
from pathlib import Path

from photofinish.commands.pipeline import PARAMS
from photofinish.errors import ConfigError
from photofinish.git import git_succeeds
from photofinish.wording import unknown_name

_PACKAGE = Path(__file__).parent.parent
FIRST_PARAMS = Path(__file__).parent / PARAMS
"""The params.yaml that `init` writes."""


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
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


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
