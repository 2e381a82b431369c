"""A process on its device: its policy, the choice of an accelerator, and errors of a training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import MakeExperiment
from torch import nn

from photofinish.config.experiment import Experiment
from photofinish.config.kinds import KINDS, AcceleratorKind
from photofinish.errors import UserError
from photofinish.training.failures import failures_explained, nondeterminism_explained
from photofinish.training.torch_device import (
    CPU,
    Clock,
    NoAcceleratorError,
    accelerator,
    configure_torch,
    configure_torch_for,
    effective_precision,
    free_memory_bytes,
    memory_format,
)
from photofinish.training.world import World

PADDED = {"name": "loader", "collate": "resizing:padded"}
CUDA, MPS, XPU = torch.device("cuda"), torch.device("mps"), torch.device("xpu")


@pytest.fixture
def _restored_policy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the process's settings to others, and put them back afterwards."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    threads, matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
    deterministic = torch.get_deterministic_debug_mode()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul)
    torch.set_deterministic_debug_mode(deterministic)


@pytest.mark.usefixtures("_restored_policy")
@pytest.mark.parametrize(
    ("device", "precision", "allowed"),
    [
        (CUDA, "tf32", True),
        (CUDA, "fp32", False),
        (CUDA, "bf16", False),
        (MPS, "tf32", False),
        (CPU, "tf32", False),
    ],
    ids=str,
)
def test_tf32_is_for_cuda_by_setting(device: torch.device, precision: str, allowed: bool) -> None:
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = not allowed
    configure_torch(device, precision, threads=1)
    assert torch.backends.cudnn.allow_tf32 is allowed
    assert torch.backends.cuda.matmul.allow_tf32 is allowed
    assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")
    if device != CUDA:
        assert effective_precision(device, precision) == "fp32"


def test_cuda_numbers_gpus_as_the_driver_does_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    monkeypatch.setattr(
        torch.accelerator, "is_available", lambda: seen.append(os.environ["CUDA_DEVICE_ORDER"])
    )
    with pytest.raises(UserError):
        accelerator("cuda")
    assert seen == ["PCI_BUS_ID"]


@pytest.mark.usefixtures("_restored_policy")
def test_deterministic_algorithms_are_chosen_over_faster_ones() -> None:
    configure_torch(CPU, "fp32", threads=1)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.benchmark is False
    # no time is spent on filling new memory
    assert torch.utils.deterministic.fill_uninitialized_memory is False
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    configure_torch(CPU, "fp32", threads=1, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.usefixtures("_restored_policy")
@pytest.mark.parametrize(
    ("device", "settings", "searches"),
    [
        (CUDA, {"deterministic": False}, True),
        (CUDA, {}, False),
        (CPU, {"deterministic": False}, False),
        (CUDA, {"deterministic": False, "cuda_graphs": "on"}, False),
        (CUDA, {"deterministic": False, "batch_transform": "resizing:in_steps"}, False),
        (CUDA, {"deterministic": False, "input": PADDED}, False),
    ],
)
def test_cudnn_searches_for_algorithms_only_if_they_are_free_and_shapes_are_fixed(
    make_experiment: MakeExperiment, device: torch.device, settings: dict[str, Any], searches: bool
) -> None:
    torch.backends.cudnn.benchmark = not searches
    configure_torch_for(make_experiment(**settings), device, threads=1)
    assert torch.backends.cudnn.benchmark is searches


CONVOLVES = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3)), nn.Flatten())
SHORTCUT = nn.Sequential(nn.Conv2d(4, 8, kernel_size=1, stride=2))
"""A layer where the CPU's library writes past its memory in channels_last."""


@pytest.mark.parametrize(
    ("network", "device", "precision", "is_channels_last"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), CPU, "fp32", False),
        (CONVOLVES, CPU, "fp32", True),
        (CONVOLVES, XPU, "fp32", True),
        (CONVOLVES, CUDA, "fp32", False),
        (CONVOLVES, CUDA, "tf32", True),
        (CONVOLVES, torch.device("cuda", 1), "tf32", False),  # an older GPU without TF32
        (CONVOLVES, CUDA, "bf16", True),
        (CONVOLVES, MPS, "bf16", False),  # where nothing was measured
        (SHORTCUT, CPU, "fp32", False),
        (SHORTCUT, XPU, "fp32", True),
        (nn.Conv2d(16, 8, kernel_size=1, stride=2), CPU, "fp32", True),
        (nn.Conv2d(4, 8, kernel_size=1, stride=1), CPU, "fp32", True),
        (nn.Conv2d(4, 8, kernel_size=3, stride=2), CPU, "fp32", True),
    ],
)
def test_networks_use_channels_last_where_it_is_faster_and_safe(
    monkeypatch: pytest.MonkeyPatch,
    network: nn.Module,
    device: torch.device,
    precision: str,
    is_channels_last: bool,
) -> None:
    capability = (7, 5) if device.index == 1 else (8, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    expected = torch.channels_last if is_channels_last else torch.contiguous_format
    assert memory_format(network, device, precision) is expected


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            RuntimeError("driver too old (11040)"),
            NoAcceleratorError,
            r"11040.*torch is built for CUDA [\d.]+",
        ),
        (
            AssertionError("Torch not compiled with CUDA enabled"),
            NoAcceleratorError,
            "not compiled with CUDA",
        ),
        (RuntimeError("CUDA unknown error - set up"), UserError, "unknown error .*see nvidia-smi"),
    ],
)
def test_a_gpu_that_torch_cannot_use_has_the_reason_of_torch(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], said: str
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", Mock(side_effect=error))
    with pytest.raises(UserError, match=said) as raised:
        accelerator("auto")
    assert raised.type is kind


