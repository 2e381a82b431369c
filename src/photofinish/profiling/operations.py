"""Counts of what a training step computes, reads and saves, from one step on a scratch copy.

Matrix products and convolutions are counted, forward and backward, by the shapes that torch's own
counter sees. `least_flops` is a lower bound for each, on any machine and in every precision:

* Winograd's F(6x6, 3x3) takes 4/3 multiplications for each place and direction, FFT takes 2 for
  each place. A stride splits a filter into smaller ones. Zeros around an image cost nothing.
* Batched matrix products count two fifths, and none of what they read: attention may have a mask,
  compute products twice, and keep them out of memory.

Each product reads its factors and writes its result. What lies between two products may be fused
into them, and doesn't count. Saved activations are the inputs of layers with weights. Each storage
counts once; masks, indices and what only the CPU's operators save don't count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode  # documented under this name
from torch.utils.flop_counter import FlopCounterMode

from photofinish.models.registry import BATCH_NORMS
from photofinish.nested import leaves, samples_in
from photofinish.profiling.scratch import scratch_copy
from photofinish.results.measurements import Operations, Product
from photofinish.training.batches import bytes_of_a_sample
from photofinish.training.trainer import Trainer

# Multiplications for each place, in one direction, by the length of the filter.
_LEAST_OF_FILTERS = {1: 1.0, 2: 7 / 6}
_LEAST_OF_LARGE_FILTERS = 4 / 3
_LEAST_BY_FFT = 2.0  # for each place, in all directions together
_BATCHED_SHARE = 0.4
_BATCHED = ("bmm", "attention")  # parts of the names of batched operators
_WEIGHTED = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.Linear, *BATCH_NORMS, nn.LayerNorm, nn.GroupNorm,
)  # fmt: skip
Shape = Sequence[int]


class StepCount(NamedTuple):
    """Counts of one forward and backward pass."""

    flops: int
    kernels: int
    products: list[Product]
    saved_activations: int
    saved_tensor_bytes: int


def count_operations(trainer: Trainer) -> Operations:
    """Count a step on the first batch."""
    batch = next(iter(trainer.training.train_batches(0)))
    tensors = [*leaves(batch[0]), *leaves(batch[1])]
    image_count = trainer.training.image_count + trainer.validation.image_count
    is_resident = trainer.experiment.input.name == "resident"
    with scratch_copy(trainer) as state:
        loss = state.scaler.scale
        counts = count_step(state.network, lambda: loss(trainer.loss(state, 0, batch)))
        with _Kernels() as of_optimizer:
            state.scaler.step(state.optimizer)  # creates its state
        equal = Counter(counts.products).items()
        states = [value for values in state.optimizer.state.values() for value in values.values()]
        weights = list(state.network.parameters())
        return Operations(
            images=samples_in(batch[1]),
            flops=counts.flops,
            kernels=counts.kernels + of_optimizer.count,
            products=tuple(product.model_copy(update={"count": n}) for product, n in equal),
            parameter_bytes=_bytes(weights),
            gradient_bytes=_bytes(weight.grad for weight in weights),
            optimizer_bytes=_bytes(states),
            saved_activations=counts.saved_activations,
            saved_tensor_bytes=counts.saved_tensor_bytes,
            batch_bytes=0 if is_resident else _bytes(tensors),
            resident_bytes=image_count * bytes_of_a_sample(batch) if is_resident else 0,
        )


def _bytes(values: Iterable[Any]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


def count_step(network: nn.Module, loss: Callable[[], torch.Tensor]) -> StepCount:
    """Count computing the loss with the network, and its gradients."""
    products, saved = _Products(), _SavedTensors(network)
    aten = torch.ops.aten
    mapping = {
        aten.convolution: products.convolution,
        aten.convolution_backward: products.convolution_backward,
        aten.mm: products.mm,
        aten.addmm: products.addmm,
    }
    with _Kernels() as kernels, FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        with saved.watched():
            computed = loss()
        computed.backward()  # type: ignore[no-untyped-call]
    batched = 0
    for name, count in counter.get_flop_counts().get("Global", {}).items():
        if any(part in str(name) for part in _BATCHED):
            batched += count
    if batched:
        products.all.append(_product(_BATCHED_SHARE * batched, 0, 0))
    flops = counter.get_total_flops()
    activations, tensor_bytes = sum(saved.activations.values()), sum(saved.bytes.values())
    return StepCount(flops, kernels.count, products.all, activations, tensor_bytes)


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators that compute something: about one kernel each."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def _product(least_flops: float, read_values: int, written_values: int) -> Product:
    return Product(
        count=1,
        least_flops=math.floor(least_flops),
        read_values=read_values,
        written_values=written_values,
    )


class _Products:
    """Collects products by the shapes that torch's counter passes, and returns their usual FLOPs.

    Methods take the arguments of the aten operators that they are named after.
    """

    def __init__(self) -> None:
        self.all: list[Product] = []

    def mm(self, one: Shape, other: Shape, *_: Any, **_keys: Any) -> int:
        flops = 2 * math.prod(one) * other[1]
        self.all.append(_product(flops, math.prod(one) + math.prod(other), one[0] * other[1]))
        return flops

    def addmm(self, _bias: Shape, one: Shape, other: Shape, *_: Any, **_keys: Any) -> int:
        return self.mm(one, other)

    def convolution(
        self, images: Shape, weight: Shape, _bias: Any, stride: Shape, padding: Shape,
        dilation: Shape, transposed: bool, *_: Any, out_shape: Shape,
    ) -> int:  # fmt: skip
        geometry = stride, padding, dilation
        return self._add((True, False, False), images, out_shape, weight, geometry, transposed)

    def convolution_backward(
        self, gradient: Shape, images: Shape, weight: Shape, _bias: Any, stride: Shape,
        padding: Shape, dilation: Shape, transposed: bool, _padding: Shape, _groups: int,
        wanted: Sequence[bool], **_: Any,
    ) -> int:  # fmt: skip
        geometry, kinds = (stride, padding, dilation), (False, wanted[0], wanted[1])
        return self._add(kinds, images, gradient, weight, geometry, transposed)

    def _add(
        self, kinds: tuple[bool, bool, bool], images: Shape, out: Shape, weight: Shape,
        geometry: tuple[Shape, ...], transposed: bool,
    ) -> int:  # fmt: skip
        """Add products of the kinds: outputs, image gradients, weight gradients."""
        # A transposed convolution lays its filter on each place of its input.
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
        if not transposed:  # a stride may skip some
            used_places = math.prod(len(np.unique(each.met)) for each in directions)
            used_values = image_values // math.prod(lengths) * used_places
        moved_values = (
            (used_values + weight_values, out_values),
            (out_values + weight_values, image_values),
            (used_values + out_values, weight_values),
        )
        for is_wanted, (read_values, written_values) in zip(kinds, moved_values, strict=True):
            if is_wanted:
                self.all.append(_product(least, read_values, written_values))
        return sum(kinds) * per_place * math.prod(places) * math.prod(weight[2:])


class Direction(NamedTuple):
    """A filter on an image, in one direction."""

    places: int
    length: int
    taps: int
    stride: int
    padding: int
    dilation: int

    @property
    def met(self) -> npt.NDArray[np.int64]:
        """Return the image's places under the filter's taps, without the zeros around it."""
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
    # FFT also computes what strides skip.
    by_fft = _LEAST_BY_FFT * math.prod(each.places * each.stride for each in directions)
    return min(by_fft, math.prod(each.least for each in directions))


class _SavedTensors:
    """Tensors that autograd saves during a forward pass, by address."""

    def __init__(self, network: nn.Module) -> None:
        self._layers = [module for module in network.modules() if isinstance(module, _WEIGHTED)]
        self._weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
        self._input_values = 0
        """Size of the input of the layer that runs now, until it is saved."""
        self.activations: dict[int, int] = {}
        self.bytes: dict[int, int] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        hooks = [layer.register_forward_pre_hook(self._layer_begins) for layer in self._layers]
        hooks += [layer.register_forward_hook(self._layer_ended) for layer in self._layers]
        with saved_tensors_hooks(self._save, lambda tensor: tensor):
            yield
        for hook in hooks:
            hook.remove()

    def _layer_begins(self, _layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        is_tensor = inputs and isinstance(inputs[0], torch.Tensor)
        self._input_values = inputs[0].numel() if is_tensor else 0

    def _layer_ended(self, *_: Any) -> None:
        self._input_values = 0

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        address, count = storage.data_ptr(), tensor.numel()
        if address in self._weights:
            return tensor
        self.bytes[address] = storage.nbytes()
        if count == self._input_values:  # the input, or its cast copy
            self.activations[address], self._input_values = count, 0
        return tensor
