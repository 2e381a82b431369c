"""What Windows lacks is missed by nothing that it could do without. No test runs there yet."""

from __future__ import annotations

import subprocess
import sys

from source_imports import SOURCES

from photofinish.errors import EXIT_INTERRUPTED

# Other packages have code of their own for Windows, so they keep what Linux has.
LIKE_WINDOWS = """
import builtins, importlib, os, signal, sys
imported = builtins.__import__

def without_posix(name, scope=None, *rest, **named):
    importer = (scope or {}).get("__name__", "")
    if importer.startswith("photofinish") and name in ("fcntl", "resource", "pwd", "termios"):
        raise ModuleNotFoundError(f"{importer} imports {name}")
    return imported(name, scope, *rest, **named)

builtins.__import__ = without_posix
for module in sys.argv[1].split():
    importlib.import_module(module)
for owner, name in ((signal, "setitimer"), (signal, "SIGALRM"), (os, "killpg"), (os, "sysconf")):
    delattr(owner, name)
"""


def like_windows(then: str) -> subprocess.CompletedProcess[str]:
    """Import every module as on Windows, then run some code."""
    paths = [path.relative_to(SOURCES).with_suffix("") for path in SOURCES.rglob("*.py")]
    modules = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    names = " ".join(sorted(name for name in modules if not name.endswith("__main__")))
    command = [sys.executable, "-c", LIKE_WINDOWS + then, names]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_module_imports_and_the_help_is_printed() -> None:
    ran = like_windows("from photofinish.commands.cli import main\nsys.argv[1:] = []\nmain()")
    assert ran.returncode == 0, ran.stderr
    assert "photofinish run" in ran.stdout


def test_an_interrupted_stage_ends_and_what_it_started_does_too() -> None:
    ran = like_windows("""
from photofinish.stage.process import end_group, end_on_sigterm, run_stage
import subprocess, psutil

def main():
    end_on_sigterm()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    end_group(child.pid)
    print(child.wait())
    signal.raise_signal(signal.SIGINT)

run_stage(main)
""")
    assert ran.returncode == EXIT_INTERRUPTED, ran.stderr
    assert ran.stdout == "-15\n"
