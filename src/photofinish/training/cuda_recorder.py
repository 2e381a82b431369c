"""Recorder of work in CUDA graphs, whose replay runs no Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import torch

Output = TypeVar("Output")


class Recorded(NamedTuple, Generic[Output]):
    output: Output
    """Result, which each replay overwrites."""
    replay: Callable[[], None]


class CudaRecorder:
    """Recorder of work in CUDA graphs, on a separate stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Run work on the capture's stream, so that libraries create their workspaces for it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    def new_pool(self) -> Any:
        """Return a handle of memory that several graphs may share."""
        return torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], Output], pool: Any = None) -> Recorded[Output]:
        """Capture the work without running it.

        A replay may overwrite all results and intermediate tensors of other graphs in its pool.
        """
        stream = torch.cuda.current_stream()
        generator = torch.cuda.default_generators[self._device.index]
        graph = torch.cuda.CUDAGraph()
        # Thread-local, as a loader's thread may pin memory meanwhile.
        capture = torch.cuda.graph(
            graph, pool, stream=self._stream, capture_error_mode="thread_local"
        )
        try:
            with capture:
                output = work()
        except RuntimeError:
            # PyTorch would stay on the capture's stream. Before 2.14 its generator would not draw.
            torch.cuda.set_stream(stream)
            generator.graphsafe_set_state(generator.clone_state())
            raise
        return Recorded(output, graph.replay)


@cache
def recorder_of(device: torch.device) -> CudaRecorder | None:
    """Return the recorder of a CUDA or ROCm device, or None: other devices' graphs are untested.

    A device has a single recorder, because cuBLAS keeps a workspace for each stream it ever used.
    """
    return CudaRecorder(device) if device.type == "cuda" else None


def first_failure(error: BaseException) -> str:
    """Return the first line of the original error, which the end of a failed capture hides."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return str(error).strip().partition("\n")[0]
