"""The accelerators of this machine, as its drivers list them: torch, which takes seconds to import, isn't asked.

Where NVIDIA's NVML doesn't answer, or knows whole GPUs alone, CUDA itself is, in a process of its own (`python -m
photofinish.machine.accelerators`), which ends with whatever it did: by ctypes on the driver's public functions, for
cuda-bindings comes with torch's CUDA builds alone, and a torch without CUDA is to be told of its GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import pynvml

from photofinish.machine.host import build_version, mac_cpu_name, read_or_empty, torch_cuda_version, torch_rocm_version

if TYPE_CHECKING:
    from photofinish.params.devices import GpuDevice

_T = TypeVar("_T")
_DEVICES = Path("/dev")
_NODES = ("nvidia[0-9]*", "nvhost-gpu", "nvgpu", "dxg")
"""what the kernel shows of NVIDIA's GPUs: on servers, on Jetson boards, in WSL"""
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_MOST_SECONDS = 60.0


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
    """The accelerators that the settings ask for (`auto`: of the first kind there is), or none and the reason why."""
    reasons = []
    for kind in here if gpu.kind == "auto" else (gpu.kind,):
        found = here[kind]
        if not isinstance(found, str):
            break
        reasons.append(f"{kind}: {found}")
    else:
        return [], "; ".join(reasons)
    highest = max(gpu.device_ids or (), default=0)
    if highest >= len(found):
        return [], f"devices.gpu.device_ids names GPU {highest}, and the GPUs here are numbered 0 to {len(found) - 1}"
    if gpu.device_ids is not None:
        return [found[index] for index in gpu.device_ids], None
    count = len(found) if gpu.wanted_count == "all" else gpu.wanted_count
    if count > len(found):
        return [], f"{count} GPUs asked for (devices.gpu.count), {len(found)} here"
    return list(found[:count]), None


