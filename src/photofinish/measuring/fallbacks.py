"""Operators that a device lacks, and PyTorch computes on the CPU: only where the user lets it
(PYTORCH_ENABLE_MPS_FALLBACK=1), else it refuses them."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_FALLBACK = re.compile(r"operator '(?:aten::)?([\w.]+)'.* fall back to run on the CPU")


@contextmanager
def fallbacks_counted() -> Iterator[Counter[str]]:
    """How often each operator falls back inside, known afterwards. By itself PyTorch warns of the first one alone."""
    counted: Counter[str] = Counter()
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            yield counted
    finally:
        torch.set_warn_always(before)
    for each in told:
        if found := _FALLBACK.search(str(each.message)):
            counted[found[1]] += 1
        else:  # of something else: not ours to keep
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
