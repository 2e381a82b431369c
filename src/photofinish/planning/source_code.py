"""Source files that each stage imports and reads. It runs again if one changes.

Each stage depends on one file, written by `plan`, that lists them. If dvc.yaml listed them, DVC
would take 6 s instead of 1 s to see that nothing changed in 15 experiments.
"""

from __future__ import annotations

import fnmatch
import re
from functools import cache, partial
from pathlib import Path

from pydantic import RootModel

from photofinish.custom.code_text import sha256_of_code
from photofinish.files import sha256_of_bytes

_PACKAGE = Path(__file__).parent.parent
_SHOWS = tuple(f"photofinish.{each}" for each in ("tracking", "wording", "answer", "reporting"))
"""Modules that only show results: the mirror in MLflow, numbers and names as text, findings.

Only the report depends on them, so they count for `compare` alone.
"""
_FOLDERS = {
    "photofinish.config.compare": "config/tables",
    "photofinish.reporting.page": "reporting/templates",
}
"""Folders of files that a module reads, which imports do not show."""
_BY_NAME = {
    "photofinish.tracking.client": "photofinish.tracking.mlflow_worker",
    "photofinish.data.sources": "photofinish.data.*_source",
}
"""Modules that a module runs or imports by name."""
# Text is searched, because parsing all files takes half a second at each `dvc repro`.
_IMPORT = re.compile(r"^ *(?:from|import) (photofinish[\w.]*)(?: import (\([^)]*\)|.*))?", re.M)
_FOR_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:(?: .*)?\n)+", re.M)


class StageCode(RootModel[dict[str, str]]):
    """SHA-256 of each source file of a stage, by its path: of Python, without comments."""

    @property
    def sha256(self) -> str:
        return sha256_of_bytes(self.model_dump_json().encode())


def stage_code(script: Path) -> StageCode:
    without = () if script.stem == "compare" else _SHOWS
    name = f"{script.parent.name}/{script.name}"
    return StageCode({**_hashes(_imports(script), without), name: _sha256(script)})


@cache
def module_code(module: str) -> StageCode:
    return StageCode(_hashes([module], _SHOWS))


def _hashes(modules: list[str], without: tuple[str, ...]) -> dict[str, str]:
    files, seen, remaining = set(), set(), [*modules]
    while remaining:
        module = remaining.pop()
        path = _modules().get(module)
        if path is None or module in seen or module.startswith(without):
            continue
        seen.add(module)
        files.add(path)
        if folder := _FOLDERS.get(module):
            files.update((_PACKAGE / folder).iterdir())
        remaining += [module.rpartition(".")[0], *_imports(path)]
        remaining += fnmatch.filter(_modules(), _BY_NAME.get(module, ""))
    return {path.relative_to(_PACKAGE.parent).as_posix(): _sha256(path) for path in sorted(files)}


@cache
def _modules() -> dict[str, Path]:
    modules = {}
    for path in _PACKAGE.rglob("*.py"):
        parts = path.relative_to(_PACKAGE.parent).with_suffix("").parts
        modules[".".join(parts).removesuffix(".__init__")] = path
    return modules


@cache
def _imports(file: Path) -> list[str]:
    modules = []
    text = file.read_text(encoding="utf-8").replace(
        "from .", f"from photofinish.{file.parent.name}."
    )
    for module, names in _IMPORT.findall(_FOR_TYPES.sub("", text)):
        modules += [module, *(f"{module}.{name}" for name in re.findall(r"\w+", names))]
    return modules


_sha256 = cache(partial(sha256_of_code, with_docstrings=False))
