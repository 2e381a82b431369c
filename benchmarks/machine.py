"""Facts of the machine."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "torchvision", "numpy", "pillow")


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe(threads: int) -> dict[str, str]:
    return {
        "processor": _processor(),
        "cores": str(cores()),
        "threads": str(threads),
        "load average at the end": f"{os.getloadavg()[0]:.1f}",
        "Python": platform.python_version(),
        **{name: version for name in PACKAGES if (version := _version(name))},
    }


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        for line in facts.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
