"""What a training step computes, keeps and moves: counted on one step, on a copy of the network, as it runs.

Operations are products of matrices and convolutions, forward and backward, as torch's own counter has them. It counts
the usual way of computing each; `least_flops` is what no machine does with fewer of:

* A convolution with a large filter may be done in another basis (Winograd, FFT), with fewer multiplications. The
  libraries that PyTorch calls get down to 4/3 for each place and direction (Winograd's F(6x6, 3x3)), or 2 for each
  place (FFT). A stride splits a filter into smaller ones. What meets the zeros around an image needn't be done at all.
* Products of many small matrices count two fifths: attention's are among them, of which a mask may leave half out, and
  which its backward pass computes again or doesn't.

Of what lies in memory from the forward to the backward pass, `kept_values` are the inputs of convolutions, linear
layers and normalisations: their backward passes need them, on every device. Masks, indices and whatever only the CPU's
operators keep aren't among them. Each storage counts once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from photofinish.measuring.rehearsal import rehearsal
from photofinish.models.registry import BATCH_NORMS
from photofinish.results.records import Operations
from photofinish.training.trainer import Trainer

_LEAST_OF_FILTERS = {1: 1.0, 2: 7 / 6}
"""multiplications for each place, in one direction, by the filter's length"""
_LEAST_OF_LARGE_FILTERS = 4 / 3
_LEAST_BY_FFT = 2.0
"""for each place, in all directions together"""
_BATCHED_SHARE = 0.4
_BATCHED = ("bmm", "attention")
"""in an operator's name"""
_CONVOLUTIONS = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip
_WEIGHTED = (*_CONVOLUTIONS, nn.Linear, *BATCH_NORMS, nn.LayerNorm, nn.GroupNorm)
Numbers = Sequence[int]


class StepCount(NamedTuple):
    """Of one forward and backward pass."""

    flops: int
    least_flops: int
    kept_values: int
    kept_parameter_bytes: int
    all_kept_bytes: int


def count_operations(trainer: Trainer) -> Operations:
    """Of a step on the first batch."""
    images, labels = batch = next(iter(trainer.training.shuffled(0)))
    image_count = trainer.training.image_count + trainer.validation.image_count
    with rehearsal(trainer) as state:
        counted = count_step(state.network, partial(trainer.loss, state, 0, batch))
        state.optimizer.step()
        held = [value for values in state.optimizer.state.values() for value in values.values()]
        parameters = list(state.network.parameters())
        return Operations(
            images=len(images),
            **counted._asdict(),
            parameter_bytes=_bytes(parameters),
            gradient_bytes=_bytes(each.grad for each in parameters if each.grad is not None),
            optimizer_bytes=_bytes(each for each in held if isinstance(each, torch.Tensor)),
            batch_bytes=_bytes([images, labels]) if trainer.experiment.input.name == "loader" else 0,
            resident_bytes=image_count * images[0].nbytes if trainer.experiment.input.name == "resident" else 0,
        )


def count_step(network: nn.Module, loss: Callable[[], torch.Tensor]) -> StepCount:
    """Of computing the loss with the network, and of its gradients."""
    convolutions, kept = _Convolutions(), _Kept(network)
    mapping = {
        torch.ops.aten.convolution: convolutions.forward,
        torch.ops.aten.convolution_backward: convolutions.backward,
    }
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        with kept.watched():
            computed = loss()
        computed.backward()  # type: ignore[no-untyped-call]
    usual = counter.get_total_flops()
    by_operator = {str(operator): count for operator, count in counter.get_flop_counts().get("Global", {}).items()}
    batched = sum(count for name, count in by_operator.items() if any(part in name for part in _BATCHED))
    least = usual - convolutions.usual + convolutions.least - (1 - _BATCHED_SHARE) * batched
    kept_bytes = (sum(each.values()) for each in (kept.values, kept.parameter_bytes, kept.other_bytes))
    return StepCount(usual, math.floor(least), *kept_bytes)


