"""The freeze: src and benchmarks only shrink, in lines and in statements.

`PHOTOFINISH_UPDATE_SIZE=1 pytest -n 0 tests/test_size.py` rewrites golden/size.json after a
deletion or a move, and refuses a larger sum. The ceiling of tests is lowered by hand.
"""

from __future__ import annotations

import ast
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from conftest import ROOT

GOLDEN = Path(__file__).parent / "golden" / "size.json"
UPDATES = bool(os.environ.get("PHOTOFINISH_UPDATE_SIZE"))
FROZEN = ("src", "benchmarks")
MOST_MOVED = 100
"""A package may be off by so many lines before its row is rewritten, so that mends need none."""


def statements(path: Path) -> int:
    """Count statements other than docstrings, so that longer lines win nothing."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    texts = [
        node
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    return sum(isinstance(node, ast.stmt) for node in nodes) - len(texts)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def package(path: Path) -> str:
    """Return the row of a file: a package of src, or a folder at the top."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[2:-1][:1]) or "photofinish" if parts[0] == "src" else parts[0]


@cache
def measured() -> dict[str, Any]:
    files = {
        folder: sorted((ROOT / folder).rglob("*.py"))
        for folder in ("src", "stages", "tests", "benchmarks")
    }
    rows: dict[str, list[int]] = {}
    for path in (path for paths in files.values() for path in paths):
        row = rows.setdefault(package(path), [0, 0])
        row[0] += len(lines(path))
        row[1] += statements(path)
    modules = [path for path in files["src"] if path.name != "__init__.py"]
    full = [len(line) for path in modules for line in lines(path) if line.strip()]
    return {
        "sums": {
            folder: [
                sum(len(lines(path)) for path in files[folder]),
                sum(statements(path) for path in files[folder]),
            ]
            for folder in FROZEN
        },
        "modules": len(modules),
        "longest module": max(len(lines(path)) for path in modules),
        "mean line": round(sum(full) / len(full), 1),
        "rows": rows,
    }


def larger(now: dict[str, Any], frozen: dict[str, Any]) -> list[str]:
    """Return what is above its frozen number, in words."""
    pairs = {
        f"{folder}, {unit}": (now["sums"][folder][index], frozen["sums"][folder][index])
        for folder in FROZEN
        for index, unit in enumerate(("lines", "statements"))
    } | {name: (now[name], frozen[name]) for name in ("modules", "longest module", "mean line")}
    return [f"{name}: {new}, frozen at {old}" for name, (new, old) in pairs.items() if new > old]


def test_src_and_benchmarks_only_shrink() -> None:
    frozen = json.loads(GOLDEN.read_text())
    now = measured()
    assert not larger(now, frozen), "delete first (CONTRIBUTING.md)"
    if UPDATES:
        ceiling = {"tests at most": frozen["tests at most"]}
        GOLDEN.write_text(json.dumps(ceiling | now, indent=1) + "\n")


def test_the_table_of_sizes_is_that_of_the_packages() -> None:
    frozen = json.loads(GOLDEN.read_text())["rows"]
    now = measured()["rows"]
    assert now.keys() == frozen.keys()
    assert {
        name: row for name, row in now.items() if abs(row[0] - frozen[name][0]) > MOST_MOVED
    } == {}, "PHOTOFINISH_UPDATE_SIZE=1 rewrites the rows"


def test_tests_stay_below_their_ceiling() -> None:
    ceiling = json.loads(GOLDEN.read_text())["tests at most"]
    assert measured()["rows"]["tests"][0] <= ceiling
