"""The fingerprint of the machine: what determines speed and bits, and stays the same from run to run.

It is part of DVC's cache key, so it holds no load, temperature or time. Torch is not imported: `plan` writes
the fingerprint at each `dvc repro`, in a few milliseconds.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Literal

from photofinish.errors import MistakeError
from photofinish.hardware.accelerators import AcceleratorFacts, accelerators_to_use, torch_cuda_version
from photofinish.hardware.cpus import CpuFacts, Facts, cpu_facts, usable_threads
from photofinish.params.devices import CpuDevice, Devices, GpuDevice, Strategy

CPU_VARIABLES = (
    "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME", "LD_PRELOAD",
    "MALLOC_CONF", "MKL_CBWR", "MKL_DYNAMIC", "MKL_NUM_THREADS", "OMP_DYNAMIC", "OMP_NUM_THREADS", "OMP_PLACES",
    "OMP_PROC_BIND", "OMP_WAIT_POLICY", "ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA",
)  # fmt: skip
GPU_VARIABLES = (
    *CPU_VARIABLES, "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "NCCL_ALGO", "NCCL_IB_DISABLE", "NCCL_NTHREADS", "NCCL_P2P_DISABLE", "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE", "ONEAPI_DEVICE_SELECTOR", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ENABLE_MPS_FALLBACK", "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "ROCR_VISIBLE_DEVICES", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "ZE_AFFINITY_MASK",
)  # fmt: skip


class Software(Facts):
    python: str
    torch: str
    torchvision: str
    cuda: str | None
    variables: dict[str, str]


class CpuHost(Facts):
    """data/plan/hosts/cpu.json: what `train-cpu` runs on."""

    processes: int = 1
    threads: int
    """of each process"""
    cpu: CpuFacts
    software: Software


class GpuHost(Facts):
    """data/plan/hosts/gpu.json: what `train-gpu` runs on. Without an accelerator the CPU doesn't matter to it."""

    kind: Literal["auto", "cuda", "mps", "xpu"]
    count: int | Literal["all"]
    """as many as are used; as asked for where that can't be had"""
    strategy: Strategy = "ddp"
    device_ids: tuple[int, ...] | None = None
    output_device: int | None = None
    if_missing: Literal["skip", "fail"]
    accelerators: tuple[AcceleratorFacts, ...]
    """those that are used"""
    missing: str | None
    threads: int | None
    """of each process"""
    cpu: CpuFacts | None
    software: Software | None

    @property
    def processes(self) -> int:
        return len(self.accelerators) if self.strategy == "ddp" and self.accelerators else 1


def fingerprint(devices: Devices) -> tuple[CpuHost, GpuHost]:
    cpu = cpu_facts()
    return _cpu_host(devices.cpu, cpu), _gpu_host(devices.gpu, cpu)


def _cpu_host(settings: CpuDevice, cpu: CpuFacts) -> CpuHost:
    return CpuHost(
        processes=settings.processes,
        threads=settings.threads or usable_threads(cpu, settings.processes),
        cpu=cpu,
        software=software_facts(CPU_VARIABLES),
    )


def _gpu_host(settings: GpuDevice, cpu: CpuFacts) -> GpuHost:
    used, missing = accelerators_to_use(settings)
    if settings.strategy == "data_parallel" and used:
        _refuse_data_parallel(settings, used)
    processes = len(used) if settings.strategy == "ddp" else 1
    return GpuHost(
        kind=settings.kind,
        count=len(used) or settings.wanted_count,
        strategy=settings.strategy,
        device_ids=settings.device_ids,
        output_device=settings.output_device,
        if_missing=settings.if_missing,
        accelerators=tuple(used),
        missing=missing,
        threads=usable_threads(cpu, processes) if used else None,
        cpu=cpu if used else None,
        software=software_facts(GPU_VARIABLES) if used else None,
    )


def _refuse_data_parallel(settings: GpuDevice, used: list[AcceleratorFacts]) -> None:
    """What params.yaml alone can't tell: which kind `auto` stands for, and how many GPUs `all` are."""
    kind, output = used[0].kind, settings.output_device
    if kind != "cuda":
        raise MistakeError(
            f"devices.gpu.strategy data_parallel is for cuda, and the accelerator here is {kind}: "
            f"set devices.gpu.strategy to ddp in params.yaml"
        )
    indices = settings.device_ids or range(len(used))
    if output is not None and output not in indices:
        raise MistakeError(
            f"devices.gpu.output_device in params.yaml is {output}, which is not among the GPUs in use: "
            f"{', '.join(map(str, indices))}"
        )


def software_facts(variables: tuple[str, ...]) -> Software:
    """Versions, and those of the variables that are set: choosing another GPU is no news to the CPU."""
    return Software(
        python=platform.python_version(),
        torch=metadata.version("torch"),
        torchvision=metadata.version("torchvision"),
        cuda=torch_cuda_version(),
        variables={name: os.environ[name] for name in variables if name in os.environ},
    )