def test_a_device_is_taken_by_its_number_and_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[int] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: XPU)
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    assert accelerator("xpu", 1) == torch.device("xpu", 1)
    assert current == [1]
    with pytest.raises(NoAcceleratorError, match=r"'xpu', and devices\.gpu\.kind is 'cuda'"):
        accelerator("cuda")
    monkeypatch.setattr(
        torch.accelerator, "set_device_index", Mock(side_effect=RuntimeError("no 2"))
    )
    with pytest.raises(UserError, match=r"xpu:2: no 2\. .*see nvidia-smi"):
        accelerator("auto", 2)


@pytest.mark.parametrize(("device", "waits"), [("cpu", False), ("cuda", True), ("mps", True)])
def test_the_time_is_read_once_all_have_finished(
    monkeypatch: pytest.MonkeyPatch, device: str, waits: bool
) -> None:
    events: list[str] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: events.append("device finished"))
    monkeypatch.setattr("time.perf_counter", lambda: events.append("time read") or 12.5)
    clock = Clock(torch.device(device), lambda: events.append("all are here"))
    assert clock.now_seconds() == 12.5
    assert events == ["device finished"] * waits + ["all are here", "time read"]


def test_free_memory_is_known_for_kinds_that_count_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Mock()
    module.get_device_properties.return_value.total_memory = 100
    module.mem_get_info.return_value = 50, 100  # other programs hold 20
    module.memory_reserved.return_value, module.memory_allocated.return_value = 30, 10
    monkeypatch.setattr(torch, "get_device_module", lambda _device: module)
    assert free_memory_bytes(CUDA) == 70
    assert free_memory_bytes(XPU) == 90
    assert free_memory_bytes(torch.device("hpu")) is None
    monkeypatch.setitem(KINDS, "hpu", AcceleratorKind("no HPU", counts_memory=True))
    assert free_memory_bytes(torch.device("hpu")) == 90
    assert free_memory_bytes(CPU) is None


# -- errors of a training ----------

ON_CPU, ON_CUDA = World(CPU), World(torch.device("cuda", 0))
FULL = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.1"
LESS_MEMORY = (
    "its batch_size (it is 1000) or validation_batch_size",
    "precision to bf16",
    "input to loader",
)
NONDETERMINISTIC = "cumsum_cuda_kernel does not have a deterministic implementation, but you set"
RESET = "[gloo/transport/tcp/pair.cc:545] Read error [::1]: Connection reset by peer"
ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors"


@pytest.fixture
def experiment(make_experiment: MakeExperiment) -> Experiment:
    return make_experiment(batch_size=1000)


@pytest.mark.parametrize(
    ("error", "texts"),
    [
        (torch.OutOfMemoryError(FULL), (FULL, *LESS_MEMORY)),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), LESS_MEMORY),
        (RuntimeError("GET was unable to find an engine to execute this"), LESS_MEMORY),
        (MemoryError(), ("out of memory", *LESS_MEMORY)),
        (RuntimeError(RESET), (f"big on cuda:0: {RESET}",)),
        (RuntimeError(ILLEGAL), (f"big on cuda:0: {ILLEGAL}",)),
    ],
)
def test_an_error_of_torch_has_its_own_words_and_what_to_change(
    experiment: Experiment, error: Exception, texts: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as raised, failures_explained("big", experiment, ON_CUDA):
        raise error
    assert raised.value.__cause__ is error
    assert "experiments.big" in str(raised.value)
    for text in texts:
        assert text in str(raised.value)


def test_an_operation_that_does_not_repeat_is_named(experiment: Experiment) -> None:
    message = pytest.raises(UserError, match=r"no deterministic cumsum_cuda.*deterministic: false")
    torchs = failures_explained("big", experiment, ON_CUDA)
    with message, torchs, nondeterminism_explained(experiment):
        raise RuntimeError(NONDETERMINISTIC)


def test_out_of_memory_on_the_cpu_is_known_from_its_allocator(experiment: Experiment) -> None:
    message = pytest.raises(UserError, match=r"tried to allocate \d+ .*batch_size")
    with message, failures_explained("big", experiment, ON_CPU):
        torch.empty(2**50)


def test_other_errors_stay_as_they_are(experiment: Experiment) -> None:
    shapes = RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)")
    for error in (shapes, UserError("explained already")):
        with pytest.raises(type(error)) as raised, failures_explained("big", experiment, ON_CPU):
            raise error
        assert raised.value is error


def test_failing_custom_code_shows_its_own_traceback(experiment: Experiment) -> None:
    shown = pytest.raises(UserError, match=r"^experiments\.big: [^\n]+\n(.*\n)+LookupError: mine$")
    with shown, failures_explained("big", experiment, ON_CPU, runs_custom_code=True):
        raise LookupError("mine")
