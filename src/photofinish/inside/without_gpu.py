"""CUDA that means the CPU, for a script that asks for a GPU without checking if one is here.

Functions are replaced, so no mode slows a step. `torch.cuda.is_available()` stays False.
"""

from __future__ import annotations

import copyreg
import functools
import linecache
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .timed_batches import library_of

_FACTORIES = (
    "arange", "as_tensor", "asarray", "empty", "empty_like", "empty_strided", "eye", "full",
    "full_like", "hamming_window", "hann_window", "linspace", "logspace", "normal", "ones",
    "ones_like", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm",
    "scalar_tensor", "sparse_coo_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
    "zeros_like",
)  # fmt: skip
_METHODS = "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros", "to"
_ANSWERS = {
    "current_device": 0, "device_count": 1, "get_device_capability": (0, 0),
    "get_device_name": "CPU", "init": None, "initial_seed": 0, "ipc_collect": None,
    "mem_get_info": (1, 1), "memory_stats": Counter(), "memory_summary": "", "memory_usage": 0,
    "power_draw": 0, "reset_max_memory_allocated": None, "reset_peak_memory_stats": None,
    "set_device": None, "set_per_process_memory_fraction": None, "set_rng_state": None,
    "set_stream": None, "synchronize": None, "temperature": 0, "utilization": 0,
    "get_device_properties": SimpleNamespace(name="CPU", total_memory=1, major=0, minor=0,
                                             multi_processor_count=0),
}  # fmt: skip
"""What functions of torch.cuda return that would raise an error."""
_OF_GPU = re.compile(r"cuda|nvidia|nccl|accelerator|\b(hip|gpus?|mps|xpu)\b", re.I)
_OF_NAMES = AttributeError, ImportError, LookupError, NameError, OSError, TypeError


class _Stream:
    """Stand-in for a stream, an event and a choice of either: all that was asked for has ended."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at = time.perf_counter()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def record(self, *_: Any) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, end: _Stream) -> float:
        return 1000 * (end._at - self._at)

    def query(self) -> bool:
        return True

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def map_cuda_to_the_cpu(torch: Any) -> None:
    """Replace what moves to a GPU, creates tensors there, or asks about one."""
    real, cpu, load = torch.device, torch.device("cpu"), torch.load

    def on_cpu(place: Any) -> Any:
        # The first comparison saves 0.4 us a move, of steps that take 70 us.
        is_cuda = place is cpu or isinstance(place, int) or str(place).startswith("cuda")
        return cpu if is_cuda and not isinstance(place, bool) else place

    def mapped(function: Callable[..., Any], first: int) -> Callable[..., Any]:
        """Map the argument `device`, and the one at the place `first`, which may be a device."""

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            if len(arguments) > first and isinstance(arguments[first], (str, int, real)):
                place = on_cpu(arguments[first])
                arguments = (*arguments[:first], place, *arguments[first + 1 :])
            if "device" in named:
                named["device"] = on_cpu(named["device"])
            named.pop("pin_memory", None)
            return function(*arguments, **named)

        return call

    class OfDevice(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, real)

        def __eq__(cls, other: object) -> bool:
            return other is real or other is cls

        def __hash__(cls) -> int:
            return hash(real)

        def __call__(cls, *place: Any, **named: Any) -> Any:
            found = on_cpu([*place, *named.values()][0])
            return found if found == cpu else real(*place, **named)

    class Generator(torch.Generator):  # type: ignore[misc]
        def __new__(cls, *_: Any, **__: Any) -> Any:
            return super().__new__(cls, device="cpu")

    def load_on_cpu(f: Any, _place: Any = None, *arguments: Any, **named: Any) -> Any:
        named.pop("map_location", None)
        return load(f, "cpu", *arguments, **named)

    def with_type(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            return function(*(each.replace("torch.cuda.", "torch.") if isinstance(each, str)
                              else each for each in arguments), **named)  # fmt: skip

        return call

    # A checkpoint of this run has a device by its usual name.
    torch.device = OfDevice("device", (), {"__module__": "torch"})
    copyreg.pickle(real, lambda value: (torch.device, (str(value),)))
    torch.Generator, torch.load = Generator, load_on_cpu
    for name in _FACTORIES:
        setattr(torch, name, mapped(getattr(torch, name), sys.maxsize))
    torch.set_default_device = mapped(torch.set_default_device, 0)
    torch.set_default_tensor_type = with_type(torch.set_default_tensor_type)
    tensor, module = torch.Tensor, torch.nn.Module
    for name in _METHODS:
        setattr(tensor, name, mapped(getattr(tensor, name), 1 if name == "to" else sys.maxsize))
    module.to, tensor.type = mapped(module.to, 1), with_type(tensor.type)
    for moved in (tensor, module, torch.UntypedStorage):
        moved.cuda = moved.pin_memory = lambda itself, *_, **__: itself
    # The search for stalls sees `to`. torch.compile of torch 2.6 can call it by its name only.
    tensor.cuda = lambda itself, *_, **__: itself.to(cpu)
    if hasattr(torch, "accelerator"):  # from torch 2.6 on
        torch.accelerator.synchronize = lambda *_: None
    tensor.record_stream = lambda *_: None
    _train_together_on_cpu(torch)
    cuda = torch.cuda
    for name, answer in _ANSWERS.items():
        setattr(cuda, name, lambda *_, answer=answer, **__: answer)
    cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    for name in ("Event", "Stream", "current_stream", "default_stream", "device", "stream"):
        setattr(cuda, name, type(name, (_Stream,), {}))  # torch.compile tells them apart
    for name in dir(cuda):
        if name.endswith("Tensor") and hasattr(torch, name):
            setattr(cuda, name, getattr(torch, name))


def _train_together_on_cpu(torch: Any) -> None:
    """Let processes that were to exchange gradients between GPUs do so between CPUs."""
    if not torch.distributed.is_available():
        return
    distributed = torch.distributed
    wrapper = torch.nn.parallel.DistributedDataParallel
    begin, barrier = distributed.init_process_group, distributed.barrier
    wrap = wrapper.__init__

    def begin_on_cpu(*arguments: Any, **named: Any) -> None:
        for name in ("backend", "device_id"):
            named.pop(name, None)
        begin("gloo", *arguments[1:], **named)

    def wrap_on_cpu(itself: Any, module: Any, *_: Any, **named: Any) -> None:
        wrap(itself, module, **named | {"device_ids": None, "output_device": None})

    distributed.init_process_group = begin_on_cpu
    wrapper.__init__ = wrap_on_cpu
    distributed.barrier = lambda group=None, *_, **__: barrier(group)


def failure() -> dict[str, Any] | None:
    """Return the error that ends the script as it has no GPU, and the script's line, or None."""
    error = getattr(sys, "last_value", None)
    frames = traceback.extract_tb(error.__traceback__) if error else []
    own = [each for each in frames if library_of(each.filename) is None]
    if not own:
        return None
    line = linecache.getline(own[-1].filename, own[-1].lineno or 0).strip()
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    is_own_check = frames[-1] == own[-1] and bool(re.search(r"\b(assert|raise) ", line))
    # A missing file may have such a name. A check, and a division by 0 GPUs, may have no text.
    searched = f"{text} {line}" if is_own_check or isinstance(error, ZeroDivisionError) else text
    if isinstance(error, _OF_NAMES) or not _OF_GPU.search(searched):
        return None
    at = f"{own[-1].filename.rpartition('/')[2]}:{own[-1].lineno}"
    return {"at": at, "line": line, "text": text, "is_own_check": is_own_check}
