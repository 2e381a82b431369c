"""Memory of this process. inside/device.py has it, too, on which no training may depend."""

from __future__ import annotations

import sys

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def peak_host_memory_bytes() -> int | None:
    """Return this process's largest resident set so far, or None if the system has no count."""
    if resource is None:
        return None
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes
