"""The policy of a process (threads, TF32, determinism), and the choice of an accelerator."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from photofinish.training.torch_device import (
    CPU,
    NoAcceleratorError,
    UnusableAcceleratorError,
    accelerator,
    autocast,
    configure_torch,
    effective_precision,
    gradient_scaler,
    memory_format,
)

CUDA, MPS, XPU = torch.device("cuda"), torch.device("mps"), torch.device("xpu")
GIB = 2**30


@pytest.fixture
def _restored_policy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The settings are the whole process's: put back what they were."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    threads, matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    deterministic, filled = (
        torch.get_deterministic_debug_mode(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = cudnn
    torch.set_deterministic_debug_mode(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = filled
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.mark.usefixtures("_restored_policy")
@pytest.mark.parametrize(
    ("device", "precision", "allowed"),
    [
        (CUDA, "tf32", True),
        *((CUDA, other, False) for other in ("fp32", "bf16", "fp16")),
        *((other, "tf32", False) for other in (CPU, MPS)),
        (CPU, "fp32", False),
    ],
    ids=str,
)
def test_tf32_is_on_only_for_cuda_and_by_setting(
    device: torch.device, precision: str, allowed: bool
) -> None:
    torch.set_float32_matmul_precision("medium" if not allowed else "highest")
    torch.backends.cudnn.allow_tf32 = not allowed
    configure_torch(device, precision, threads=1)
    assert torch.backends.cudnn.allow_tf32 is allowed
    assert torch.backends.cuda.matmul.allow_tf32 is allowed
    assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")


def test_cuda_numbers_gpus_as_the_driver_does_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    monkeypatch.setattr(
        torch.accelerator, "is_available", lambda: seen.append(os.environ["CUDA_DEVICE_ORDER"])
    )
    with pytest.raises((NoAcceleratorError, UnusableAcceleratorError)):
        accelerator("cuda")
    assert seen == ["PCI_BUS_ID"]


@pytest.mark.usefixtures("_restored_policy")
def test_deterministic_algorithms_are_chosen_over_faster_ones() -> None:
    torch.backends.cudnn.benchmark = True
    configure_torch(CPU, "fp32", threads=1)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.benchmark is False
    assert (
        torch.utils.deterministic.fill_uninitialized_memory is False
    )  # no time is spent on filling new memory
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    configure_torch(CPU, "fp32", threads=1, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("device", "asked", "effective"),
    [
        *((device, "tf32", "fp32") for device in (CPU, MPS, XPU)),
        (CPU, "bf16", "bf16"),
        (CUDA, "fp16", "fp16"),
    ],
    ids=str,
)
def test_the_precision_on_record_is_the_one_really_computed_in(
    device: torch.device, asked: str, effective: str
) -> None:
    assert effective_precision(device, asked) == effective


@pytest.mark.parametrize(
    ("precision", "dtype", "scaled"),
    [
        ("fp32", torch.float32, False),
        ("tf32", torch.float32, False),
        ("bf16", torch.bfloat16, False),
        ("fp16", torch.float16, True),
    ],
)
def test_matrices_are_multiplied_in_the_precision_asked_for_and_only_the_loss_of_fp16_is_scaled(
    precision: str, dtype: torch.dtype, scaled: bool
) -> None:
    with autocast(CPU, precision):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    assert gradient_scaler(CPU, precision).is_enabled() is scaled


def test_only_convolutional_networks_use_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    convolves = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3)), nn.Flatten())
    assert (
        memory_format(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), CPU, "fp32")
        is torch.contiguous_format
    )
    assert memory_format(convolves, CPU, "fp32") is torch.channels_last
    assert memory_format(convolves, CUDA, "fp32") is torch.contiguous_format
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    assert {memory_format(convolves, CUDA, short) for short in ("tf32", "bf16", "fp16")} == {
        torch.channels_last
    }
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    assert memory_format(convolves, CUDA, "tf32") is torch.contiguous_format
    assert (
        memory_format(convolves, MPS, "bf16") is torch.contiguous_format
    )  # where nothing was measured
    assert memory_format(convolves, XPU, "fp32") is torch.channels_last


@pytest.mark.parametrize(("channels", "kernel_size", "stride"), [(16, 1, 2), (4, 1, 1), (4, 3, 2)])
def test_but_on_the_cpu_where_the_library_writes_past_its_memory(
    channels: int, kernel_size: int, stride: int
) -> None:
    assert (
        memory_format(nn.Conv2d(channels, 8, kernel_size, stride), CPU, "fp32")
        is torch.channels_last
    )
    shortcut = nn.Sequential(nn.Conv2d(4, 8, kernel_size=1, stride=2))
    assert memory_format(shortcut, CPU, "fp32") is torch.contiguous_format
    assert memory_format(shortcut, XPU, "fp32") is torch.channels_last


@pytest.fixture
def two_xpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine with two of them; which were made the current one."""
    current: list[int] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: XPU)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    return current


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            RuntimeError("The NVIDIA driver on your system is too old (found version 11040)."),
            NoAcceleratorError,
            r"found version 11040.*torch is built for CUDA [\d.]+",
        ),
        (
            AssertionError("Torch not compiled with CUDA enabled"),
            NoAcceleratorError,
            "Torch not compiled with CUDA",
        ),
        (
            RuntimeError("CUDA unknown error - this may be due to an incorrectly set up"),
            UnusableAcceleratorError,
            r"CUDA unknown error .*see nvidia-smi, then run `dvc repro` again",
        ),
    ],
)
def test_a_gpu_that_torch_cannot_use_has_the_reason_of_torch(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], said: str
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", Mock(side_effect=error))
    with pytest.raises(kind, match=said):
        accelerator("auto")


def test_a_device_is_taken_by_its_number_and_never_replaced_by_another(
    two_xpus: list[int],
) -> None:
    assert accelerator("xpu", 1) == torch.device("xpu", 1)
    assert two_xpus == [1]
    with pytest.raises(UnusableAcceleratorError, match=r"no xpu device 2 .*torch sees 2"):
        accelerator("auto", 2)
    with pytest.raises(NoAcceleratorError, match=r"'xpu', and devices\.gpu\.kind is 'cuda'"):
        accelerator("cuda")
