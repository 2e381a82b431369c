"""Fine-tuning: a frozen layer, and a smaller learning rate for the next one."""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW, Optimizer


def network(classes: int) -> nn.Module:
    """Return a network whose first layers would come with published weights."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, classes),
    )  # fmt: skip


def optimizer(network: nn.Sequential, lr: float = 0.01) -> Optimizer:
    """Freeze the first layer, and train the middle one with a tenth of the last one's rate."""
    _, first, _, middle, _, last = network
    first.requires_grad_(False)
    return AdamW(
        [{"params": middle.parameters(), "lr": lr / 10}, {"params": last.parameters()}], lr
    )
