"""The fingerprint of the machine: what determines speed and bits, and stays the same from run to run.

It is part of DVC's cache key, so it holds no load, temperature or time. Torch is not imported: `plan` writes
the fingerprint at each `dvc repro`, in a few milliseconds.
"""

from __future__ import annotations

import os
import platform
import re
import runpy
import subprocess
from importlib import metadata, util
from pathlib import Path
from typing import Literal

import pynvml
from pydantic import BaseModel, ConfigDict

from photofinish.params import Devices

CPU_VARIABLES = (
    "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME", "LD_PRELOAD",
    "MALLOC_CONF", "MKL_CBWR", "MKL_DYNAMIC", "MKL_NUM_THREADS", "OMP_DYNAMIC", "OMP_NUM_THREADS", "OMP_PLACES",
    "OMP_PROC_BIND", "OMP_WAIT_POLICY", "ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA",
)  # fmt: skip
GPU_VARIABLES = (
    *CPU_VARIABLES, "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "ONEAPI_DEVICE_SELECTOR", "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ENABLE_MPS_FALLBACK", "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "ROCR_VISIBLE_DEVICES", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "ZE_AFFINITY_MASK",
)  # fmt: skip
_INSTRUCTION_SETS = re.compile(r"^(avx|avx2|avx512.*|avx_vnni|amx_.*|fma|sse4_2|asimd.*|sve.*|bf16|i8mm)$")
_INTEL_VENDOR = "0x8086"

AcceleratorKind = Literal["cuda", "mps", "xpu"]


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class CpuFacts(_Facts):
    model: str
    architecture: str
    usable_cores: int
    cgroup_cores_limit: float | None
    instruction_sets: tuple[str, ...]
    system: str


class Software(_Facts):
    python: str
    torch: str
    torchvision: str
    cuda: str | None
    variables: dict[str, str]


class AcceleratorFacts(_Facts):
    kind: AcceleratorKind
    name: str
    memory_bytes: int | None
    driver: str


class CpuHost(_Facts):
    """data/plan/hosts/cpu.json: what `train-cpu` runs on."""

    threads: int
    cpu: CpuFacts
    software: Software


class GpuHost(_Facts):
    """data/plan/hosts/gpu.json: what `train-gpu` runs on. Without an accelerator the CPU doesn't matter to it."""

    kind: Literal["auto", "cuda", "mps", "xpu"]
    count: int
    if_missing: Literal["skip", "fail"]
    accelerators: tuple[AcceleratorFacts, ...]
    missing: str | None
    threads: int | None
    cpu: CpuFacts | None
    software: Software | None


def fingerprint(devices: Devices) -> tuple[CpuHost, GpuHost]:
    cpu = cpu_facts()
    usable = _usable_threads(cpu)
    found, missing = accelerators(devices.gpu.kind)
    gpu_host = GpuHost(
        kind=devices.gpu.kind,
        count=devices.gpu.count,
        if_missing=devices.gpu.if_missing,
        accelerators=tuple(found),
        missing=missing,
        threads=usable if found else None,
        cpu=cpu if found else None,
        software=software_facts(GPU_VARIABLES) if found else None,
    )
    return CpuHost(threads=devices.cpu.threads or usable, cpu=cpu, software=software_facts(CPU_VARIABLES)), gpu_host


def cpu_facts() -> CpuFacts:
    info = _read(Path("/proc/cpuinfo"))
    flags = set(_first_match(r"^(?:flags|Features)\s*:\s*(.*)$", info).split())
    return CpuFacts(
        model=_first_match(r"^model name\s*:\s*(.*)$", info) or _mac_cpu_name() or platform.processor() or "unknown",
        architecture=platform.machine(),
        usable_cores=_usable_cores(),
        cgroup_cores_limit=_cgroup_cores_limit(),
        instruction_sets=tuple(sorted(flag for flag in flags if _INSTRUCTION_SETS.match(flag))),
        system=platform.system(),
    )


def software_facts(variables: tuple[str, ...]) -> Software:
    """Versions, and those of the variables that are set: choosing another GPU is no news to the CPU."""
    return Software(
        python=platform.python_version(),
        torch=metadata.version("torch"),
        torchvision=metadata.version("torchvision"),
        cuda=_torch_cuda_version(),
        variables={name: os.environ[name] for name in variables if name in os.environ},
    )


