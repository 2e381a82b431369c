"""Counts of a training step's operations, reads and saved tensors, from a step on a scratch copy.

Matrix products and convolutions are counted by their shapes, forward and backward. Recurrent layers
and attention are counted by formula (fused.py).

Each saved storage counts once. The memory of the whole step is memory.py's.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode  # documented under this name

from .fused import FusedCount, FusedOperators
from .memory import Allocations, takes_all_at_once
from .tensors import bytes_of
from .timed_batches import is_loading
from .without_formula import costly, is_memory_bound

_FUSED_KERNELS, _FOREACH_KERNELS = 2, 15
"""Kernels of an optimizer's step over all weights at once, by counts on an H100 and of AdamW."""
_PRECISIONS = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}
_FASTEST_FIRST = ("fp16", "bf16", "tf32", "fp32", "fp64")
_LEAST_SHARE = 0.1
"""Share of the operations from which on a precision counts as the step's, by hand."""


def kernels_of_optimizer(defaults: Mapping[str, Any], counted: int) -> int:
    """Return the kernels of an optimizer's step on an accelerator, with the state made before.

    By default PyTorch takes all weights at once there, and one weight after another on the CPU.
    """
    if defaults.get("fused"):
        return _FUSED_KERNELS
    return min(counted, _FOREACH_KERNELS) if takes_all_at_once(defaults) else counted


def count_step(
    network: nn.Module, loss: Callable[[], Tensor], memory: Allocations | None = None
) -> dict[str, Any]:
    memory = memory or Allocations()
    for weight in network.parameters():
        memory.add_weight(weight)
    operators = Operators(memory)
    hooks = saved_tensors_hooks(memory.save, lambda tensor: tensor)
    with operators, FusedOperators(operators), hooks:
        _step(loss)
    if operators.needs_profile:
        with operators.profiled():
            _step(loss)
    return operators.counts


