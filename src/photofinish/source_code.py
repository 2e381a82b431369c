"""Which source files each stage runs: a stage begins anew when one of them changes, and only then.

Each stage depends on its own list, which `plan` brings up to date. Listed one by one in dvc.yaml, the same
files made dvc.lock so long that with 15 experiments DVC took 6 s to see that nothing had changed, instead of 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pydantic import RootModel

import photofinish
from photofinish.files import sha256_of_file

_PACKAGE = Path(photofinish.__file__).parent
_NEVER_EXECUTED = re.compile(r"^if TYPE_CHECKING:\n(?:(?:[ \t].*)?\n)+", re.MULTILINE)
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(photofinish[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|.*)|import[ \t]+(photofinish[\w.]*))",
    re.MULTILINE,
)
_NAME = re.compile(r"(\w+)(?:\s+as\s+\w+)?")


class StageCode(RootModel[dict[str, str]]):
    """The sha256 of each file, by its path from where Python finds the package, or of the script's folder."""


def stage_code(script: Path) -> StageCode:
    """The script and all of this package that it imports, directly or through others, whenever it runs."""
    found: set[Path] = set()
    todo = [script]
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += _imported_files(path)
    return StageCode({_label(path, script): _sha256(path) for path in sorted(found)})


@cache
def _imported_files(path: Path) -> set[Path]:
    """Looked up once, for the stages share most of them."""
    return {file for name in _imported_names(path) for file in _files_of(name)}


_sha256 = cache(sha256_of_file)


def _imported_names(path: Path) -> Iterator[str]:
    """Of the project's own modules. By their spelling, which takes a tenth of the time of Python's own parser."""
    for module, names, plain in _IMPORT.findall(_NEVER_EXECUTED.sub("", path.read_text(encoding="utf-8"))):
        yield module or plain
        yield from (f"{module}.{name}" for name in _NAME.findall(names))


@cache
def _files_of(name: str) -> tuple[Path, ...]:
    """The module's file and the packages around it, which Python runs first."""
    around, _, _ = name.rpartition(".")
    place = _PACKAGE.parent.joinpath(*name.split("."))
    own = tuple(file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file())
    return (_files_of(around) if around else ()) + own


def _label(path: Path, script: Path) -> str:
    return path.relative_to(_PACKAGE.parent if path != script else script.parent.parent).as_posix()
