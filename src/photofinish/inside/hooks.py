"""Hooks in the process of a script that photofinish runs. The script is not edited.

`sitecustomize.py` calls `begin` when Python starts. Torch is not imported before the script imports
it. After the import, a recorder measures the training.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from .recorder import Recorder
from .recorder_files import LineFile
from .without_gpu import failure, map_cuda_to_the_cpu

FOLDER = "PHOTOFINISH_RECORDS"
"""Variable: the folder for measurements."""
SEEDED, MAPS_CUDA = "PHOTOFINISH_SEEDED", "PHOTOFINISH_MAPS_CUDA"
"""Variables: whether the script's random numbers are seeded, and whether cuda means the CPU."""
LOCK = "running.lock"
"""File in the folder that photofinish locks. It is removed when photofinish ends regularly."""
OTHER_LIBRARIES = "jax", "tensorflow", "sklearn"
"""Libraries that train without torch."""
_GRACE_SECONDS, _EXIT_TERMINATED = 10.0, 143


def begin(own_file: str) -> None:
    """Record this process, then run the user's sitecustomize.py, which `own_file` hides."""
    own_folder = str(Path(own_file).parent)
    sys.path[:] = [path for path in sys.path if path != own_folder]
    start()
    hidden = PathFinder.find_spec("sitecustomize")
    if hidden and hidden.loader:
        module = importlib.util.module_from_spec(hidden)
        sys.modules["sitecustomize"] = module
        hidden.loader.exec_module(module)


@functools.cache
def start() -> Recorder | None:
    """Return this process's recorder, or None if nothing is recorded or its rank is not 0."""
    folder = Path(os.environ.get(FOLDER, ""))
    if FOLDER not in os.environ or not folder.is_dir():
        return None
    if fcntl:
        threading.Thread(target=_end_with, args=(folder / LOCK,), daemon=True).start()
    recorder = Recorder(folder) if os.environ.get("RANK", "0") == "0" else None

    def torch_imported() -> None:
        torch = sys.modules["torch"]
        if MAPS_CUDA in os.environ:
            map_cuda_to_the_cpu(torch)
        if recorder:
            recorder.torch_imported()
        if SEEDED in os.environ:
            torch.manual_seed(0)

    calls: dict[str, Callable[[], None]] = {"torch": torch_imported}
    if SEEDED in os.environ:
        random.seed(0)
        calls["numpy"] = lambda: sys.modules["numpy"].random.seed(0)
    if recorder:
        for name in OTHER_LIBRARIES:
            calls[name] = functools.partial(_other_imported, recorder, name)
        ranks = os.environ.get("WORLD_SIZE", "")
        if ranks.isdigit() and "RANK" in os.environ:
            recorder.note(kind="ranks", value=int(ranks))
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # or Hydra hides an error from `failure`
    else:  # a launcher kills rank 0 if another one fails first
        atexit.register(lambda: LineFile(folder).note(kind="failure", value=failure()))
    sys.meta_path.insert(0, _AfterImport(calls))
    return recorder


def _other_imported(recorder: Recorder, name: str) -> None:
    """Note a library whose training can't be seen."""
    recorder.note(kind="other", name=name, at=time.perf_counter())


def _end_with(lock: Path) -> None:
    """End this process once photofinish has died, which unlocks the file but doesn't remove it."""
    with contextlib.suppress(FileNotFoundError), lock.open(encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    if lock.exists():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_SECONDS)
        os._exit(_EXIT_TERMINATED)


class _AfterImport(MetaPathFinder):
    """Calls a function once, after the import of a module, which may have been before."""

    def __init__(self, calls: dict[str, Callable[[], None]]) -> None:
        self._calls = calls
        for name in calls.keys() & sys.modules.keys():
            calls.pop(name)()

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