def _step(loss: Callable[[], Tensor]) -> None:
    computed = loss()
    if computed.requires_grad:
        computed.backward()  # type: ignore[no-untyped-call]


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of computing operators, each about one kernel, and of their FLOPs and memory.

    If some operators have no formula, profile another step to see what they cost (`needs_profile`).
    """

    def __init__(self, memory: Allocations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory
        self.products: Counter[str] = Counter()
        """FLOPs by the precision that they would have on an NVIDIA GPU."""
        self.kernels = self.convolutions = self.time_steps = self.optimizer_bytes = 0
        self.unknown: set[str] = set()
        self.custom_functions: set[str] = set()
        self._without_formula: tuple[str, ...] = ()
        self.failure: Exception | None = None
        """Error of a formula or of what the script forbids, for which there are no counts."""
        self.is_paused = False
        """True during a fused operator, in the forward and in the backward pass."""
        self.is_hidden = False
        """True during an optimizer's step that takes all weights at once on a GPU."""
        self._adds_up = False
        """True after a fused operator's node in the backward pass.

        Autograd then adds up gradients before the next node. A real fused operator does so itself.
        """
        aten = torch.ops.aten
        self._formulas: dict[Any, Callable[..., int]] = {
            aten.convolution: self._convolution,
            aten.convolution_backward: self._convolution_backward,
            aten.mm: lambda *factors, **_: _product(*factors),
            aten.addmm: lambda _bias, *factors, **_: _product(*factors),
            aten.bmm: lambda *factors, **_: _product(*factors),
            aten.baddbmm: lambda _bias, *factors, **_: _product(*factors),
        }

    @property
    def needs_profile(self) -> bool:
        """Return True if an operator or a custom function without a formula may have run."""
        return bool(self.unknown or self.custom_functions)

    @contextmanager
    def profiled(self) -> Iterator[None]:
        """Profile a step that runs in the block, to see what operators without a formula cost."""
        # Without a GPU, Kineto would report its start as an error.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, acc_events=True) as profile:
            yield
        self._without_formula = costly(profile, self.unknown, self.custom_functions)

    @property
    def precision(self) -> str:
        """Fastest precision of at least a tenth of the operations, or fp32 without products.

        The fastest, so that bounds computed from its rate are valid.
        """
        least = max(1.0, _LEAST_SHARE * sum(self.products.values()))
        return next((name for name in _FASTEST_FIRST if self.products[name] >= least), "fp32")

    @property
    def counts(self) -> dict[str, Any]:
        """Fields of `Operations` after the step. Raise what kept it from being counted."""
        if self.failure:
            raise self.failure
        return {
            "in_double": self.precision == "fp64",
            "flops": sum(self.products.values()),
            "kernels": self.kernels,
            "convolutions": self.convolutions,
            "time_steps": self.time_steps,
            "saved_tensor_bytes": sum(self._memory.saved.values()),
            "optimizer_bytes": self.optimizer_bytes,
            "without_formula": self._without_formula,
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # A profile marks an optimizer's calls. One GPU with all batches has none to reduce with.
        if is_loading() or func.namespace in ("profiler", "c10d"):
            return func(*args, **kwargs)
        if self.is_paused:
            self._adds_up = True
            return self._run(func, args, kwargs, is_hidden=True)
        formula = self._formulas.get(func.overloadpacket)
        if formula is None and torch.is_inference_mode_enabled():
            with self:  # composed operators arrive whole
                output = func.decompose(*args, **kwargs)
            if output is not NotImplemented:
                return output
        self._adds_up = self._adds_up and func.overloadpacket is torch.ops.aten.add
        if self._adds_up:
            return self._run(func, args, kwargs)
        self.kernels += not func.is_view
        output = self._run(func, args, kwargs)
        if formula is None and not is_memory_bound(func):
            self.unknown.add(func.name().partition(".")[0])
        elif formula:
            self.kernels += self._memory.casts(args)
            try:
                kind = "conv" if "conv" in func.name() else "matmul"
                flops = formula(*args, **kwargs, output=output)
                self.products[_precision(args[0], kind)] += flops
            except Exception as error:  # noqa: BLE001  # as the script goes on
                self.failure = error
        return output

    def _run(self, func: Any, args: Any, kwargs: Any, *, is_hidden: bool = False) -> Any:
        """Run an operator, and note the memory that it uses."""
        if func.is_view:
            return func(*args, **kwargs)
        if is_hidden or self.is_hidden:
            output = func(*args, **kwargs)
            self._memory.note(output, is_hidden=True)
            if self.is_hidden:
                written = args[0] if output is None else output
                self.optimizer_bytes += bytes_of([args, kwargs, written])
            return output
        self._memory.note([args, kwargs], is_new=False)
        output = func(*args, **kwargs)
        is_product = func.overloadpacket in self._formulas
        self._memory.ran(func.name(), args, output, is_product=is_product)
        return output

    def add_fused(self, count: FusedCount, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Add a recurrent layer or attention, and return what it keeps for its backward pass."""
        precision = _precision(outputs[0], "rnn" if count.time_steps else "matmul")
        self.products[precision] += count.flops
        self.kernels += count.kernels
        self.time_steps += count.time_steps
        self._memory.ran("", (), outputs, is_product=True)
        kept = []
        if count.saved:
            other_bytes = count.other_saved_bytes // (1 + self._memory.is_cast)
            others = torch.empty(other_bytes, dtype=torch.uint8, device="meta")
            self._memory.note(others)
            kept = [self._memory.save(each) for each in (*count.saved, *outputs, others)]
        self._adds_up = False
        return kept

    def _convolution(
        self, images: Tensor, weight: Tensor, _bias: Any, _stride: Any, _padding: Any,
        _dilation: Any, transposed: bool, *_: Any, output: Tensor,
    ) -> int:  # fmt: skip
        self.convolutions += 1
        # A transposed convolution applies its filter to each position of its input.
        return _applied(weight, images if transposed else output)

    def _convolution_backward(
        self, gradient: Tensor, images: Tensor, weight: Tensor, _bias: Any, _stride: Any,
        _padding: Any, _dilation: Any, transposed: bool, _output_padding: Any, _groups: int,
        wanted: Sequence[bool], **_: Any,
    ) -> int:  # fmt: skip
        convolutions = wanted[0] + wanted[1]
        self.convolutions += convolutions
        return convolutions * _applied(weight, images if transposed else gradient)


def _precision(values: Tensor, kind: str) -> str:
    """Return the precision of a product.

    PyTorch's flags let float32 products compute in TF32. By default, convolutions and recurrent
    layers do.
    """
    precision = _PRECISIONS.get(values.dtype, "other")
    if precision != "fp32":
        return precision
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        return precision
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    flag = matmul if kind == "matmul" else getattr(cudnn, kind, cudnn)
    # Reading the older name raises if a script mixes it with the newer one, from torch 2.9 on.
    has_name = hasattr(flag, "fp32_precision")
    return "tf32" if (flag.fp32_precision == "tf32" if has_name else flag.allow_tf32) else "fp32"


def _product(one: Tensor, other: Tensor) -> int:
    values = one.numel() if one.layout is torch.strided else one._nnz()
    return 2 * values * other.shape[-1]


def _applied(weight: Tensor, positions: Tensor) -> int:
    """Return the FLOPs of a filter at each position of these images. Groups share no work."""
    return 2 * weight.numel() * len(positions) * math.prod(positions.shape[2:])
