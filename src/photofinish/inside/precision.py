"""Precision in which matrix products and convolutions really compute."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode  # documented under this name
from torch.utils.flop_counter import flop_registry

from .timed_batches import is_loading

_FLOPS = {str(operator): formula for operator, formula in flop_registry.items()}
_OUTPUT = "out" if torch.__version__.startswith(("2.2.", "2.3.")) else "out_val"
_PRECISIONS = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}
_FASTEST_FIRST = ("fp16", "bf16", "tf32", "fp32", "fp64")
_LEAST_SHARE = 0.1
"""Share of the operations from which on a precision counts as the step's, by hand."""


class ProductPrecisions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of products in its block, by the precision that they would have on an NVIDIA GPU.

    PyTorch's flags let float32 products compute in TF32 there. By default, convolutions and
    recurrent layers do.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._flops: Counter[str] = Counter()
        self.has_recurrent_layers = False
        """True if recurrent layers ran, whose products are other operators on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, named = func(*args, **(kwargs or {})), kwargs or {}
        operator = str(func).rpartition(".")[0]
        if operator in _FLOPS and not is_loading():
            results = result if isinstance(result, (tuple, list)) else [result]
            first = next(each for each in results if torch.is_tensor(each))
            precision = _PRECISIONS.get(first.dtype, "other")
            if precision == "fp32" and self._uses_tf32(operator):
                precision = "tf32"
            with suppress(Exception):  # of tensors without a formula, as the script goes on
                self._flops[precision] += _FLOPS[operator](*args, **named, **{_OUTPUT: result})
        return result

    def _uses_tf32(self, operator: str) -> bool:
        if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
            return False
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        flags = [getattr(cudnn, "conv", cudnn) if "conv" in operator else matmul]
        if self.has_recurrent_layers:
            flags.append(getattr(cudnn, "rnn", cudnn))
        return any(map(_allows_tf32, flags))

    @property
    def precision(self) -> str:
        """Fastest precision of at least a tenth of the operations, or fp32 without products.

        The fastest, so that bounds computed from its rate are valid.
        """
        least = max(1.0, _LEAST_SHARE * sum(self._flops.values()))
        return next((name for name in _FASTEST_FIRST if self._flops[name] >= least), "fp32")


def _allows_tf32(flag: Any) -> bool:
    """Return a flag of PyTorch. Reading it raises if a script mixes its older and newer name."""
    if hasattr(flag, "fp32_precision"):  # from torch 2.9 on
        return bool(flag.fp32_precision == "tf32")
    return bool(flag.allow_tf32)