def _cuda_gpus() -> tuple[list[AcceleratorFacts], str]:
    """NVIDIA's, and AMD's, which PyTorch reaches under the same name; none if this torch was built without CUDA."""
    gpus, reason = _nvidia_gpus()
    if gpus and torch_cuda_version() is None:
        return [], (
            f"the driver {gpus[0].driver} lists {gpus[0].name}, but this torch ({build_version('torch')}) is built "
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
        return _gpus_without_nvml(f"no NVIDIA driver answers ({error})")
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        if any(map(_is_divided, handles)):  # then CUDA has slices, in an order of its own
            return _gpus_by_cuda("a GPU is divided (MIG)", driver)
        reason = "the NVIDIA driver lists no GPU"
        if visible is not None:
            handles = _visible(handles, [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles], visible)
            reason = f"CUDA_VISIBLE_DEVICES={visible} hides every GPU"
        return [
            AcceleratorFacts("cuda", str(pynvml.nvmlDeviceGetName(handle)), _nvidia_memory_bytes(handle), driver)
            for handle in handles
        ], reason
    except pynvml.NVMLError as error:
        return [], f"the NVIDIA driver can't describe its GPUs ({error})"
    finally:
        pynvml.nvmlShutdown()


def _gpus_without_nvml(missing: str) -> tuple[list[AcceleratorFacts], str]:
    """AMD's; or NVIDIA's all the same, as on Jetson boards and in containers that get CUDA's driver alone."""
    amd = _amd_gpus()
    if torch_rocm_version() is not None:
        hidden = "ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES hides every GPU"
        return _visible_to_rocm(amd), hidden if amd else missing
    if any(any(_DEVICES.glob(pattern)) for pattern in _NODES):
        return _gpus_by_cuda(missing)
    unfit = f", and for the {amd[0][1].name} this torch ({build_version('torch')}) isn't built" if amd else ""
    return [], missing + unfit


def _gpus_by_cuda(why: str, driver: str | None = None) -> tuple[list[AcceleratorFacts], str]:
    """The GPUs or slices that this process may use; CUDA heeds CUDA_VISIBLE_DEVICES by itself."""
    command = [sys.executable, "-m", "photofinish.machine.accelerators"]
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as the training has it, unless the user says otherwise
    try:
        ran = subprocess.run(
            command, env=order | os.environ, capture_output=True, text=True, check=False, timeout=_MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return [], f"{why}, and CUDA's driver doesn't answer within {_MOST_SECONDS:.0f} s"
    if ran.returncode:
        last_line = ran.stderr.strip().rpartition("\n")[2]
        return [], f"{why}, and {last_line or f'it ended with status {ran.returncode}'}"
    cuda_version, found = json.loads(ran.stdout)
    module = re.search(r"\d{3}\.[\d.]+", read_or_empty(_KERNEL_MODULE))
    driver = driver or (module[0] if module else f"CUDA {cuda_version}")
    return [AcceleratorFacts("cuda", name, size, driver) for name, size in found], f"{why}; CUDA lists none"


def cuda_gpus_in_this_process() -> tuple[str, list[tuple[str, int]]]:
    """The version of CUDA, with the name and bytes of memory of each GPU or slice; ends the process, with the reason,
    where its driver can't tell."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.exit(f"CUDA's driver can't be loaded: {error}")

    def ask(function: str, *arguments: object) -> None:
        """Call it; everything but 0 is an error."""
        if status := getattr(cuda, function)(*arguments):
            sys.exit(f"CUDA's driver can't be used: {function} gives error {status}")

    version, count, device, memory_bytes = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name, found = ctypes.create_string_buffer(256), []
    ask("cuInit", 0)
    ask("cuDriverGetVersion", ctypes.pointer(version))
    ask("cuDeviceGetCount", ctypes.pointer(count))
    for number in range(count.value):
        ask("cuDeviceGet", ctypes.pointer(device), number)
        ask("cuDeviceGetName", name, len(name), device)
        ask("cuDeviceTotalMem_v2", ctypes.pointer(memory_bytes), device)
        found.append((name.value.decode(), memory_bytes.value))
    return f"{version.value // 1000}.{version.value % 1000 // 10}", found


def _visible(gpus: list[_T], uuids: Sequence[str], visible: str) -> list[_T]:
    """Those that a variable names, by number or by the start of the UUID; the driver stops at a wrong name, and shows
    none where one is named twice."""
    chosen: list[int] = []  # by their places: two GPUs may be alike in all that is known of them
    for name in map(str.strip, visible.split(",")):
        if name.isdecimal():
            named = [int(name)] if int(name) < len(gpus) else []
        else:
            named = [place for place, uuid in enumerate(uuids) if name and uuid.startswith(name)]
        if len(named) != 1:
            break
        if named[0] in chosen:
            return []
        chosen += named
    return [gpus[place] for place in chosen]


class SliceError(Exception):
    """What is asked of one slice of a GPU, NVML knows of the whole GPU alone."""


def _is_divided(handle: object) -> bool:
    """Whether this GPU is divided into slices (MIG), which CUDA then has in its place."""
    with suppress(pynvml.NVMLError):  # most can't be
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
        return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)
    return False


def whole_gpu(uuid: str) -> object:
    """NVML's handle of the GPU that torch knows by this UUID, which may be its slice's."""
    pynvml.nvmlInit()
    with suppress(pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        if not _is_divided(handle):
            return handle
        raise SliceError("the GPU is divided (MIG), and its driver tells of the whole only")
    pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
    raise SliceError("it is a slice of a GPU (MIG), and the driver tells of the whole only")


def _nvidia_memory_bytes(handle: object) -> int | None:
    """Unknown where the GPU has none of its own but shares the CPU's."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:
        return None


def _amd_gpus() -> list[tuple[str, AcceleratorFacts]]:
    """Each with its UUID. PyTorch reaches AMD's GPUs under the name `cuda`; the kernel lists them as compute nodes with
    SIMD units."""
    driver = read_or_empty(Path("/sys/module/amdgpu/version")).strip() or platform.release()
    found = []
    for node in sorted(Path("/sys/class/kfd/kfd/topology/nodes").glob("*"), key=lambda path: int(path.name)):
        facts = dict(re.findall(r"^(\w+) (\d+)$", read_or_empty(node / "properties"), re.MULTILINE))
        if int(facts.get("simd_count", 0)):
            name = read_or_empty(node / "name").strip() or "AMD GPU"
            uuid = f"GPU-{int(facts.get('unique_id', 0)):016x}"
            found.append((uuid, AcceleratorFacts("cuda", name, memory_bytes=None, driver=driver)))
    return found


def _visible_to_rocm(gpus: list[tuple[str, AcceleratorFacts]]) -> list[AcceleratorFacts]:
    """ROCm's runtime hides some first, then HIP some of the others, by CUDA's variable where its own isn't set."""
    of_hip = os.environ.get("HIP_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
    for visible in (os.environ.get("ROCR_VISIBLE_DEVICES"), of_hip):
        if visible is not None:
            gpus = _visible(gpus, [uuid for uuid, _ in gpus], visible)
    return [gpu for _, gpu in gpus]


def _apple_gpus() -> tuple[list[AcceleratorFacts], str]:
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return [], "this is not Apple silicon"
    driver = platform.mac_ver()[0]
    return [AcceleratorFacts("mps", mac_cpu_name() or "Apple GPU", memory_bytes=None, driver=driver)], ""


def _intel_gpus() -> tuple[list[AcceleratorFacts], str]:
    if "+xpu" not in build_version("torch"):
        return [], "this build of torch has no support for Intel GPUs"
    driver = platform.release()
    found = [
        AcceleratorFacts("xpu", f"Intel GPU {read_or_empty(card / 'device').strip()}", memory_bytes=None, driver=driver)
        for card in sorted(Path("/sys/class/drm").glob("renderD*/device"))
        if read_or_empty(card / "vendor").strip() == "0x8086"  # Intel
    ]
    return found, "the kernel lists no Intel GPU"


if __name__ == "__main__":
    print(json.dumps(cuda_gpus_in_this_process()))
