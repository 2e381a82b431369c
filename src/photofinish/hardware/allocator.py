"""Freed memory stays in the process. By itself, glibc gives large blocks back to the system and asks for them again a
step later, page by page: in a small network's step that takes up to a quarter of the time (docs/performance.md)."""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
"""mallopt's names for what it sets"""
_LARGEST_THRESHOLD_BYTES = 32 * 2**20
"""that glibc takes: still larger blocks come from the system each time"""
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """For the rest of the process. Another C library keeps its own ways."""
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)
