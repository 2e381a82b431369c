"""Counts of a training step's operations, reads and saved tensors, from a step on a scratch copy.

Matrix products and convolutions are counted by their shapes, forward and backward. Recurrent layers
and attention are counted by formula (fused.py).

Saved activations are the inputs of layers with weights. Each storage counts once. Masks, indices
and tensors that only the CPU's operators save are not counted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode  # documented under this name

from .fused import FusedCount, FusedOperators
from .timed_batches import is_loading
from .without_formula import ProfiledStep, is_memory_bound

if TYPE_CHECKING:
    from typing import Self

WEIGHTED: tuple[type[nn.Module], ...] = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.LayerNorm,
    nn.GroupNorm,
)  # fmt: skip


_FUSED_KERNELS, _FOREACH_KERNELS = 2, 15
"""Kernels of an optimizer's step over all weights at once, by counts on an H100 and of AdamW."""


class StepCount(NamedTuple):
    """Counts of one forward and backward pass."""

    flops: int
    kernels: int
    convolutions: int
    time_steps: int
    saved_activations: int
    saved_tensor_bytes: int
    without_formula: tuple[str, ...]
    """Operators and custom functions without a formula that take much of the CPU's time."""

    def operations(
        self,
        *,
        images: int,
        in_double: bool,
        weights: Iterable[Tensor],
        gradients: Iterable[Tensor | None],
        optimizers: Iterable[Optimizer],
        batch_bytes: int,
        resident_bytes: int = 0,
    ) -> dict[str, Any]:
        """Return the fields of `Operations` for a step with these tensors and optimizers."""
        states = [state for optimizer in optimizers for state in optimizer.state.values()]
        return self._asdict() | {
            "images": images,
            "in_double": in_double,
            "parameter_bytes": bytes_of(weights),
            "gradient_bytes": bytes_of(gradients),
            "optimizer_bytes": sum(bytes_of(state.values()) for state in states),
            "batch_bytes": batch_bytes,
            "resident_bytes": resident_bytes,
        }


def kernels_of_optimizer(defaults: Mapping[str, Any], counted: int) -> int:
    """Return the kernels of an optimizer's step on an accelerator, with the state made before.

    By default PyTorch takes all weights at once there, and one weight after another on the CPU.
    """
    if defaults.get("fused"):
        return _FUSED_KERNELS
    has_foreach = defaults.get("foreach", False) is not False
    return min(counted, _FOREACH_KERNELS) if has_foreach else counted


