"""Counts of what a training step computes, reads and saves, taken while one step runs on a scratch copy of the network.

Matrix products and convolutions are counted, forward and backward, by the shapes that torch's own counter sees.
`least_flops` is a lower bound for each, on any machine:

* Convolutions may be computed in another basis (Winograd, FFT), with fewer multiplications. PyTorch's libraries get
  down to 4/3 for each place and direction (Winograd's F(6x6, 3x3)), or 2 for each place (FFT). A stride splits a filter
  into smaller ones. Products with the zeros around an image needn't be computed. This is assumed in every precision and
  for every filter: MIOpen's Winograd takes any filter, strides of two and fp16, and cuDNN doesn't document its engines.
* Batched matrix products count two fifths, and none of what they read. Attention is among them: a mask may leave half
  out, products may be computed twice, and may never reach the memory.

Each product is a kernel that reads its factors and writes its result. What lies between two products may be fused into
them, and doesn't count.

`kept_values` are the inputs of convolutions, linear layers and normalisations, which every device saves for the
backward pass. Masks, indices and what only the CPU's operators save don't count. Each storage counts once.
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
from torch.utils.flop_counter import FlopCounterMode

from photofinish.models.registry import BATCH_NORMS
from photofinish.profiling.scratch import scratch_copy
from photofinish.results.measurements import Operations, Product
from photofinish.training.trainer import Trainer

_LEAST_OF_FILTERS = {1: 1.0, 2: 7 / 6}
"""multiplications for each place, in one direction, by the filter's length"""
_LEAST_OF_LARGE_FILTERS = 4 / 3
_LEAST_BY_FFT = 2.0
"""multiplications for each place, in all directions together"""
_BATCHED_SHARE = 0.4
_BATCHED = ("bmm", "attention")
"""parts of the names of batched operators"""
_WEIGHTED = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear,
    *BATCH_NORMS, nn.LayerNorm, nn.GroupNorm,
)  # fmt: skip
Numbers = Sequence[int]


class StepCount(NamedTuple):
    """Counts of one forward and backward pass."""

    flops: int
    products: list[Product]
    """in their order"""
    saved_activations: int
    saved_tensor_bytes: int


def count_operations(trainer: Trainer) -> Operations:
    """Count a step on the first batch."""
    images, labels = batch = next(iter(trainer.training.train_batches(0)))
    image_count = trainer.training.image_count + trainer.validation.image_count
    with scratch_copy(trainer) as state:
        counted = count_step(state.network, lambda: state.scaler.scale(trainer.loss(state, 0, batch)))
        state.scaler.step(state.optimizer)  # creates its state
        held = [value for values in state.optimizer.state.values() for value in values.values()]
        parameters = list(state.network.parameters())
        return Operations(
            images=len(images),
            flops=counted.flops,
            products=grouped(counted.products),
            parameter_bytes=_bytes(parameters),
            gradient_bytes=_bytes(each.grad for each in parameters if each.grad is not None),
            optimizer_bytes=_bytes(each for each in held if isinstance(each, torch.Tensor)),
            saved_activations=counted.saved_activations,
            saved_tensor_bytes=counted.saved_tensor_bytes,
            batch_bytes=_bytes([images, labels]) if trainer.experiment.input.name == "loader" else 0,
            resident_bytes=image_count * images[0].nbytes if trainer.experiment.input.name == "resident" else 0,
        )


def count_step(network: nn.Module, loss: Callable[[], torch.Tensor]) -> StepCount:
    """Count computing the loss with the network, and its gradients."""
    products, kept = _Products(), _Kept(network)
    aten = torch.ops.aten
    mapping = {
        aten.convolution: products.convolution,
        aten.convolution_backward: products.convolution_backward,
        aten.mm: products.matrices,
        aten.addmm: products.added_matrices,
    }
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        with kept.watched():
            computed = loss()
        computed.backward()  # type: ignore[no-untyped-call]
    counts = counter.get_flop_counts().get("Global", {})
    batched = sum(count for name, count in counts.items() if any(part in str(name) for part in _BATCHED))
    if batched:
        products.all.append(_product(_BATCHED_SHARE * batched, 0, 0))
    saved_activations, saved_tensor_bytes = (sum(each.values()) for each in (kept.values, kept.bytes))
    return StepCount(counter.get_total_flops(), products.all, saved_activations, saved_tensor_bytes)


def grouped(products: Iterable[Product]) -> tuple[Product, ...]:
    """Group equal products."""
    counts = Counter(products)
    return tuple(each.model_copy(update={"count": count}) for each, count in counts.items())


def _product(least_flops: float, read_values: int, written_values: int) -> Product:
    return Product(count=1, least_flops=math.floor(least_flops), read_values=read_values, written_values=written_values)


