"""The policy of a process (threads, TF32, determinism), and the choice of an accelerator."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
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
    device_name,
    effective_precision,
    forget_peak_memory,
    free_memory_bytes,
    gradient_scaler,
    has_fast_bf16,
    memory_bytes,
    memory_format,
    nvidia_uuid,
    peak_memory_bytes,
    to_device,
    to_memory_format,
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


@pytest.mark.parametrize(
    ("given", "order"), [(None, "PCI_BUS_ID"), ("FASTEST_FIRST", "FASTEST_FIRST")]
)
def test_cuda_numbers_gpus_as_the_driver_does_by_default(
    monkeypatch: pytest.MonkeyPatch, given: str | None, order: str
) -> None:
    seen = []
    monkeypatch.setenv("CUDA_DEVICE_ORDER", given or "")
    if given is None:
        monkeypatch.delenv("CUDA_DEVICE_ORDER")
    monkeypatch.setattr(
        torch.accelerator, "is_available", lambda: seen.append(os.environ["CUDA_DEVICE_ORDER"])
    )
    with pytest.raises((NoAcceleratorError, UnusableAcceleratorError)):
        accelerator("cuda")
    assert seen == [order]


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


def test_only_images_have_an_order_in_memory() -> None:
    images, rows = torch.zeros(2, 3, 4, 4), torch.zeros(2, 3)
    assert to_memory_format(images, torch.channels_last).is_contiguous(
        memory_format=torch.channels_last
    )
    assert to_memory_format(rows, torch.channels_last) is rows


@pytest.mark.usefixtures("_restored_policy")
def test_a_cublas_workspace_that_is_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    configure_torch(CPU, "fp32", threads=1)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


@pytest.mark.usefixtures("_restored_policy")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_torch_uses_the_number_of_threads_in_the_settings(threads: int) -> None:
    configure_torch(CPU, "fp32", threads)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("device", "asked", "effective"),
    [
        *((device, "tf32", "fp32") for device in (CPU, MPS, XPU)),
        (CPU, "fp32", "fp32"),
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
    ("capability", "effective"), [((7, 5), "fp32"), ((8, 0), "tf32"), ((9, 0), "tf32")]
)
def test_tf32_is_on_record_only_where_the_gpu_has_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], effective: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", {CUDA: capability}.__getitem__)
    assert effective_precision(CUDA, "tf32") == effective


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


def test_free_memory_is_what_others_leave_and_the_allocator_has_in_reserve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = SimpleNamespace(
        mem_get_info=lambda _device: (7 * GIB, 80 * GIB),
        memory_reserved=lambda _device: 3 * GIB,
        memory_allocated=lambda _device: GIB,
    )
    monkeypatch.setattr(torch, "get_device_module", lambda _device: module)
    assert free_memory_bytes(CUDA) == 9 * GIB


def test_of_several_gpus_the_one_that_is_meant_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    second, asked = torch.device("cuda", 1), Mock()
    asked.get_device_name.return_value, asked.max_memory_allocated.return_value = "Some GPU", 5
    asked.memory_allocated.return_value, asked.memory_reserved.return_value = 2, 3
    asked.mem_get_info.return_value = (7, 80)
    asked.get_device_properties.return_value = SimpleNamespace(total_memory=80, uuid="GPU-1")
    module_of = Mock(return_value=asked)
    monkeypatch.setattr(torch, "get_device_module", module_of)
    monkeypatch.setattr(torch.cuda, "get_device_properties", asked.get_device_properties)
    forget_peak_memory(second)
    asked.reset_peak_memory_stats.assert_called_once()
    assert (device_name(second), peak_memory_bytes(second), nvidia_uuid(second)) == (
        "Some GPU",
        5,
        "GPU-1",
    )
    assert (memory_bytes(second), free_memory_bytes(second)) == ((2, 80), 8)
    assert {arguments for _name, arguments, _named in asked.method_calls} == {(second,)}
    assert {call.args for call in module_of.call_args_list} == {(second,)}


def test_only_a_gpu_that_has_bf16_itself_counts_as_quick_at_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_it = Mock(return_value=True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", has_it)
    assert (has_fast_bf16(CUDA), has_fast_bf16(CPU)) == (True, False)
    has_it.assert_called_once_with(including_emulation=False)


def test_the_host_goes_on_before_cuda_has_what_it_sends() -> None:
    tensor = Mock()
    to_device(tensor, CUDA)
    tensor.pin_memory().to.assert_called_once_with(CUDA, non_blocking=True)
    to_device(tensor, MPS)
    tensor.to.assert_called_once_with(MPS)


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
            RuntimeError(
                "The NVIDIA driver on your system is too old (found version 11040). "
                "Please update your GPU driver by downloading and installing a new version "
                "from the URL: http://www.nvidia.com/Download/index.aspx"
            ),
            NoAcceleratorError,
            r"found version 11040.*torch is built for CUDA [\d.]+",
        ),
        (
            RuntimeError("Found no NVIDIA driver on your system.\nPlease check ..."),
            UnusableAcceleratorError,
            r": Found no NVIDIA driver on your system\. The driver lists a GPU",
        ),
        (
            AssertionError("Torch not compiled with CUDA enabled"),
            NoAcceleratorError,
            "Torch not compiled with CUDA",
        ),
        (
            RuntimeError(
                "CUDA unknown error - this may be due to an incorrectly set up environment, "
                "e.g. ..."
            ),
            UnusableAcceleratorError,
            r"CUDA unknown error .*see nvidia-smi, then run `dvc repro` again",
        ),
        (None, UnusableAcceleratorError, r"torch .* finds no accelerator.* run `dvc repro` again"),
    ],
)
def test_a_gpu_that_torch_cannot_use_has_the_reason_of_torch(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, kind: type[Exception], said: str
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", Mock(side_effect=error))
    with pytest.raises(kind, match=said):
        accelerator("auto")


@pytest.mark.parametrize(("asked", "number"), [(("auto",), 0), (("xpu",), 0), (("xpu", 1), 1)])
def test_each_process_takes_the_device_of_its_own_number_or_the_first(
    two_xpus: list[int], asked: tuple[Any, ...], number: int
) -> None:
    assert accelerator(*asked) == torch.device("xpu", number)
    assert two_xpus == [number]


@pytest.mark.usefixtures("two_xpus")
@pytest.mark.parametrize(
    ("asked", "kind", "said"),
    [
        (("auto", 2), UnusableAcceleratorError, "no xpu device 2 .*torch sees 2"),
        (("cuda",), NoAcceleratorError, r"'xpu', and devices\.gpu\.kind is 'cuda'"),
    ],
    ids=["beyond those that torch sees", "of another kind"],
)
def test_a_missing_device_is_not_replaced_by_another(
    asked: tuple[Any, ...], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        accelerator(*asked)


@pytest.mark.usefixtures("two_xpus")
def test_a_device_that_is_busy_is_a_failure_that_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = RuntimeError(
        "CUDA error: all CUDA-capable devices are busy or unavailable\nSearch for ..."
    )
    monkeypatch.setattr(torch.accelerator, "set_device_index", Mock(side_effect=busy))
    with pytest.raises(
        UnusableAcceleratorError, match=r"(?s)^xpu:1: .* busy or unavailable.*nvidia-smi"
    ):
        accelerator("auto", 1)


def test_the_peak_memory_on_the_cpu_is_that_of_the_process_in_bytes() -> None:
    process = psutil.Process()
    peak_bytes = peak_memory_bytes(CPU)
    assert peak_bytes is not None
    assert 0.5 * process.memory_info().rss <= peak_bytes <= psutil.virtual_memory().total


@pytest.mark.parametrize(("platform", "unit_bytes"), [("linux", 1024), ("darwin", 1)])
def test_each_system_counts_the_peak_in_another_unit(
    monkeypatch: pytest.MonkeyPatch, platform: str, unit_bytes: int
) -> None:
    monkeypatch.setattr("resource.getrusage", lambda _who: SimpleNamespace(ru_maxrss=7))
    monkeypatch.setattr("sys.platform", platform)
    assert peak_memory_bytes(CPU) == 7 * unit_bytes


def test_the_memory_of_apples_gpus_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 3)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 8)
    assert memory_bytes(MPS) == (3, 8)


def test_memory_that_a_device_does_not_report_is_left_out() -> None:
    assert peak_memory_bytes(MPS) is None
    assert device_name(MPS) == "mps"
