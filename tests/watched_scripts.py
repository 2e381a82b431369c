"""Lines as a script's recorder writes them, and scripts that it records."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import warm_python
from conftest import ROOT, run_command

from photofinish.inside.hooks import FOLDER
from photofinish.scripts.script_figures import Figures
from photofinish.scripts.script_lines import Process, WatchedScript


def block(began_at: float, seconds: float, steps: int = 1, **changed: Any) -> list[Any]:
    """Return the line of a block of steps by one optimizer."""
    sums = {
        "steps": [steps],
        "batches": 0,
        "waiting_seconds": 0.0,
        "making_seconds": None,
        "flags": 0,
        "loader": None,
        "began_loader": None,
        "quickest_seconds": seconds / max(1, steps),
        "cpu_seconds": seconds,
        "device_seconds": 0.0,
        "device_steps": 0,
    }
    assert changed.keys() <= sums.keys()
    return [began_at, began_at + seconds, *(sums | changed).values()]


def process_of(step_seconds: Sequence[float], device: str = "cpu", **changed: Any) -> Process:
    """Return a process with a block for each step."""
    process, ended_at = Process(), 0.0
    process.add({"kind": "optimizer", "device": device, "is_named": False})
    for seconds in step_seconds:
        process.add(block(ended_at, seconds, **changed))
        ended_at += seconds
    return process


def in_epochs(step_seconds: Sequence[float]) -> Process:
    """Return a process with epochs of 20 steps, a block for each step."""
    process, ended_at = process_of([]), 0.0
    process.add({"kind": "loader", "loader": 0, "batches": 20, "workers": 0, "is_named": False})
    for step, seconds in enumerate(step_seconds):
        began = None if step % 20 else 0
        process.add(block(ended_at, seconds, batches=1, loader=0, began_loader=began))
        ended_at += seconds
    return process


def figures_of(process: Process | None) -> Figures:
    assert process
    figures = process.figures()
    assert figures
    return figures


def recorded(
    folder: Path, script: str, *, is_warm: bool = True, **variables: str
) -> tuple[Process, str]:
    """Return what `photofinish.steps` recorded of a script, and what it printed."""
    lines = folder / "lines"
    lines.mkdir(exist_ok=True)
    own = {FOLDER: str(lines), "PYTHONPATH": str(ROOT / "src")} | variables
    (folder / "mine.py").write_text(script, encoding="utf-8")
    python = warm_python.executable() if is_warm else sys.executable
    ran = run_command([python, "mine.py"], folder, os.environ | own)
    watched = WatchedScript(lines)
    watched.read()
    assert watched.process
    return watched.process, ran.stdout