def accelerators(kind: str) -> tuple[list[AcceleratorFacts], str | None]:
    """The accelerators of the wanted kind, or none and the reason why."""
    found, reasons = [], []
    for candidate, look in (("cuda", _nvidia_gpus), ("mps", _apple_gpus), ("xpu", _intel_gpus)):
        if kind in ("auto", candidate):
            gpus, reason = look()
            found += gpus
            reasons.append(f"{candidate}: {reason}")
    return found, None if found else "; ".join(reasons)


def _nvidia_gpus() -> tuple[list[AcceleratorFacts], str]:
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1"):
        return [], "CUDA_VISIBLE_DEVICES hides every GPU"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        amd = _amd_gpus()
        return amd, "" if amd else f"no NVIDIA driver answers ({error})"
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        gpus = [
            AcceleratorFacts(
                kind="cuda",
                name=str(pynvml.nvmlDeviceGetName(handle)),
                memory_bytes=_nvidia_memory_bytes(handle),
                driver=driver,
            )
            for handle in handles
        ]
        return gpus, "the NVIDIA driver lists no GPU"
    except pynvml.NVMLError as error:
        return [], f"the NVIDIA driver can't describe its GPUs ({error})"
    finally:
        pynvml.nvmlShutdown()


def _nvidia_memory_bytes(handle: object) -> int | None:
    """Unknown where the GPU has none of its own but shares the CPU's."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:
        return None


def _amd_gpus() -> list[AcceleratorFacts]:
    """PyTorch reaches AMD's GPUs under the name `cuda`; the kernel lists them as compute nodes with SIMD units."""
    driver = _read(Path("/sys/module/amdgpu/version")).strip() or platform.release()
    return [
        AcceleratorFacts(kind="cuda", name=_read(node / "name").strip() or "AMD GPU", memory_bytes=None, driver=driver)
        for node in sorted(Path("/sys/class/kfd/kfd/topology/nodes").glob("*"))
        if re.search(r"^simd_count [1-9]", _read(node / "properties"), re.MULTILINE)
    ]


def _apple_gpus() -> tuple[list[AcceleratorFacts], str]:
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return [], "this is not Apple silicon"
    chip = _mac_cpu_name() or "Apple GPU"
    return [AcceleratorFacts(kind="mps", name=chip, memory_bytes=None, driver=platform.mac_ver()[0])], ""


def _intel_gpus() -> tuple[list[AcceleratorFacts], str]:
    if "+xpu" not in metadata.version("torch"):
        return [], "this build of torch has no support for Intel GPUs"
    found = [
        AcceleratorFacts(kind="xpu", name=f"Intel GPU {_read(card / 'device').strip()}", memory_bytes=None,
                         driver=platform.release())
        for card in sorted(Path("/sys/class/drm").glob("renderD*/device"))
        if _read(card / "vendor").strip() == _INTEL_VENDOR
    ]  # fmt: skip
    return found, "the kernel lists no Intel GPU"


def _usable_threads(cpu: CpuFacts) -> int:
    """As many as OMP_NUM_THREADS says, which torch heeds too; else every core this process may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    limit = cpu.cgroup_cores_limit
    return max(1, min(cpu.usable_cores, int(limit) if limit else cpu.usable_cores))


def _usable_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _cgroup_cores_limit() -> float | None:
    quota, _, period = _read(Path("/sys/fs/cgroup/cpu.max")).partition(" ")
    if not quota:
        quota = _read(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))
        period = _read(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"))
    try:
        cores = int(quota) / int(period)
    except ValueError:
        return None
    return cores if cores > 0 else None


def _torch_cuda_version() -> str | None:
    """The CUDA (or ROCm) version torch was built for, from its version file: importing torch takes seconds."""
    spec = util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    version = runpy.run_path(str(Path(spec.submodule_search_locations[0]) / "version.py"))
    build = version.get("cuda") or version.get("hip")
    return str(build) if build else None


def _mac_cpu_name() -> str:
    if platform.system() != "Darwin":
        return ""
    asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def _first_match(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match.group(1).strip() if match else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
