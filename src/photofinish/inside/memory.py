"""Memory that a step takes on a GPU, from the storages that the same step makes on the CPU.

| on a GPU | on the CPU | source |
| --- | --- | --- |
| An optimizer copies all weights at once. | one by one | torch/optim/adam.py |
| A dropout's mask has 1 byte a value. | 4 bytes | aten/src/ATen/native/cuda/Dropout.cu |
| An autocast on CUDA makes 16 bits, and copies weights. | 32 | docs.pytorch.org/docs/stable/amp |
| Attention and recurrent layers are one operator. | many | fused.py |
| cuBLAS has a workspace in each thread. | none | aten/src/ATen/cuda/CublasHandlePool.cpp |
| The driver loads kernels. | none | github.com/pytorch/pytorch/issues/107667 |

answer/estimates.py adds the last two. The workspaces of cuDNN are not known.
"""

from __future__ import annotations

import re
import weakref
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .tensors import tensors_in
from .timed_batches import is_loading

_ROUNDED, _SMALL, _LARGE = 512, 2**20, 10 * 2**20
"""Multiple of all sizes, largest small size and least large size, as in PyTorch's source."""
_KEEPS_32_BITS = re.compile(
    "layer_norm|group_norm|softmax|softplus|loss|exp|log|pow|prod|sum|rsqrt|cdist"
)
"""Parts of the names of operators that an autocast on CUDA computes in 32 bits."""


def takes_all_at_once(defaults: Mapping[str, Any]) -> bool:
    """Return True if an optimizer takes all weights at once on a GPU, which is its default."""
    return bool(defaults.get("fused") or defaults.get("foreach", False) is not False)


