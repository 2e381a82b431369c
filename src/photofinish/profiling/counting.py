"""Counts of a training step's operations, reads and saved tensors, from a step on a scratch copy.

Matrix products and convolutions are counted by their shapes, forward and backward. Recurrent layers
and attention are counted by formula (fused.py). `least_flops` is a lower bound for each product, on
any machine and in every precision:

* Winograd's F(6x6, 3x3) takes 4/3 multiplications for each place and direction, FFT takes 2 for
  each place. A stride splits a filter into smaller ones. Zeros around an image cost nothing.
* Batched matrix products, recurrent layers and attention count two fifths, and none of what they
  read: attention may have a mask, compute products twice, and keep them out of memory.

Each product reads its factors and writes its result. Operations between two products may be fused
into them, so they are not counted. Saved activations are the inputs of layers with weights. Each
storage counts once. Masks, indices and tensors that only the CPU's operators save are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode  # documented under this name

from photofinish.models.registry import BATCH_NORMS
from photofinish.profiling.fused import FusedCount, FusedOperators
from photofinish.profiling.step_count import StepCount
from photofinish.profiling.without_formula import ProfiledStep, is_memory_bound
from photofinish.results.measurements import Product

# Multiplications for each output position, in one direction, by the filter's length.
_LEAST_OF_FILTERS = {1: 1.0, 2: 7 / 6}
_LEAST_OF_LARGE_FILTERS = 4 / 3
_LEAST_BY_FFT = 2.0  # for each output position, in all directions together
_BATCHED_SHARE = 0.4
WEIGHTED: tuple[type[nn.Module], ...] = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.Linear, *BATCH_NORMS, nn.LayerNorm, nn.GroupNorm,
)  # fmt: skip
Shape = Sequence[int]


def count_step(network: nn.Module, loss: Callable[[], torch.Tensor]) -> StepCount:
    """Count the computation of a network's loss and gradients."""
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
        self._stack.__exit__(*error)

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

    @property
    def counts(self) -> StepCount:
        """Return the counts, after the step has ended."""
        operators, saved = self._operators, self._saved
        return StepCount(
            operators.flops,
            operators.kernels,
            operators.products.convolutions,
            operators.time_steps,
            operators.products.all,
            sum(saved.activations.values()),
            sum(saved.bytes.values()) + saved.other_bytes,
            self._without_formula,
        )


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of computing operators, each about one kernel, and of their products."""

    def __init__(self, saved: SavedTensors | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._saved = saved
        self.flops, self.kernels, self.time_steps, self.products = 0, 0, 0, _Products()
        self.unknown: set[str] = set()
        """Operators without a formula."""
        self.custom_functions: set[str] = set()
        self.is_paused = False
        """True during a fused operator, in the forward and in the backward pass."""
        self._adds_up = False
        """True after a fused operator's node in the backward pass.

        Autograd then adds up gradients before the next node, which a real fused operator does
        itself.
        """
        aten = torch.ops.aten
        self._formulas: dict[Any, Callable[..., int]] = {
            aten.convolution: self.products.convolution,
            aten.convolution_backward: self.products.convolution_backward,
            aten.mm: self.products.mm,
            aten.addmm: self.products.addmm,
            aten.bmm: self.products.bmm,
            aten.baddbmm: self.products.baddbmm,
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
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
            self.flops += formula(*args, **kwargs, output=output)
        return output

    def add_fused(self, count: FusedCount, outputs: Sequence[torch.Tensor]) -> None:
        """Add a recurrent layer or attention."""
        self._adds_up = False
        flops = count.forward_flops + count.backward_flops
        self.flops += flops
        self.kernels += count.forward_kernels + count.backward_kernels
        self.time_steps += count.time_steps
        self.products.add_batched(flops)
        if self._saved:
            self._saved.other_bytes += count.other_saved_bytes
            for tensor in (*count.saved, *outputs) if count.saved else ():
                self._saved.save(tensor)


def _product(least_flops: float, read_values: int, written_values: int) -> Product:
    return Product(
        count=1,
        least_flops=math.floor(least_flops),
        read_values=read_values,
        written_values=written_values,
    )


class _Products:
    """Collection of products. Methods add products and return their usual FLOPs.

    Methods have the arguments of the aten operators that they are named after.
    """

    def __init__(self) -> None:
        self.found: list[Product] = []
        self.convolutions = 0
        self._least_batched_flops = 0.0

    @property
    def all(self) -> list[Product]:
        """Return all products. Batched products are one product, because they may be fused."""
        batched = self._least_batched_flops
        return [*self.found, _product(batched, 0, 0)] if batched else self.found

    def add_batched(self, flops: int) -> int:
        self._least_batched_flops += _BATCHED_SHARE * flops
        return flops

    def mm(self, one: Tensor, other: Tensor, **_: Any) -> int:
        flops = 2 * one.numel() * other.shape[1]
        self.found.append(
            _product(flops, one.numel() + other.numel(), one.shape[0] * other.shape[1])
        )
        return flops

    def addmm(self, _bias: Tensor, one: Tensor, other: Tensor, **_: Any) -> int:
        return self.mm(one, other)

    def bmm(self, one: Tensor, other: Tensor, **_: Any) -> int:
        return self.add_batched(2 * one.numel() * other.shape[2])

    def baddbmm(self, _bias: Tensor, one: Tensor, other: Tensor, **_: Any) -> int:
        return self.bmm(one, other)

    def convolution(
        self, images: Tensor, weight: Tensor, _bias: Any, stride: Shape, padding: Shape,
        dilation: Shape, transposed: bool, *_: Any, output: Tensor,
    ) -> int:  # fmt: skip
        geometry, shapes = (stride, padding, dilation), (images.shape, output.shape, weight.shape)
        return self._add((True, False, False), *shapes, geometry, transposed)

    def convolution_backward(
        self, gradient: Tensor, images: Tensor, weight: Tensor, _bias: Any, stride: Shape,
        padding: Shape, dilation: Shape, transposed: bool, _padding: Shape, _groups: int,
        wanted: Sequence[bool], **_: Any,
    ) -> int:  # fmt: skip
        geometry, kinds = (stride, padding, dilation), (False, wanted[0], wanted[1])
        shapes = images.shape, gradient.shape, weight.shape
        return self._add(kinds, *shapes, geometry, transposed)

    def _add(
        self, kinds: tuple[bool, bool, bool], images: Shape, out: Shape, weight: Shape,
        geometry: tuple[Shape, ...], transposed: bool,
    ) -> int:  # fmt: skip
        """Add the products for outputs, image gradients and weight gradients."""
        # A transposed convolution applies its filter to each position of its input.
        places, lengths = (images[2:], out[2:]) if transposed else (out[2:], images[2:])
        directions = []
        for direction, taps in enumerate(weight[2:]):
            # A setting may have one number for all directions.
            settings = [numbers[direction % len(numbers)] for numbers in geometry]
            directions.append(Direction(places[direction], lengths[direction], taps, *settings))
        per_place = 2 * images[0] * weight[0] * weight[1]
        least = per_place * least_multiplications(directions)
        image_values, out_values, weight_values = map(math.prod, (images, out, weight))
        used_values = image_values
        if not transposed:  # a stride may skip inputs
            used_places = math.prod(len(np.unique(each.met)) for each in directions)
            used_values = image_values // math.prod(lengths) * used_places
        moved_values = (
            (used_values + weight_values, out_values),
            (out_values + weight_values, image_values),
            (used_values + out_values, weight_values),
        )
        for is_wanted, (read_values, written_values) in zip(kinds, moved_values, strict=True):
            if is_wanted:
                self.found.append(_product(least, read_values, written_values))
        self.convolutions += sum(kinds)
        return sum(kinds) * per_place * math.prod(places) * math.prod(weight[2:])


class Direction(NamedTuple):
    """Filter on an image, in one direction."""

    places: int
    length: int
    taps: int
    stride: int
    padding: int
    dilation: int

    @property
    def met(self) -> npt.NDArray[np.int64]:
        """Return the image's positions under the filter's taps, without zeros around the image."""
        firsts = np.arange(self.places) * self.stride - self.padding
        met = np.add.outer(firsts, np.arange(self.taps) * self.dilation)
        return met[(met >= 0) & (met < self.length)]

    @property
    def least(self) -> float:
        per_place = 0.0
        for start in range(min(self.stride, self.taps)):
            part = len(range(start, self.taps, self.stride))
            per_place += _LEAST_OF_FILTERS.get(part, _LEAST_OF_LARGE_FILTERS)
        return min(len(self.met), self.places * per_place)


def least_multiplications(directions: Sequence[Direction]) -> float:
    # FFT also computes positions that strides skip.
    by_fft = _LEAST_BY_FFT * math.prod(each.places * each.stride for each in directions)
    return min(by_fft, math.prod(each.least for each in directions))


class SavedTensors:
    """Tensors that autograd saves during a forward pass, by address."""

    def __init__(self, network: nn.Module) -> None:
        self._layers = [module for module in network.modules() if isinstance(module, WEIGHTED)]
        self.weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
        self._input_values = 0
        """Number of values in the running layer's input, until the input is saved."""
        self.activations: dict[int, int] = {}
        self.bytes: dict[int, int] = {}
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

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        address, count = storage.data_ptr(), tensor.numel()
        if address in self.weights:
            return tensor
        self.bytes[address] = storage.nbytes()
        if count == self._input_values:  # the input, or its cast copy
            self.activations[address], self._input_values = count, 0
        return tensor
