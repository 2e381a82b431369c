"""Recorder that captures and replays operations on machines without a GPU, as CUDA graphs do.

Capturing computes nothing. A replay runs no Python, keeps every tensor's address, and uses the
numbers of the capture. Tensors that the capture makes are filled with NaN, so that a read before
the first write shows. Tensors from outside are not kept alive: a replay that reads freed memory
fails. A replay fills what other recordings in its pool made with NaN, as they may share memory. The
recorder has no streams, and draws from the CPU's generator.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from photofinish.training.graphs import Recorded

READS = (
    "aten._local_scalar_dense",
    "aten.is_nonzero",  # which inference mode does not take apart
    "aten.item",
    "aten.nonzero",
    "aten.equal",
    "aten.masked_select",
    "aten._unique2",
)
"""Operators for which the host waits, so that a graph can't capture them."""


class Outside(NamedTuple):
    """Weak reference to a tensor that existed before the recording."""

    storage: Callable[[], torch.UntypedStorage | None]
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Outside:
        storage = weakref.ref(tensor.untyped_storage())
        return cls(storage, tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride())

    def tensor(self) -> torch.Tensor:
        storage = self.storage()
        if storage is None:
            raise AssertionError(
                f"a replay reads freed memory: {self.dtype} of shape {tuple(self.size)}"
            )
        return torch.empty(0, dtype=self.dtype, device=storage.device).set_(
            storage, self.offset, self.size, self.stride
        )


@dataclass(frozen=True)
class Operation:
    """One that was recorded: what to call, and where its results go."""

    name: str
    again: Callable[[], Any]
    results: list[Any]
    """Results that the operation made, and None for others."""


@dataclass
class OperationRecorder:
    """Stands in for `CudaRecorder`."""

    recordings: list[list[Operation]] = field(default_factory=list)
    """Operations to replay, for each recording. Views are left out."""
    fails: bool = False
    """Raise an error at the end of a recording."""
    fails_in: str = "nothing"
    """Prefix of the operation at which a recording fails."""
    times_done: int = 0

    def beside(self) -> AbstractContextManager[None]:
        """There is one place only."""
        return nullcontext()

    def new_pool(self) -> list[_Recording]:
        """Return an empty list of the recordings that share memory."""
        return []

    def record(
        self, work: Callable[[], Any], pool: list[_Recording] | None = None
    ) -> Recorded[Any]:
        """Like torch.cuda.graph around the work."""
        mode = _Recording(self.fails_in)
        try:
            with torch.random.fork_rng(devices=[]), mode:
                output = work()
        finally:
            mode.undo()
        if self.fails:
            try:
                raise RuntimeError(
                    "operation not permitted when stream is capturing\nCUDA kernel errors might be"
                )
            finally:  # as the end of a capture does
                raise RuntimeError("operation failed due to a previous error during capture")
        self.recordings.append(mode.operations)
        sharing = [] if pool is None else pool
        sharing.append(mode)

        def again() -> None:
            self.times_done += 1
            for other in sharing:
                if other is not mode:
                    other.spoil()
            with torch.no_grad():
                for operation in mode.operations:
                    for place, result in zip(
                        operation.results, tree_leaves(operation.again()), strict=True
                    ):
                        if place is not None:
                            place.copy_(result)

        return Recorded(output, again)


class _Recording(TorchDispatchMode):
    def __init__(self, fails_in: str) -> None:
        super().__init__()
        self._fails_in = fails_in
        self.operations: list[Operation] = []
        self._made: dict[int, torch.Tensor] = {}
        """Tensors made, by address. They are kept, so that no address is reused."""
        self._found: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        """Storages from outside, with copies of their content."""

    def __torch_dispatch__(
        self, operation: Any, _types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        name, named = str(operation), named or {}
        if name.startswith(self._fails_in):
            raise RuntimeError(f"{name} fails")
        if name.startswith(READS):
            raise RuntimeError(f"{name} reads a value back, which nothing that is recorded can")
        leaves = tree_leaves((arguments, named))
        tensors = {_place(each): each for each in leaves if isinstance(each, torch.Tensor)}
        for place in tensors.keys() - self._made.keys() - self._found.keys():
            storage = tensors[place].untyped_storage()
            self._found[place] = storage, storage.clone()
        kept = tree_map_only(torch.Tensor, self._kept, (arguments, named))
        results = operation(*arguments, **named)
        made = [
            each.detach()
            if isinstance(each, torch.Tensor) and each.numel() and _place(each) not in tensors
            else None
            for each in tree_leaves(results)
        ]
        self._made.update((_place(each), each) for each in made if each is not None)
        is_in_place = name.split(".")[1].endswith("_") or name.endswith("out")
        if is_in_place or any(each is not None for each in made):
            again = partial(_replay, operation, kept)
            self.operations.append(Operation(name, again, made))
        return results

    def undo(self) -> None:
        """Restore the tensors from outside, and spoil the recorded ones."""
        for now, before in self._found.values():
            now.copy_(before)
        self._found.clear()
        self.spoil()

    def spoil(self) -> None:
        """Fill the recorded tensors with NaN."""
        with torch.inference_mode():
            for made in self._made.values():
                made.fill_(float("nan") if made.is_floating_point() else -1)

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor | Outside:
        return tensor.detach() if _place(tensor) in self._made else Outside.of(tensor)


def _replay(operation: Callable[..., Any], kept: Any) -> Any:
    arguments, named = tree_map_only(
        Outside, Outside.tensor, kept, is_leaf=lambda each: isinstance(each, Outside)
    )
    return operation(*arguments, **named)


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
