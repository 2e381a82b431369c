"""How much main memory this process may use: the machine's, or less if a control group (a container, say) limits it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from photofinish.hardware.cpus import read_or_empty

_MEMORY_FACTS = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
"""of control groups version 2 and 1"""
_USED_KEYS = ("anon", "total_rss")
"""what can't be given back: files in the page cache can"""


def available_memory_bytes() -> int:
    """What is free now, within the tightest of all limits."""
    import psutil  # which what asks for the total alone does without

    left_bytes = (max(0, limit_bytes - _used_bytes(folder)) for folder, limit_bytes in _limits())
    return min([psutil.virtual_memory().available, *left_bytes])


def total_memory_bytes() -> int:
    return min([_machine_bytes(), *(limit_bytes for _, limit_bytes in _limits())])


def _machine_bytes() -> int:
    """By Linux's own file, in which a container may find its limit, and nowhere else."""
    found = re.search(r"^MemTotal:\s+(\d+) kB$", read_or_empty(_MEMORY_FACTS), re.MULTILINE)
    return int(found[1]) * 1024 if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limits() -> Iterator[tuple[Path, int]]:
    for folder in _cgroup_folders():
        limit_bytes = _limit_bytes(folder)
        if limit_bytes is not None:
            yield folder, limit_bytes


def _cgroup_folders() -> Iterator[Path]:
    """This process's control groups that may limit memory, each with those around it.

    Inside a container, where the listed path may be one of the host's, it is the outermost folder that counts.
    """
    for line in read_or_empty(_OWN_CGROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            root = _CGROUPS / "memory" if controllers else _CGROUPS
            own = Path(path.lstrip("/"))
            yield from (root / part for part in (own, *own.parents) if (root / part).is_dir())


def _limit_bytes(folder: Path) -> int | None:
    for name in _LIMIT_FILES:
        text = read_or_empty(folder / name).strip()
        if text.isdecimal():
            return int(text)
    return None


def _used_bytes(folder: Path) -> int:
    facts = dict(line.split() for line in read_or_empty(folder / "memory.stat").splitlines())
    return next((int(facts[key]) for key in _USED_KEYS if key in facts), 0)
