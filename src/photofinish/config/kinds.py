"""Table of the kinds of accelerators, which settings, plans and messages use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal


@dataclass(frozen=True)
class AcceleratorKind:
    """Facts of a kind of accelerators, known without a driver and without torch."""

    absent: str
    """Reason for a machine without this kind, if no driver lists a device."""
    nodes: tuple[str, ...] = ()
    """Patterns of the device nodes on Linux."""
    hidden_by: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that choose devices for torch, and the values that hide all."""
    visibility_variables: tuple[str, ...] = ()
    """Further environment variables that select the devices which torch sees."""
    variables: tuple[str, ...] = ()
    """Environment variables that change speed or bits."""
    counts_memory: bool = False
    """True if the kind's module in torch has torch.cuda's functions for names and memory."""


KINDS = {
    "cuda": AcceleratorKind(
        absent="this machine has no NVIDIA or AMD GPU",
        # NVIDIA, Jetson boards, WSL, AMD.
        nodes=("nvidia[0-9]*", "nvhost-gpu", "dxg", "kfd"),
        hidden_by={"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"},  # AMD reads both
        visibility_variables=("CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES"),
        variables=(
            "CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "NCCL_ALGO", "NCCL_IB_DISABLE",
            "NCCL_NTHREADS", "NCCL_P2P_DISABLE", "NCCL_PROTO", "NVIDIA_TF32_OVERRIDE",
            "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING",
            "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        ),
        counts_memory=True,
    ),
    "mps": AcceleratorKind(
        absent="this is not Apple silicon", variables=("PYTORCH_ENABLE_MPS_FALLBACK",)
    ),
    "xpu": AcceleratorKind(
        absent="this machine has no Intel GPU",
        nodes=("dri/renderD*",),  # of any graphics driver
        visibility_variables=("ZE_AFFINITY_MASK",),
        counts_memory=True,
    ),
}  # fmt: skip
"""Kinds of accelerators by PyTorch's names, in the order in which `auto` tries them."""

if TYPE_CHECKING:
    Kind = str
    KindOrAuto = str
else:
    Kind = Literal[tuple(KINDS)]
    KindOrAuto = Literal["auto", *KINDS]
