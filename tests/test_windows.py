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


AND_INTERRUPTED = """
from photofinish.commands import cli
from photofinish.stage.process import end_group, end_on_sigterm, run_stage
import subprocess, psutil

def main():
    end_on_sigterm()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    end_group(child.pid)
    print(child.wait())
    signal.raise_signal(signal.SIGINT)

sys.argv[1:] = []
cli.main()
run_stage(main)
"""


def test_every_module_imports_help_is_printed_and_an_interrupt_ends_all_that_was_started() -> None:
    paths = [path.relative_to(SOURCES).with_suffix("") for path in SOURCES.rglob("*.py")]
    modules = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    names = " ".join(sorted(name for name in modules if not name.endswith("__main__")))
    command = [sys.executable, "-c", LIKE_WINDOWS + AND_INTERRUPTED, names]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == EXIT_INTERRUPTED, ran.stderr
    assert "photofinish run" in ran.stdout
    assert ran.stdout.endswith("\n-15\n")
