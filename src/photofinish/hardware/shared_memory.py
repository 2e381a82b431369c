"""Where Linux keeps what processes share, and how much room there is: containers have little of it by default."""

from __future__ import annotations

import shutil
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108  # the system's own name


def size_in_brackets() -> str:
    """For a message; nothing where there is no such folder."""
    return f" ({FOLDER}, {shutil.disk_usage(FOLDER).total / 2**20:,.0f} MiB)" if FOLDER.is_dir() else ""