class _Products:
    """Collects products by the shapes that torch's counter passes, and returns their usual FLOPs to it."""

    def __init__(self) -> None:
        self.all: list[Product] = []

    def matrices(self, one: Numbers, other: Numbers, *_: Any, **_keys: Any) -> int:
        """Count aten.mm."""
        flops = 2 * math.prod(one) * other[1]
        self.all.append(_product(flops, math.prod(one) + math.prod(other), one[0] * other[1]))
        return flops

    def added_matrices(self, _bias: Numbers, one: Numbers, other: Numbers, *_: Any, **_keys: Any) -> int:
        """Count aten.addmm."""
        return self.matrices(one, other)

    def convolution(
        self, images: Numbers, weight: Numbers, _bias: Any, stride: Numbers, padding: Numbers, dilation: Numbers,
        transposed: bool, *_: Any, out_shape: Numbers,
    ) -> int:  # fmt: skip
        """Count aten.convolution."""
        return self._add((True, False, False), images, out_shape, weight, (stride, padding, dilation), transposed)

    def convolution_backward(
        self, gradient: Numbers, images: Numbers, weight: Numbers, _bias: Any, stride: Numbers, padding: Numbers,
        dilation: Numbers, transposed: bool, _padding: Numbers, _groups: int, wanted: Sequence[bool], **_: Any,
    ) -> int:  # fmt: skip
        """Count aten.convolution_backward."""
        of_images, of_weight, _of_bias = wanted
        geometry = (stride, padding, dilation)
        return self._add((False, of_images, of_weight), images, gradient, weight, geometry, transposed)

    def _add(
        self, wanted: tuple[bool, bool, bool], images: Numbers, out: Numbers, weight: Numbers,
        geometry: tuple[Numbers, ...], transposed: bool,
    ) -> int:  # fmt: skip
        """Add the wanted products (outputs, image gradients, weight gradients), which multiply equally much."""
        # A transposed convolution lays its filter on each place of its input.
        places, lengths = (images[2:], out[2:]) if transposed else (out[2:], images[2:])
        directions = _directions(places, lengths, weight[2:], geometry)
        per_place = 2 * images[0] * weight[0] * weight[1]
        least = per_place * least_multiplications(directions)
        image_values, out_values, weight_values = map(math.prod, (images, out, weight))
        used_values = image_values  # a stride may skip some
        if not transposed:
            used_places = math.prod(len(np.unique(each.met)) for each in directions)
            used_values = image_values // math.prod(lengths) * used_places
        values = (
            (used_values + weight_values, out_values),
            (out_values + weight_values, image_values),
            (used_values + out_values, weight_values),
        )
        self.all += [_product(least, *each) for each, is_wanted in zip(values, wanted, strict=True) if is_wanted]
        return sum(wanted) * per_place * math.prod(places) * math.prod(weight[2:])


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
        """Places of the image under the filter's taps, without the zeros around it."""
        firsts, taps = np.arange(self.places) * self.stride - self.padding, np.arange(self.taps) * self.dilation
        places = np.add.outer(firsts, taps)
        return places[(places >= 0) & (places < self.length)]

    @property
    def least(self) -> float:
        """Number of multiplications in the fastest known algorithm."""
        parts = (len(range(start, self.taps, self.stride)) for start in range(min(self.stride, self.taps)))
        a_place = sum(_LEAST_OF_FILTERS.get(part, _LEAST_OF_LARGE_FILTERS) for part in parts)
        return min(len(self.met), self.places * a_place)


def _directions(places: Numbers, lengths: Numbers, taps: Numbers, geometry: Iterable[Numbers]) -> list[Direction]:
    settings = [each if len(each) == len(places) else [each[0]] * len(places) for each in geometry]
    return [Direction(*each) for each in zip(places, lengths, taps, *settings, strict=True)]


def least_multiplications(directions: Sequence[Direction]) -> float:
    """Return the multiplications for one input and one output channel. FFT also computes what strides skip."""
    by_fft = _LEAST_BY_FFT * math.prod(each.places * each.stride for each in directions)
    return min(by_fft, math.prod(each.least for each in directions))


class _Kept:
    """Tensors that autograd saves during a forward pass, by address."""

    def __init__(self, network: nn.Module) -> None:
        self._layers = [each for each in network.modules() if isinstance(each, _WEIGHTED)]
        self._parameters = {each.untyped_storage().data_ptr() for each in network.parameters()}
        self._awaited = 0
        """size of the input of the layer that runs now, until it is saved"""
        self.values: dict[int, int] = {}
        self.bytes: dict[int, int] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch within the block."""
        hooks = [layer.register_forward_pre_hook(self._layer_begins) for layer in self._layers]
        hooks += [layer.register_forward_hook(self._layer_ended) for layer in self._layers]
        with saved_tensors_hooks(self._keep, lambda tensor: tensor):
            yield
        for hook in hooks:
            hook.remove()

    def _layer_begins(self, _layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._awaited = inputs[0].numel() if inputs and isinstance(inputs[0], torch.Tensor) else 0

    def _layer_ended(self, *_: Any) -> None:
        self._awaited = 0

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        place, count = storage.data_ptr(), tensor.numel()
        if place in self._parameters:
            return tensor
        self.bytes[place] = storage.nbytes()
        if count == self._awaited:  # the input, or its cast copy
            self.values[place], self._awaited = count, 0
        return tensor


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(each.nbytes for each in tensors)
