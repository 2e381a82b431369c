"""The simulated accelerator, which PyTorch loads from the entry points `torch.backends`.

Every Python that has the folder of its build on its path finds it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

NAME, DEVICES = "rehearsal", 2
_LIBRARY = Path(__file__).with_name("device.so")
_METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: rehearsal-device\nVersion: 1.0\n",
    "entry_points.txt": "[torch.backends]\nrehearsal = rehearsal_device:register\n",
}
_IN_A_WARM_PYTHON = """
import sys
if "torch" in sys.modules:
    import rehearsal_device
    rehearsal_device.register()
"""
"""Module sitecustomize, for a Python that had imported torch before (warm_python.py)."""


@dataclass(frozen=True)
class Counts:
    """Counts since the start of the process."""

    operations: int
    """Number of operations that the device computed."""
    waits: int
    """Number of explicit synchronizations."""
    reads: int
    """Number of copies to the host, and of operations such as `nonzero` that depend on values."""
    copies_in: int
    """Number of copies from the main memory to the device."""
    waiting_copies_in: int
    """Number of those that the host waits for.

    They are not `non_blocking`, or their memory isn't pinned.
    """

    def __sub__(self, earlier: Counts) -> Counts:
        return Counts(
            *(getattr(self, each.name) - getattr(earlier, each.name) for each in fields(self))
        )


def counts() -> Counts:
    values = (ctypes.c_long * len(fields(Counts)))()
    _library().rehearsal_counts(values)
    return Counts(*values)


def most_held_bytes() -> int:
    """Return the most memory that the devices' tensors had at once since the last call."""
    library = _library()
    library.rehearsal_most_held_bytes.restype = ctypes.c_long
    return int(library.rehearsal_most_held_bytes())


def hold_clock() -> None:
    """Let this process's time pass by planted work and waits only, from `sleep` on.

    Modules that are imported later find it in `time`.
    """
    library = _library()
    library.rehearsal_now.restype = ctypes.c_double
    library.rehearsal_hold()
    time.perf_counter = library.rehearsal_now
    time.sleep = lambda seconds: library.rehearsal_pass(ctypes.c_double(seconds))


def launch(seconds: float) -> None:
    """Give the device work that takes so long, without waiting for it."""
    _library().rehearsal_launch(ctypes.c_double(seconds))


def capture(is_on: bool) -> None:
    """Refuse events and waits, as while a CUDA graph is captured. Work takes no time."""
    import torch

    _library().rehearsal_capture(is_on)
    torch.cuda.is_initialized = torch.cuda.is_current_stream_capturing = lambda: is_on


def register() -> None:
    """Called at the end of `import torch`."""
    import torch

    torch.utils.rename_privateuse1_backend(NAME)
    _library().rehearsal_start()
    torch._register_device_module(NAME, _device_module())


def _generator_state(_device: object = NAME) -> torch.Tensor:
    import torch

    state = torch.empty(_library().rehearsal_generator(None), dtype=torch.uint8)
    _library().rehearsal_generator(ctypes.c_void_p(state.data_ptr()))
    return state


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(_LIBRARY))


def _device_module() -> ModuleType:
    """`torch.rehearsal`: what PyTorch asks of a device's module."""
    import torch

    process, module = os.getpid(), ModuleType(f"torch.{NAME}")
    functions = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: DEVICES,
        "current_device": torch.accelerator.current_device_index,
        "set_device": torch.accelerator.set_device_index,
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
        "manual_seed_all": lambda seed: _library().rehearsal_seed(ctypes.c_uint64(seed)),
        "get_rng_state": _generator_state,
        "_is_in_bad_fork": lambda: os.getpid() != process,
    }
    vars(module).update(functions)
    return module


def compiler() -> str | None:
    wanted = os.environ.get("CXX", "c++")
    return shutil.which(wanted) or shutil.which("g++")


def build(folder: Path, compiler: str, kept: Path) -> None:
    """Into an empty folder; ten seconds or so, unless an equal one is kept from an earlier run."""
    import torch

    distribution = folder / "rehearsal_device-1.0.dist-info"
    distribution.mkdir(parents=True)
    for name, text in _METADATA.items():
        (distribution / name).write_text(text, encoding="utf-8")
    shutil.copy2(__file__, folder)
    (folder / "sitecustomize.py").write_text(_IN_A_WARM_PYTHON, encoding="utf-8")
    source, installed = Path(__file__).with_name("device.cpp"), Path(torch.__file__).parent
    command = [compiler, "-std=c++20", "-O0", "-w", "-shared", "-fPIC", str(source)]
    command += [f"-I{installed / 'include'}", f"-L{installed / 'lib'}", "-lc10", "-ltorch_cpu"]
    made_of = [torch.__version__.encode(), str(command).encode(), source.read_bytes()]
    library = kept / f"{hashlib.sha256(b' '.join(made_of)).hexdigest()}.so"
    if not library.is_file():
        ran = subprocess.run(
            [*command, "-o", "device.so"], cwd=folder, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr[-4000:]
        copied = shutil.copy2(folder / "device.so", kept / f"{os.getpid()}.so")
        copied.replace(library)
    shutil.copy2(library, folder / "device.so")