def gradients_of(weights: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients with a value for each of a weight's. Sparse ones have no storage."""
    every = [weight.grad for weight in weights if weight.grad is not None]
    return [gradient for gradient in every if gradient.layout is torch.strided]


class Allocations:
    """Storages from before a step, the births and deaths of others, and what autograd saves."""

    def __init__(self, *, is_cast: bool = False, compiles: bool = False) -> None:
        self.compiles, self.is_cast = compiles, is_cast
        """True to count as an autocast on CUDA. To compute in 16 bits would change the script."""
        self._known: dict[int, tuple[int, Any]] = {}
        """Number of each living storage by its id, with a reference that sees its death."""
        self._sizes: list[int] = []
        self._before: list[int] = []
        """Numbers of the storages from before."""
        self._events: list[int] = []
        """Number of a storage at its birth, and inverted at its death."""
        self._hidden: set[int] = set()
        """Numbers of storages that a GPU would not make, until they are used."""
        self._halved: set[int] = set()
        self._weights: set[int] = set()
        self._fixed: set[int] = set()
        self.saved: dict[int, int] = {}
        """Size of each storage that autograd saves."""

    def note(self, values: Any, *, is_new: bool = True, is_hidden: bool = False) -> set[int]:
        """Return the numbers of storages. Those that are unknown are new, or from before."""
        numbers = set()
        for tensor in tensors_in(values):
            try:
                storage = tensor.untyped_storage()
            except (NotImplementedError, RuntimeError):  # of a sparse tensor or a subclass
                continue
            key = id(storage)  # which lasts as long as the storage
            number = self._known[key][0] if key in self._known else len(self._sizes)
            numbers.add(number)
            if number == len(self._sizes):
                self._sizes.append(storage.nbytes())
                self._known[key] = number, weakref.ref(storage, partial(self._died, key))
                if is_hidden:
                    self._hidden.add(number)
                else:
                    (self._events if is_new else self._before).append(number)
            elif number in self._hidden and not is_hidden:
                self._hidden.remove(number)
                self._events.append(number)
        return numbers

    def _died(self, key: int, _: Any) -> None:
        number, _ = self._known.pop(key)
        if number not in self._hidden:
            self._events.append(~number)

    def hold(self, tensors: Any = (), size: int = 0) -> set[int]:
        """Note tensors, or memory of a size, that stay for other batches."""
        numbers = self.note(tensors, is_new=False)
        if size:
            numbers.add(len(self._sizes))
            self._before.append(len(self._sizes))
            self._sizes.append(size)
        self._fixed |= numbers
        return numbers

    def hold_state(self, optimizer: Optimizer) -> None:
        """Note an optimizer's state. Numbers of steps stay on the CPU."""
        self.hold([each for each in tensors_in([*optimizer.state.values()]) if each.dim()])

    def optimizer_stepped(self, optimizer: Optimizer, defaults: Mapping[str, Any]) -> None:
        """Note what it made, and its copies of weights on a GPU, unless it is fused."""
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        gradients = gradients_of(weights)
        self.note(gradients)
        self.hold_state(optimizer)
        name, copies = type(optimizer).__name__, 0
        if takes_all_at_once(defaults) and not defaults.get("fused"):
            adds_decay = not defaults.get("decoupled_weight_decay", name == "AdamW")
            copies = (name != "SGD") + bool(adds_decay and defaults.get("weight_decay"))
        began_with = len(self._sizes)
        self._sizes += copies * [gradient.nbytes for gradient in gradients]
        numbers = range(began_with, len(self._sizes))
        self._events += [*numbers, *(~number for number in numbers)]

    def ran(self, name: str, arguments: Any, output: Any, *, is_product: bool) -> None:
        """Note what an operator made, in the sizes that it would have on a GPU."""
        made = self.note(output) - self.note(arguments)
        if name == "aten::bernoulli_.float":  # of a dropout
            for mask in self.note(output):
                self._sizes[mask] = output.numel()
        elif name == "aten::_to_copy" and self.note(arguments) <= self._weights:
            self._weights |= made  # a weight in another type
        if not self.is_cast:
            return
        # Biases and what a batch norm has are cast, or leave the output's type as it is.
        floats = [each for each in tensors_in(arguments) if each.dtype == torch.float32]
        inputs = self.note([each for each in floats if each.dim() > 1])
        if is_product:  # the copies of its inputs are kept
            made |= inputs.difference(self._halved, self._before)
        elif not inputs or not inputs <= self._halved or _KEEPS_32_BITS.search(name):
            return
        for number in made:
            self._sizes[number] //= 2
        self._halved |= made

    def casts(self, factors: Any) -> int:
        """Return the casts of weights in a forward pass by an autocast, and of their gradients."""
        if not (self.is_cast and torch.is_grad_enabled()):
            return 0
        floats = [each for each in tensors_in(factors) if each.dtype == torch.float32]
        return sum(1 + each.requires_grad for each in floats if self.note(each) <= self._weights)

    def save(self, tensor: Tensor) -> Tensor:
        """Note a tensor that autograd saves, except weights. Return it without its graph."""
        if not is_loading():
            halves = self.is_cast and tensor.dtype == torch.float32
            for number in self.note(tensor, is_new=False) - self._weights:
                size = tensor.untyped_storage().nbytes() // (1 + halves)
                self.saved[number] = min(size, self._sizes[number])
        return tensor if self.compiles else tensor.detach()  # or an output kept its own node

    def add_weight(self, weight: Tensor) -> None:
        """Note a weight that was found, and its gradient from the step before."""
        self._weights |= self.hold(weight)
        self.hold(weight.grad)

    def replayed(self) -> CachingAllocator:
        """Return an allocator after what it does for this step on a GPU."""
        allocator = CachingAllocator()
        blocks: dict[int, tuple[bool, int, int]] = {}
        for number in (*self._before, *self._events):
            if number >= 0:
                blocks[number] = allocator.allocate(self._sizes[number])
            else:
                allocator.free(*blocks.pop(~number))
        return allocator

    def fields(self, gradients: Iterable[Tensor] = ()) -> dict[str, int]:
        """Return the step's peaks as fields of `Operations`, and what it takes without a batch."""
        for gradient in gradients if self.is_cast else ():
            for number in self.note(gradient):
                self._sizes[number] = gradient.nbytes
            self.hold(size=gradient.nbytes // 2)  # the weight in 16 bits
        allocator = self.replayed()
        return {
            "fixed_bytes": sum(self._sizes[number] for number in self._fixed),
            "peak_allocated_bytes": allocator.peak_allocated_bytes,
            "peak_reserved_bytes": allocator.reserved_bytes,
        }


class CachingAllocator:
    """PyTorch's allocator on CUDA, with its default settings (c10/cuda/CUDACachingAllocator.cpp).

    It keeps the segments that it takes from the driver. A block is the smallest free one that is
    large enough, and leaves its rest free.
    """

    def __init__(self) -> None:
        self.allocated_bytes = self.peak_allocated_bytes = self.reserved_bytes = 0
        self._pools: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        """Sizes and addresses of free blocks, apart for small ones and others."""
        self._free: dict[int, int] = {}
        """Size of each free block by its address."""
        self._ends: dict[int, int] = {}
        """Address of each free block by that of its end."""

    def allocate(self, size: int) -> tuple[bool, int, int]:
        size = max(1, -(-size // _ROUNDED)) * _ROUNDED
        is_small = size <= _SMALL
        pool = self._pools[is_small]
        place = bisect_left(pool, (size, 0))
        if place == len(pool):
            segment = 2 * _SMALL * -(-size // (2 * _SMALL))
            segment = 2 * _LARGE if not is_small and size < _LARGE else segment
            self._add(is_small, 2 * self.reserved_bytes, segment)  # no segments are adjacent
            self.reserved_bytes += segment
        whole, address = pool[place]
        self._remove(is_small, address)
        if whole - size >= _ROUNDED if is_small else whole - size > _SMALL:
            self._add(is_small, address + size, whole - size)
            whole = size
        self.allocated_bytes += whole
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return is_small, address, whole

    def free(self, is_small: bool, address: int, size: int) -> None:
        self.allocated_bytes -= size
        if address + size in self._free:
            size += self._remove(is_small, address + size)
        if address in self._ends:
            address = self._ends[address]
            size += self._remove(is_small, address)
        self._add(is_small, address, size)

    def _add(self, is_small: bool, address: int, size: int) -> None:
        insort(self._pools[is_small], (size, address))
        self._free[address], self._ends[address + size] = size, address

    def _remove(self, is_small: bool, address: int) -> int:
        size, pool = self._free.pop(address), self._pools[is_small]
        del self._ends[address + size], pool[bisect_left(pool, (size, address))]
        return size
