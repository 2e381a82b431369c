"""Files of this project that a script imports, directly or through others."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src"


def transitive_sources(script: Path, without: tuple[str, ...] = ()) -> list[str]:
    """Return the script and every file under src/ that it imports, relative to the root.

    Leave out files whose path begins with one of `without`, and what only they import.
    """
    sources: set[Path] = set()
    queue = [script]
    while queue:
        path = queue.pop()
        is_left_out = path.relative_to(ROOT).as_posix().startswith(without) if without else False
        if path not in sources and not is_left_out:
            sources.add(path)
            queue += [file for name in imported_modules(path) for file in _files_of(name)]
    return sorted(str(path.relative_to(ROOT)) for path in sources)


def imported_modules(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports when it runs."""
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            module = f"photofinish.{path.parent.name}." * node.level + node.module
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _files_of(name: str) -> Iterator[Path]:
    """Yield the module's file and those of the packages around it."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        path = SOURCES.joinpath(*parts[:end])
        files = (path / "__init__.py", path.with_suffix(".py"))
        yield from (file for file in files if file.is_file())


if __name__ == "__main__":
    print("\n".join(transitive_sources(Path(sys.argv[1]).resolve())))
