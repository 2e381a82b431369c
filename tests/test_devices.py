"""The policy of a process: threads, TF32, determinism; and which accelerator is taken, or why none is."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
import pytest
import torch

from photofinish.devices import (
    CPU,
    NoAcceleratorError,
    accelerator,
    apply_policy,
    autocast,
    device_name,
    effective_precision,
    gradient_scaler,
    peak_memory_bytes,
    refusals_explained,
)
from photofinish.errors import UserError

CUDA, MPS, XPU = torch.device("cuda"), torch.device("mps"), torch.device("xpu")


@pytest.fixture
def _restored_policy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The settings are the whole process's: put back what they were."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    threads, matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    deterministic, filled = torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory
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
        (CPU, "fp32", False),
        (CPU, "tf32", False),
        (CUDA, "fp32", False),
        (CUDA, "bf16", False),
        (CUDA, "fp16", False),
        (CUDA, "tf32", True),
        (MPS, "tf32", False),
    ],
    ids=str,
)
def test_tf32_is_off_unless_it_is_asked_for_where_there_is_such_a_thing(
    device: torch.device, precision: str, allowed: bool
) -> None:
    torch.set_float32_matmul_precision("medium" if not allowed else "highest")
    torch.backends.cudnn.allow_tf32 = not allowed
    apply_policy(device, precision, threads=1)
    assert torch.backends.cudnn.allow_tf32 is allowed
    assert torch.backends.cuda.matmul.allow_tf32 is allowed
    assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")


@pytest.mark.usefixtures("_restored_policy")
def test_what_repeats_bit_for_bit_is_chosen_over_what_is_faster() -> None:
    torch.backends.cudnn.benchmark = True
    apply_policy(CPU, "fp32", threads=1)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.benchmark is False
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.usefixtures("_restored_policy")
def test_no_time_is_spent_on_filling_new_memory() -> None:
    apply_policy(CPU, "fp32", threads=1)
    assert torch.utils.deterministic.fill_uninitialized_memory is False


@pytest.mark.usefixtures("_restored_policy")
def test_a_cublas_workspace_of_the_users_own_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    apply_policy(CPU, "fp32", threads=1)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


@pytest.mark.usefixtures("_restored_policy")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_torch_computes_with_the_threads_it_is_given(threads: int) -> None:
    apply_policy(CPU, "fp32", threads)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("device", "asked", "effective"),
    [
        (CPU, "fp32", "fp32"),
        (CPU, "tf32", "fp32"),
        (CPU, "bf16", "bf16"),
        (CUDA, "fp16", "fp16"),
        (MPS, "tf32", "fp32"),
        (XPU, "tf32", "fp32"),
    ],
    ids=str,
)
def test_the_precision_on_record_is_the_one_really_computed_in(
    device: torch.device, asked: str, effective: str
) -> None:
    assert effective_precision(device, asked) == effective


@pytest.mark.parametrize(("capability", "effective"), [((7, 5), "fp32"), ((8, 0), "tf32"), ((9, 0), "tf32")])
def test_tf32_is_on_record_only_where_the_gpu_has_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], effective: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert effective_precision(CUDA, "tf32") == effective


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_matrices_are_multiplied_in_the_precision_asked_for(precision: str, dtype: torch.dtype) -> None:
    with autocast(CPU, precision):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


@pytest.mark.parametrize(("precision", "scaled"), [("fp32", False), ("tf32", False), ("bf16", False), ("fp16", True)])
def test_only_the_loss_of_fp16_is_scaled(precision: str, scaled: bool) -> None:
    assert gradient_scaler(CPU, precision).is_enabled() is scaled


def test_without_an_accelerator_asking_for_one_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(NoAcceleratorError, match=r"torch .* finds no accelerator"):
        accelerator("auto")


@pytest.mark.parametrize("kind", ["auto", "xpu"])
def test_the_first_accelerator_of_the_wanted_kind_is_taken(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: XPU)
    assert accelerator(kind) == torch.device("xpu", 0)


def test_an_accelerator_of_another_kind_is_never_taken_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: XPU)
    with pytest.raises(NoAcceleratorError, match=r"'xpu', and devices\.gpu\.kind is 'cuda'"):
        accelerator("cuda")


def test_the_peak_memory_on_the_cpu_is_that_of_the_process_in_bytes() -> None:
    process = psutil.Process()
    peak_bytes = peak_memory_bytes(CPU)
    assert peak_bytes is not None
    assert 0.5 * process.memory_info().rss <= peak_bytes <= psutil.virtual_memory().total


def test_what_a_device_does_not_tell_is_left_out() -> None:
    assert peak_memory_bytes(MPS) is None
    assert device_name(MPS) == "mps"


def test_an_operation_that_does_not_repeat_is_explained() -> None:
    refusal = "adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation, but you set ..."
    explained = pytest.raises(UserError, match=r"model vgg11 .* no deterministic adaptive_avg_pool2d_backward_cuda")
    with explained, refusals_explained("vgg11"):
        raise RuntimeError(refusal)


def test_another_fault_of_torch_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), refusals_explained("vgg11"):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