class _Convolutions:
    """Adds up convolutions, by the shapes that torch's counter hands on; it is given the usual count."""

    def __init__(self) -> None:
        self.usual = self.least = 0

    def forward(
        self, images: Numbers, weight: Numbers, _bias: Any, stride: Numbers, padding: Numbers, dilation: Numbers,
        transposed: bool, *_: Any, out_shape: Numbers,
    ) -> int:  # fmt: skip
        """Of aten.convolution."""
        return self._add(1, images, out_shape, weight, (stride, padding, dilation), transposed)

    def backward(
        self, gradient: Numbers, images: Numbers, weight: Numbers, _bias: Any, stride: Numbers, padding: Numbers,
        dilation: Numbers, transposed: bool, _padding: Numbers, _groups: int, wanted: Sequence[bool], **_: Any,
    ) -> int:  # fmt: skip
        """Of aten.convolution_backward: for the images and for the weights, each as much as forward."""
        return self._add(sum(wanted[:2]), images, gradient, weight, (stride, padding, dilation), transposed)

    def _add(
        self, passes: int, images: Numbers, out: Numbers, weight: Numbers, geometry: tuple[Numbers, ...],
        transposed: bool,
    ) -> int:  # fmt: skip
        # A transposed convolution goes the other way: its filter is laid on each place of what comes in.
        places, lengths, taps = images[2:] if transposed else out[2:], out[2:] if transposed else images[2:], weight[2:]
        per_place = passes * 2 * images[0] * weight[0] * weight[1]
        usual = per_place * math.prod(places) * math.prod(taps)
        self.usual += usual
        self.least += math.floor(per_place * least_multiplications(places, lengths, taps, *geometry))
        return usual


def least_multiplications(
    places: Numbers, lengths: Numbers, taps: Numbers, strides: Numbers, paddings: Numbers, dilations: Numbers
) -> float:
    """Of a filter with so many taps in each direction that is laid on so many places of an image of these lengths."""
    least, directions = 1.0, len(places)
    geometry = [each if len(each) == directions else [each[0]] * directions for each in (strides, paddings, dilations)]
    for count, length, filter_taps, stride, padding, dilation in zip(places, lengths, taps, *geometry, strict=True):
        within = _within(count, length, filter_taps, stride, padding, dilation)
        parts = [len(range(start, filter_taps, stride)) for start in range(min(stride, filter_taps))]
        least *= min(within, count * sum(_LEAST_OF_FILTERS.get(part, _LEAST_OF_LARGE_FILTERS) for part in parts))
    return min(least, _LEAST_BY_FFT * math.prod(places) * math.prod(geometry[0]))  # which finds what strides leave out


def _within(places: int, length: int, taps: int, stride: int, padding: int, dilation: int) -> int:
    """How often a tap of the filter meets the image, in one direction."""
    met = 0
    for tap in range(taps):
        before = padding - tap * dilation
        first, last = max(0, -(-before // stride)), min(places - 1, (length - 1 + before) // stride)
        met += max(0, last - first + 1)
    return met


class _Kept:
    """What autograd keeps during a forward pass, by where in memory it lies."""

    def __init__(self, network: nn.Module) -> None:
        self._layers = [each for each in network.modules() if isinstance(each, _WEIGHTED)]
        self._parameters = {each.untyped_storage().data_ptr(): each.nbytes for each in network.parameters()}
        self._awaited = 0
        """how many numbers the input has of the layer that is computed now, until it is kept"""
        self.values: dict[int, int] = {}
        self.parameter_bytes: dict[int, int] = {}
        self.other_bytes: dict[int, int] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While the network computes."""
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
            self.parameter_bytes[place] = self._parameters[place]
            return tensor
        self.other_bytes[place] = storage.nbytes()
        if count == self._awaited:  # of what a layer keeps, the first that is as large: the input, or its short copy
            self.values[place], self._awaited = count, 0
        return tensor


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(each.nbytes for each in tensors)
