"""Memory of this process. Imports neither psutil nor torch, as it runs within users' scripts."""

from __future__ import annotations

import sys

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def peak_host_memory_bytes() -> int | None:
    """Return the largest resident set of this process so far, or None where it is not counted."""
    if resource is None:
        return None
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes
