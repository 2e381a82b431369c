"""Hooks in the process of a script that `photofinish ask` runs. The script is not edited.

`sitecustomize.py` calls `begin` when Python starts. Torch is not imported before the script imports
it. After the import, a watcher measures the training.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from photofinish.asking.watcher import Watcher
from photofinish.stage.process import end_with

FOLDER, ASKING_PROCESS = "PHOTOFINISH_ASK_FOLDER", "PHOTOFINISH_ASK_PROCESS"
SITECUSTOMIZE = "from photofinish.asking.hooks import begin\nbegin(__file__)\n"
"""Content of a sitecustomize.py in the first folder of PYTHONPATH."""
OTHER_LIBRARIES = "jax", "tensorflow", "sklearn"
"""Libraries that train without torch."""


def begin(own_file: str) -> None:
    """Watch this process, unless its rank is not 0, then run the user's sitecustomize.py.

    `own_file` is the sitecustomize.py that hides the user's. The process ends with
    `photofinish ask`.
    """
    own_folder = str(Path(own_file).parent)
    sys.path[:] = [path for path in sys.path if path != own_folder]
    if ASKING_PROCESS in os.environ:
        end_with([psutil.Process(int(os.environ[ASKING_PROCESS]))])
    if FOLDER in os.environ and os.environ.get("RANK", "0") == "0":
        watcher = Watcher(Path(os.environ[FOLDER]))
        calls = {"argparse": watcher.argparse_imported, "torch": watcher.torch_imported}
        calls |= {name: partial(watcher.other_imported, name) for name in OTHER_LIBRARIES}
        sys.meta_path.insert(0, _AfterImport(calls))
    hidden = PathFinder.find_spec("sitecustomize")
    if hidden and hidden.loader:
        module = importlib.util.module_from_spec(hidden)
        sys.modules["sitecustomize"] = module
        hidden.loader.exec_module(module)


class _AfterImport(MetaPathFinder):
    """Calls a function once, after the import of a module."""

    def __init__(self, calls: dict[str, Callable[[], None]]) -> None:
        self._calls = calls

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> ModuleSpec | None:
        call = self._calls.pop(name, None)
        if call is None:
            return None
        spec = importlib.util.find_spec(name)  # by the other finders
        self._calls[name] = call
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            execute(module)
            if self._calls.pop(name, None):  # to look for a module is not to import it
                call()

        spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec
