"""A custom metric: takes outputs and targets of all test samples, returns one number."""

from __future__ import annotations

import torch


def top(outputs: torch.Tensor, targets: torch.Tensor, k: int = 2) -> torch.Tensor:
    """Return the share of samples whose class is among the k likeliest."""
    return (outputs.topk(k).indices == targets[:, None]).any(dim=1).double().mean()
