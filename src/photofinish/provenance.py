"""Where a result comes from: the project, its commit, its code, and the packages it ran with."""

from __future__ import annotations

import os
import subprocess
import time
from importlib import metadata
from pathlib import Path

import psutil

_PACKAGES = (
    "dvc", "mlflow", "numpy", "pandas", "pydantic", "safetensors", "scikit-learn", "torch", "torchvision",
)  # fmt: skip
_START_TIME_FIELD = 19  # of those after the name in brackets; see proc(5)
_STATE_FOLDER = ".photofinish"


def project_root() -> Path:
    """The project's folder. DVC names it also where it runs a stage in a copy (`dvc exp run --temp`)."""
    return Path(os.environ.get("DVC_ROOT") or Path.cwd()).resolve()


def state_folder() -> Path:
    """Locks and checkpoints: what must survive a stage's end, and is no result."""
    return project_root() / _STATE_FOLDER


def package_versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in _PACKAGES}


def git_commit() -> str | None:
    """The commit that is checked out, marked if the files differ from it; each dvc.lock always does while dvc runs."""
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!*dvc.lock")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}-dirty" if changed else head


def seconds_since_process_start() -> float:
    """From Linux's own record, to a hundredth: psutil adds it to a boot time in whole seconds."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8")
    except OSError:
        return time.time() - psutil.Process().create_time()
    ticks = int(stat.rpartition(")")[2].split()[_START_TIME_FIELD])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _git(*arguments: str) -> str:
    ran = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=10)
    return ran.stdout.strip()
