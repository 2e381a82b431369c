"""What a training runs with besides the hardware: versions, and the environment variables that change speed or bits."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from photofinish.hardware.builds import torch_cuda_version, torch_version, torchvision_version

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


@dataclass(frozen=True)
class Software:
    python: str
    torch: str
    torchvision: str
    cuda: str | None
    variables: dict[str, str]


def software_facts(variables: tuple[str, ...]) -> Software:
    """Versions, and those of the variables that are set: choosing another GPU is no news to the CPU."""
    return Software(
        python=platform.python_version(),
        torch=torch_version(),
        torchvision=torchvision_version(),
        cuda=torch_cuda_version(),
        variables={name: os.environ[name] for name in variables if name in os.environ},
    )
