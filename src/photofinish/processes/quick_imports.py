"""Importing large packages takes a sixth less time without the garbage collector, which finds nothing there."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """For the imports of a whole stage. What they made stays to the end, and is never looked through again either:
    with torch's half a million objects, that would take tenths of a second in the midst of training."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
