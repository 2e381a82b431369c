"""Which source files each stage runs: a stage begins anew when one of them changes, and only then.

A stage runs its script, every module of this package that it imports, directly or through others and whenever it does,
and every one that it starts as a process (`python -m`). What such a process only mirrors is no part of a result, so
`MIRRORS` are left out: a word changed there must not train every network again.

Each stage depends on its own list, which `plan` brings up to date. Listed one by one in dvc.yaml, the same
files made dvc.lock so long that with 15 experiments DVC took 6 s to see that nothing had changed, instead of 1.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from pydantic import RootModel

import photofinish
from photofinish.files import sha256_of_bytes, sha256_of_file

MIRRORS = frozenset({"photofinish.tracking.worker"})
"""started as processes that write nothing but copies of results, into MLflow"""

_PACKAGE = Path(photofinish.__file__).parent
_NEVER_EXECUTED = re.compile(r"^if TYPE_CHECKING:\n(?:(?:[ \t].*)?\n)+", re.MULTILINE)
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(photofinish[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|.*)|import[ \t]+(photofinish[\w.]*))",
    re.MULTILINE,
)
_NAME = re.compile(r"(\w+)(?:\s+as\s+\w+)?")
_START = re.compile(r"""["']-m["'],\s*["'](photofinish[\w.]*)["']""")


class StageCode(RootModel[dict[str, str]]):
    """The sha256 of each file, by its path from where Python finds the package, or of the script's folder."""

    @property
    def sha256(self) -> str:
        """The sha256 of the whole list: another one where any file is another."""
        return sha256_of_bytes(self.model_dump_json().encode())


def stage_code(script: Path) -> StageCode:
    """The code that a stage runs: its script, and all that it runs of this package."""
    found: set[Path] = set()
    todo = [script]
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += _files_run_by(path)
    return StageCode(
        {
            path.relative_to(_PACKAGE.parent if path != script else script.parent.parent).as_posix(): _sha256(path)
            for path in sorted(found)
        }
    )


_sha256 = cache(sha256_of_file)


@cache
def _files_run_by(path: Path) -> set[Path]:
    """Looked up once, for the stages share most of them; by spelling, in a tenth of the time of Python's own parser."""
    source = _NEVER_EXECUTED.sub("", path.read_text(encoding="utf-8"))
    files: set[Path] = set()
    for module, names, plain in _IMPORT.findall(source):
        files.update(_files_of(module or plain), *(_files_of(f"{module}.{name}") for name in _NAME.findall(names)))
    for module in _START.findall(source):
        if module not in MIRRORS:
            files.update(_files_of(module), _files_of(f"{module}.__main__"))
    return files


@cache
def _files_of(name: str) -> tuple[Path, ...]:
    """The module's file and the packages around it, which Python runs first."""
    around, _, _ = name.rpartition(".")
    place = _PACKAGE.parent.joinpath(*name.split("."))
    own = tuple(file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file())
    return (_files_of(around) if around else ()) + own