def bytes_of(values: Iterable[Any]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


def count_step(network: nn.Module, loss: Callable[[], torch.Tensor]) -> StepCount:
    saved = SavedTensors(network)
    with OperatorCounts(saved) as operators, saved.watched():
        _step(loss)
    if operators.needs_profile:
        with operators.profiled():
            _step(loss)
    return operators.counts


def _step(loss: Callable[[], Tensor]) -> None:
    computed = loss()
    if computed.requires_grad:
        computed.backward()  # type: ignore[no-untyped-call]


class OperatorCounts:
    """Counter of the operators that run in its block. Adds tensors of fused operators to `saved`.

    If some operators have no formula, profile another step to see what they cost (`needs_profile`).
    """

    def __init__(self, saved: SavedTensors) -> None:
        self._saved, self._operators, self._stack = saved, Operators(saved), ExitStack()
        self._without_formula: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._operators)
        self._stack.enter_context(FusedOperators(self._operators))
        return self

    def __exit__(self, *error: Any) -> None:
        self._saved.kept.clear()
        self._stack.__exit__(*error)

    def fail(self, why: str) -> None:
        self._operators.failure = RuntimeError(why)

    @property
    def needs_profile(self) -> bool:
        """Return True if an operator or a custom function without a formula may have run."""
        return bool(self._operators.unknown or self._operators.custom_functions)

    @contextmanager
    def profiled(self) -> Iterator[None]:
        """Profile a step that runs in the block, to see what operators without a formula cost."""
        with ProfiledStep() as step:
            yield
        operators = self._operators
        self._without_formula = step.costly(operators.unknown, operators.custom_functions)

    def optimizer_begins(self) -> None:
        self._kernels_before = self._operators.kernels

    def apart_from_optimizer(self, given: Any) -> Any:
        """Return an argument of an optimizer, which does not count the kernels of a closure."""
        if not callable(given):
            return given

        @functools.wraps(given)
        def call(*arguments: Any, **named: Any) -> Any:
            began_with = self._operators.kernels
            result = given(*arguments, **named)
            self._kernels_before += self._operators.kernels - began_with
            return result

        return call

    def optimizer_ended(self, optimizer: Optimizer) -> None:
        """Count the optimizer's step as an accelerator takes it."""
        before, operators = self._kernels_before, self._operators
        counted = operators.kernels - before
        operators.kernels = before + kernels_of_optimizer(optimizer.defaults, counted)

    @property
    def counts(self) -> StepCount:
        """Return the counts, after the step has ended. Raise what kept it from being counted."""
        operators, saved = self._operators, self._saved
        if operators.failure:
            raise operators.failure
        return StepCount(
            operators.flops,
            operators.kernels,
            operators.convolutions,
            operators.time_steps,
            sum(saved.activations.values()),
            sum(saved.bytes.values()) + saved.other_bytes,
            self._without_formula,
        )


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of computing operators, each about one kernel, and of their FLOPs."""

    def __init__(self, saved: SavedTensors | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._saved = saved
        self.flops, self.kernels, self.convolutions, self.time_steps = 0, 0, 0, 0
        self.unknown: set[str] = set()
        self.custom_functions: set[str] = set()
        self.failure: Exception | None = None
        """Error of a formula or of what the script forbids, for which there are no counts."""
        self.is_paused = False
        """True during a fused operator, in the forward and in the backward pass."""
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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_loading():
            return func(*args, **kwargs)
        if self.is_paused:
            self._adds_up = True
            return func(*args, **kwargs)
        formula = self._formulas.get(func.overloadpacket)
        if formula is None and torch.is_inference_mode_enabled():
            with self:  # composed operators arrive whole
                output = func.decompose(*args, **kwargs)
            if output is not NotImplemented:
                return output
        self._adds_up = self._adds_up and func.overloadpacket is torch.ops.aten.add
        if self._adds_up:
            return func(*args, **kwargs)
        self.kernels += not func.is_view
        output = func(*args, **kwargs)
        if formula is None and not is_memory_bound(func):
            self.unknown.add(func.name().partition(".")[0])
        elif formula:
            self.kernels += self._saved.casts(args) if self._saved else 0
            try:
                self.flops += formula(*args, **kwargs, output=output)
            except Exception as error:  # noqa: BLE001  # as the script goes on
                self.failure = error
        elif self._saved and func.overloadpacket is torch.ops.aten._to_copy:
            self._saved.copied(args[0], output)
        return output

    def add_fused(self, count: FusedCount, outputs: Sequence[torch.Tensor]) -> None:
        """Add a recurrent layer or attention."""
        self._adds_up = False
        self.flops += count.forward_flops + count.backward_flops
        self.kernels += count.forward_kernels + count.backward_kernels
        self.time_steps += count.time_steps
        if self._saved:
            self._saved.other_bytes += count.other_saved_bytes // (1 + self._saved.is_cast)
            for tensor in (*count.saved, *outputs) if count.saved else ():
                self._saved.save(tensor)
                self._saved.kept.append(tensor)

    def _convolution(
        self, images: Tensor, weight: Tensor, _bias: Any, _stride: Any, _padding: Any,
        _dilation: Any, transposed: bool, *_: Any, output: Tensor,
    ) -> int:  # fmt: skip
        """Count a convolution, with the arguments of its aten operator."""
        self.convolutions += 1
        # A transposed convolution applies its filter to each position of its input.
        return _applied(weight, images if transposed else output)

    def _convolution_backward(
        self, gradient: Tensor, images: Tensor, weight: Tensor, _bias: Any, _stride: Any,
        _padding: Any, _dilation: Any, transposed: bool, _output_padding: Any, _groups: int,
        wanted: Sequence[bool], **_: Any,
    ) -> int:  # fmt: skip
        """Count the gradients of images and weights that are wanted."""
        convolutions = wanted[0] + wanted[1]
        self.convolutions += convolutions
        return convolutions * _applied(weight, images if transposed else gradient)


def _product(one: Tensor, other: Tensor) -> int:
    """Return the FLOPs of a matrix product, or of a batch of them."""
    values = one.numel() if one.layout is torch.strided else one._nnz()
    return 2 * values * other.shape[-1]


def _applied(weight: Tensor, positions: Tensor) -> int:
    """Return the FLOPs of a filter at each position of these images. Groups share no work."""
    return 2 * weight.numel() * len(positions) * math.prod(positions.shape[2:])


class SavedTensors:
    """Tensors that autograd saves during a forward pass, by address."""

    def __init__(self, network: nn.Module) -> None:
        self._layers = [module for module in network.modules() if isinstance(module, WEIGHTED)]
        self.weights = set(map(_address, network.parameters()))
        self.is_cast = False
        """True to count as an autocast on CUDA. To compute in 16 bits would change the script."""
        self._input_values = 0
        """Number of values in the running layer's input, until the input is saved."""
        self.activations: dict[int, int] = {}
        self.bytes: dict[int, int] = {}
        self.kept: list[Tensor] = []
        """Tensors of fused operators. Without them, others would get their addresses."""
        self.other_bytes = 0
        """Bytes that fused operators save in addition to their inputs and outputs."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        hooks = [layer.register_forward_pre_hook(self.layer_begins) for layer in self._layers]
        hooks += [layer.register_forward_hook(self.layer_ended) for layer in self._layers]
        with saved_tensors_hooks(self.save, lambda tensor: tensor):
            yield
        for hook in hooks:
            hook.remove()

    def layer_begins(self, _layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        is_tensor = inputs and isinstance(inputs[0], torch.Tensor)
        self._input_values = inputs[0].numel() if is_tensor else 0

    def layer_ended(self, *_: Any) -> None:
        self._input_values = 0

    def copied(self, tensor: Tensor, copy: Tensor) -> None:
        """Leave out a weight's copy in another type, as weights are left out."""
        if _address(tensor) in self.weights:
            self.weights.add(_address(copy))

    def casts(self, factors: Iterable[Any]) -> int:
        """Return the casts of weights in a forward pass by an autocast, and of their gradients."""
        if not (self.is_cast and torch.is_grad_enabled()):
            return 0
        floats = (each for each in factors if getattr(each, "dtype", None) == torch.float32)
        return sum(1 + each.requires_grad for each in floats if _address(each) in self.weights)

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        address = _address(tensor)
        if is_loading() or address is None or address in self.weights:
            return tensor
        count, halves = tensor.numel(), self.is_cast and tensor.dtype == torch.float32
        self.bytes[address] = tensor.untyped_storage().nbytes() // (1 + halves)
        if count == self._input_values:  # the input, or its cast copy
            self.activations[address], self._input_values = count, 0
        return tensor


def _address(tensor: Tensor) -> int | None:
    """Return the address of a tensor's storage, or None of a sparse tensor or a subclass."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return None
