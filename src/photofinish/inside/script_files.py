"""Files that a script is made of: its modules, and the settings that it reads before training."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_SETTINGS = ".yaml", ".yml", ".toml", ".ini", ".cfg"


class ScriptFiles:
    """Files below the folder in which the script starts."""

    def __init__(self) -> None:
        """Begin to note the settings that are read."""
        self._folder = Path()
        self._read: set[str] = set()
        with contextlib.suppress(OSError):  # the current folder may be gone
            self._folder = Path.cwd()
        self._open: Any = builtins.open
        builtins.open = io.open = self._note_and_open

    def _note_and_open(self, file: Any, *rest: Any, **named: Any) -> Any:
        name = os.fspath(file) if isinstance(file, (str, os.PathLike)) else ""
        if str(name).endswith(_SETTINGS) and "r" in (*rest, named.get("mode", "r"))[0]:
            with contextlib.suppress(OSError):
                self._read.add(str(Path(name).absolute()))
        return self._open(file, *rest, **named)

    def end(self) -> list[str]:
        """Return the files, and note no more."""
        if builtins.open == self._note_and_open:  # the script may replace it, too
            builtins.open = io.open = self._open
        modules = [each for each in list(sys.modules.values()) if isinstance(each, ModuleType)]
        try:
            found = {vars(module).get("__file__") for module in modules}  # lazy ones have others
            paths = {Path(path).absolute() for path in found | self._read if path}
            below = (path for path in paths if path.is_file() and path.is_relative_to(self._folder))
            return sorted(str(path) for path in below if "site-packages" not in path.parts)
        except Exception:  # noqa: BLE001  # such as of a current folder that is gone
            return []
