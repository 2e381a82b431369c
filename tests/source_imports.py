"""Which of the project's files a script imports, directly or through others, whenever it runs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src"


def transitive_sources(script: Path) -> list[str]:
    """The script and every file under src/ that it imports, relative to the root, sorted."""
    found: set[Path] = set()
    todo = [script]
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += [file for name in imported_modules(path) for file in _files_of(name)]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def imported_modules(path: Path) -> Iterator[str]:
    for node in _run_time_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those below `if TYPE_CHECKING`: they are never executed."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _run_time_nodes(child)


def _files_of(name: str) -> Iterator[Path]:
    """The module's file and the packages around it, which Python runs first."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        place = SOURCES.joinpath(*parts[:end])
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file.is_file():
                yield file


if __name__ == "__main__":
    print("\n".join(transitive_sources(Path(sys.argv[1]).resolve())))
