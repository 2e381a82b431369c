"""Tensors in the arguments and results of functions, and their fingerprints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

_COPIED_VALUES, _BLOCK_VALUES = 1 << 20, 1 << 15
"""Values that are copied at once, as a large tensor may not fit twice, and multiplied at once."""
_SIGNED_SUMS = 8
"""Number of sums in a fingerprint.

With a limit of 2 %, nine of ten errors of 3 % of a tensor's norm show. With one sum they show from
16 % on.
"""


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)


def bytes_of(values: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in([*values]))


def fingerprint_tensor(tensor: Tensor) -> tuple[float, ...]:
    """Return a tensor's norm, and its sums with random signs, in double precision on the CPU.

    Computed in parts, so that equal tensors give equal figures on every device. Values that are
    not finite, such as masked scores, count as 0, because no record can hold them.
    """
    squares = 0.0
    signed = torch.zeros(_SIGNED_SUMS, dtype=torch.float64, device="cpu")
    for part in torch.split(tensor.detach().flatten(), _COPIED_VALUES):
        values = part.cpu().double().nan_to_num(0.0, 0.0, 0.0)
        blocks = torch.split(values, _BLOCK_VALUES)
        for block, signs in zip(blocks, torch.split(_signs(), _BLOCK_VALUES, dim=1)):
            squares += float(block.square().sum())
            signed += signs[:, : len(block)].double() @ block
    sums = squares**0.5, *signed.tolist()
    return tuple(each if math.isfinite(each) else 0.0 for each in sums)


@cache
def _signs() -> Tensor:
    """Return the signs of each sum. They were the same in torch 2.0 and 2.14."""
    shape = (_COPIED_VALUES,)
    # On the CPU also where a script has set another default device.
    generators = (torch.Generator("cpu").manual_seed(number) for number in range(_SIGNED_SUMS))
    rows = [
        torch.randint(0, 2, shape, generator=each, dtype=torch.int8, device="cpu")
        for each in generators
    ]
    return torch.stack(rows) * 2 - 1
