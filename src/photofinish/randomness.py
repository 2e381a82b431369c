"""Random streams without state: each is decided by the seed and the epoch, so a resumed run draws the same."""

from __future__ import annotations

import hashlib

import torch


def derived_seed(*parts: object) -> int:
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # torch takes 63 bits


def batch_order(count: int, seed: int, epoch: int) -> torch.Tensor:
    """The order of the training images in one epoch: made on the CPU, the same for every device."""
    generator = torch.Generator().manual_seed(derived_seed("order", seed, epoch))
    return torch.randperm(count, generator=generator)


def seed_epoch(seed: int, epoch: int) -> None:
    """What the network itself draws (dropout) starts anew with each epoch, on every device of this process."""
    torch.manual_seed(derived_seed("network", seed, epoch))
