"""Settings of plain steps, for machines without pydantic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

PLAIN_STEPS: dict[str, Any] = {
    "warmup_steps": 0, "clip_grad_norm": None, "accumulate": 1, "ema": None,
    "early_stopping": None, "sampler": None, "batch_transform": None, "step": None,
    "validation_step": None,
}  # fmt: skip
"""Defaults of the optional settings. The trainer reads them all."""


def plain(name: str, **arguments: Any) -> SimpleNamespace:
    """Return the settings of an optimizer or schedule of PyTorch."""
    own = {"weight_decay_exclude": None, "every": None}
    return SimpleNamespace(name=name, arguments=arguments, **own)
