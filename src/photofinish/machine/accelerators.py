"""The accelerators of this machine, as its drivers list them: torch, which takes seconds to import, isn't asked."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pynvml

from photofinish.machine.cpu import mac_cpu_name, read_or_empty
from photofinish.machine.software import torch_cuda_version, torch_rocm_version, torch_version

if TYPE_CHECKING:
    from photofinish.params.devices import GpuDevice


@dataclass(frozen=True)
class AcceleratorFacts:
    """What of an accelerator determines speed and bits."""

    kind: Literal["cuda", "mps", "xpu"]
    name: str
    memory_bytes: int | None
    driver: str


Accelerators = dict[str, tuple[AcceleratorFacts, ...] | str]
"""of each kind: those of this machine, or why there are none"""


def all_accelerators() -> Accelerators:
    """The accelerators of this machine, after a look for every kind."""
    looks = {"cuda": _cuda_gpus(), "mps": _apple_gpus(), "xpu": _intel_gpus()}
    return {kind: tuple(gpus) or reason for kind, (gpus, reason) in looks.items()}


def accelerators_to_use(gpu: GpuDevice, here: Accelerators) -> tuple[list[AcceleratorFacts], str | None]:
    """The accelerators that the settings ask for, or none and the reason why."""
    found, missing = accelerators(gpu.kind, here)
    if missing:
        return [], missing
    highest = max(gpu.device_ids or (), default=0)
    if highest >= len(found):
        return [], f"devices.gpu.device_ids names GPU {highest}, and the GPUs here are numbered 0 to {len(found) - 1}"
    if gpu.device_ids is not None:
        return [found[index] for index in gpu.device_ids], None
    count = len(found) if gpu.wanted_count == "all" else gpu.wanted_count
    if count > len(found):
        return [], f"{count} GPUs asked for (devices.gpu.count), {len(found)} here"
    return found[:count], None


def accelerators(kind: str, here: Accelerators) -> tuple[list[AcceleratorFacts], str | None]:
    """All accelerators of the wanted kind (`auto`: of the first there is), or none and the reason why."""
    reasons = []
    for candidate in here if kind == "auto" else (kind,):
        found = here[candidate]
        if not isinstance(found, str):
            return list(found), None
        reasons.append(f"{candidate}: {found}")
    return [], "; ".join(reasons)


def _cuda_gpus() -> tuple[list[AcceleratorFacts], str]:
    """NVIDIA's, and AMD's, which PyTorch reaches under the same name; none if this torch was built without CUDA."""
    gpus, reason = _nvidia_gpus()
    if gpus and torch_cuda_version() is None:
        return [], (
            f"the driver {gpus[0].driver} lists {gpus[0].name}, but this torch ({torch_version()}) is built "
            f"without CUDA: install a torch with CUDA"
        )
    return gpus, reason


def _nvidia_gpus() -> tuple[list[AcceleratorFacts], str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return [], "CUDA_VISIBLE_DEVICES hides every GPU"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        amd, missing = _amd_gpus(), f"no NVIDIA driver answers ({error})"
        if amd and torch_rocm_version() is None:
            return [], f"{missing}, and for the {amd[0].name} this torch ({torch_version()}) isn't built"
        return amd, "" if amd else missing
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        gpus = [
            AcceleratorFacts("cuda", str(pynvml.nvmlDeviceGetName(handle)), _nvidia_memory_bytes(handle), driver)
            for handle in (handles if visible is None else _visible(handles, visible))
        ]
        return gpus, f"CUDA_VISIBLE_DEVICES={visible} hides every GPU" if handles else "the NVIDIA driver lists no GPU"
    except pynvml.NVMLError as error:
        return [], f"the NVIDIA driver can't describe its GPUs ({error})"
    finally:
        pynvml.nvmlShutdown()


def _visible(handles: list[object], visible: str) -> list[object]:
    """Those that CUDA_VISIBLE_DEVICES names, by number or by the start of their UUID; CUDA stops at a wrong name."""
    chosen: list[object] = []
    for name in visible.split(","):
        name = name.strip()
        if name.isdecimal():
            named = handles[int(name) : int(name) + 1]
        elif name.startswith("MIG-"):
            named = [pynvml.nvmlDeviceGetHandleByUUID(name)]
        else:
            named = [handle for handle in handles if name and str(pynvml.nvmlDeviceGetUUID(handle)).startswith(name)]
        if len(named) != 1:
            break
        chosen += named
    return chosen


def _nvidia_memory_bytes(handle: object) -> int | None:
    """Unknown where the GPU has none of its own but shares the CPU's."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:
        return None


def _amd_gpus() -> list[AcceleratorFacts]:
    """PyTorch reaches AMD's GPUs under the name `cuda`; the kernel lists them as compute nodes with SIMD units."""
    driver = read_or_empty(Path("/sys/module/amdgpu/version")).strip() or platform.release()
    return [
        AcceleratorFacts("cuda", read_or_empty(node / "name").strip() or "AMD GPU", memory_bytes=None, driver=driver)
        for node in sorted(Path("/sys/class/kfd/kfd/topology/nodes").glob("*"))
        if re.search(r"^simd_count [1-9]", read_or_empty(node / "properties"), re.MULTILINE)
    ]


def _apple_gpus() -> tuple[list[AcceleratorFacts], str]:
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return [], "this is not Apple silicon"
    driver = platform.mac_ver()[0]
    return [AcceleratorFacts("mps", mac_cpu_name() or "Apple GPU", memory_bytes=None, driver=driver)], ""


def _intel_gpus() -> tuple[list[AcceleratorFacts], str]:
    if "+xpu" not in torch_version():
        return [], "this build of torch has no support for Intel GPUs"
    driver = platform.release()
    found = [
        AcceleratorFacts("xpu", f"Intel GPU {read_or_empty(card / 'device').strip()}", memory_bytes=None, driver=driver)
        for card in sorted(Path("/sys/class/drm").glob("renderD*/device"))
        if read_or_empty(card / "vendor").strip() == "0x8086"  # Intel
    ]
    return found, "the kernel lists no Intel GPU"


_SLOWDOWNS = {
    "nvmlClocksThrottleReasonHwSlowdown": "a brake of the hardware",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "heat, by the hardware",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power supply",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "heat",
}
"""A limit of power is none of these: a GPU that works hard runs into it as it should."""


@dataclass(frozen=True)
class GpuState:
    """How fast it runs just now, and what slows it down, in words."""

    clock_mhz: int
    slowdowns: tuple[str, ...]


def nvidia_gpu_state(uuid: str | None) -> Callable[[], GpuState | None]:
    """A function that reads the state of this GPU, or gives None where there is none or its driver doesn't tell."""
    handle: object | None = None
    if uuid:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")

    def read() -> GpuState | None:
        if handle is None:
            return None
        try:
            clock_mhz = int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
            reasons = int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        except pynvml.NVMLError:  # a virtual GPU, say, keeps it to itself
            return None
        return GpuState(clock_mhz, tuple(word for name, word in _SLOWDOWNS.items() if reasons & getattr(pynvml, name)))

    return read
