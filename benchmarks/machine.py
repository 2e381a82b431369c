"""Facts of the machine."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from photofinish.machine.host import allowed_cores, cpu_facts

PACKAGES = ("torch", "torchvision", "numpy", "pillow")


def cores() -> int:
    return allowed_cores(cpu_facts())


def describe(threads: int) -> dict[str, str]:
    return {
        "processor": cpu_facts().model,
        "cores": str(cores()),
        "threads": str(threads),
        "load average at the end": f"{os.getloadavg()[0]:.1f}",
        "Python": platform.python_version(),
        **{name: metadata.version(name) for name in PACKAGES},
    }
