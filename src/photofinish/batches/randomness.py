"""Random streams without state: each is decided by the seed and the epoch, so a resumed run draws the same."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def derived_seed(*parts: object) -> int:
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # torch takes 63 bits


def batch_order(count: int, seed: int, epoch: int) -> torch.Tensor:
    """The order of the training images in one epoch: made on the CPU, the same for every device."""
    generator = torch.Generator().manual_seed(derived_seed("order", seed, epoch))
    return torch.randperm(count, generator=generator)


def seed_epoch(seed: int, epoch: int, rank: int = 0) -> None:
    """What the network itself draws (dropout) starts anew with each epoch, on every device of this process.

    Processes that train together draw each from a stream of its own; the first one's is that of a single process.
    """
    torch.manual_seed(derived_seed("network", seed, epoch, *([rank] if rank else [])))


def hashed_rows(count: int, *parts: object) -> npt.NDArray[np.uint64]:
    """64 random bits for each row, decided by `parts` and the row's number alone: splitmix64, counted by the rows."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the point
        bits = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN + np.uint64(derived_seed(*parts))
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def fractions(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Evenly from 0 up to, but never, 1; exact, as a double holds 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def choices(bits: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.int64]:
    """Evenly from 0 to `count` - 1; for counts of thousands the unevenness is below a millionth."""
    return ((bits >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64)
