"""Errors of a training name the experiment, the problem and the line of params.yaml to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import MakeExperiment
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from photofinish.config.experiment import Experiment
from photofinish.errors import UserError
from photofinish.training import failures
from photofinish.training.failures import (
    PeerLostError,
    failures_explained,
    is_out_of_memory,
)
from photofinish.training.torch_device import CPU
from photofinish.training.world import DataParallelWorld, World

CUDA = torch.device("cuda", 0)
ON_CPU, ON_CUDA = World(CPU), World(CUDA)
GPU_IS_FULL = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB of "
    "which 5.69 GiB is free. Including non-PyTorch memory, this process has 73.40 GiB in use."
)
Explain = Callable[..., str]


class OneOfFour(World):
    rank, size = 1, 4


@pytest.fixture
def experiment(make_experiment: MakeExperiment) -> Experiment:
    return make_experiment(batch_size=1000)


@pytest.fixture
def explain(make_experiment: MakeExperiment) -> Explain:
    """Return the message for an error of experiment `big`: `explain(MemoryError(), ON_CPU)`."""

    def message(error: Exception, world: World = ON_CUDA, **settings: Any) -> str:
        experiment = make_experiment(**{"batch_size": 1000, **settings})
        with pytest.raises(UserError) as raised, failures_explained("big", experiment, world):
            raise error
        assert raised.value.__cause__ is error
        return str(raised.value)

    return message


@pytest.fixture
def _busy_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "memory_bytes", lambda _device: (60 * 2**30, 80 * 2**30))
    monkeypatch.setattr(failures, "peak_memory_bytes", lambda _device: 65 * 2**30)
    monkeypatch.setattr(failures, "device_name", lambda device: f"Some GPU {device.index}")


@pytest.mark.usefixtures("_busy_gpu")
def test_out_of_memory_reports_the_need_and_what_to_change(explain: Explain) -> None:
    message = explain(GPU_IS_FULL)
    assert message.startswith("out of memory on cuda:0 (Some GPU 0): Tried to allocate 20.00 GiB")
    assert "60.0 GiB were in use, 65.0 GiB at the peak, the device has 80.0 GiB" in message
    assert "lower experiments.big.batch_size (it is 1000)" in message
    assert "precision to bf16" in message
    assert "input to loader" in message
    frugal = explain(GPU_IS_FULL, precision="bf16", input={"name": "loader"})
    assert "experiments.big.batch_size" in frugal
    assert "precision" not in frugal
    assert "input" not in frugal


@pytest.mark.usefixtures("_busy_gpu")
def test_out_of_memory_names_the_gpu_of_data_parallel_that_ran_out(explain: Explain) -> None:
    world = DataParallelWorld(tuple(torch.device("cuda", index) for index in range(3)), CUDA)
    message = explain(torch.OutOfMemoryError(str(GPU_IS_FULL).replace("GPU 0", "GPU 2")), world)
    assert message.startswith("out of memory on cuda:2 (Some GPU 2)")
    assert "input" not in message  # the data set is on the first GPU
    assert "precision to fp16" in message


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "GET was unable to find an engine to execute this computation",
        "Unable to find a valid cuDNN algorithm to run convolution",
    ],
)
@pytest.mark.usefixtures("_busy_gpu")
def test_libraries_without_memory_for_a_workspace_are_out_of_memory(
    explain: Explain, text: str
) -> None:
    assert is_out_of_memory(RuntimeError(text))
    assert explain(RuntimeError(text)).startswith("out of memory on cuda:0")


def test_out_of_memory_on_the_cpu_is_recognised_from_the_real_allocator(
    experiment: Experiment,
) -> None:
    for world in (ON_CPU, ON_CUDA):  # the network is made on the CPU
        message = pytest.raises(UserError, match=r"memory on the CPU: tried to allocate \d+")
        with message, failures_explained("big", experiment, world):
            torch.empty(2**50)


def test_a_network_on_another_device_is_recognised_from_the_real_error(
    experiment: Experiment,
) -> None:
    message = pytest.raises(UserError, match=r"two devices .*on cuda:0")
    with FakeTensorMode(), message, failures_explained("big", experiment, ON_CUDA):
        nn.Linear(4, 2)(torch.empty(1, 4, device="cuda"))


@pytest.mark.parametrize(
    ("text", "names_devices"),
    [
        ("Expected all tensors to be on the same device, but found cuda:0 and cpu!", True),
        (
            "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) "
            "should be the same",
            True,
        ),
        (
            "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) "
            "should be the same",
            True,
        ),
        (
            "module must have its parameters and buffers on device cuda:0 (device_ids[0]) "
            "but found",
            True,
        ),
        ("Input type (float) and bias type (c10::Half) should be the same", False),
        (
            "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be",
            False,
        ),
    ],
)
def test_two_devices_are_distinguished_from_two_precisions(
    experiment: Experiment, text: str, names_devices: bool
) -> None:
    expected = UserError if names_devices else RuntimeError
    with pytest.raises(expected, match=text[:5]), failures_explained("big", experiment, ON_CPU):
        raise RuntimeError(text)


def test_a_nondeterministic_operation_names_the_setting_that_allows_it(explain: Explain) -> None:
    text = "cumsum_cuda_kernel does not have a deterministic implementation, but you set ..."
    message = explain(RuntimeError(text))
    assert "torch has no deterministic cumsum_cuda_kernel" in message
    assert "experiments.big.model" in message
    assert "deterministic: false" in message


def test_a_lost_loader_process_names_shared_memory_and_its_settings(explain: Explain) -> None:
    text = "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that ..."
    message = explain(RuntimeError(text), ON_CPU)
    assert message.startswith("experiments.big: a process that loads samples failed: DataLoader")
    assert "Bus error. Most often" in message
    assert "input.workers" in message


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[gloo/transport/tcp/pair.cc:545] Read error [::1]: Connection reset by peer"),
        RuntimeError("[gloo/transport/tcp/pair.cc:552] Connection closed by peer [127.0.0.1]:33"),
        torch.distributed.DistBackendError("NCCL error in: x.cpp:3690, remote process exited"),
        torch.distributed.DistNetworkError("failed to recv, got 0 bytes"),
        torch.distributed.DistBackendError("ncclRemoteError: A call failed."),
        torch.distributed.DistBackendError("[Rank 1] Watchdog caught collective operation timeout"),
        torch.distributed.DistStoreError("wait timeout after 600000ms, keys: /default_pg/0/1"),
    ],
    ids=lambda error: str(error)[:30],
)
def test_a_lost_process_is_reported_only_in_a_group(
    experiment: Experiment, error: Exception
) -> None:
    with pytest.raises(PeerLostError), failures_explained("big", experiment, OneOfFour(CUDA)):
        raise error
    with (
        pytest.raises((RuntimeError, UserError)) as raised,
        failures_explained("big", experiment, ON_CUDA),
    ):
        raise error
    assert not isinstance(raised.value, PeerLostError)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be ...",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "NCCL error in: x.cpp:94, unhandled system error\nLast error:\nDuplicate GPU detected",
    ],
)
def test_other_errors_of_a_gpus_libraries_stand_as_they_are_behind_the_experiments_name(
    explain: Explain, text: str
) -> None:
    assert explain(RuntimeError(text), OneOfFour(CUDA)) == f"experiments.big on cuda:0: {text}"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)"),
        ValueError("Expected input batch_size (4) to match target batch_size (2)."),
        UserError("explained already"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_stay_as_they_are(experiment: Experiment, error: Any) -> None:
    with pytest.raises(type(error)) as raised, failures_explained("big", experiment, ON_CPU):
        raise error
    assert raised.value is error


def test_failing_custom_code_shows_its_own_traceback(experiment: Experiment) -> None:
    shown = pytest.raises(UserError, match=r"^experiments\.big: [^\n]+\n(.*\n)+LookupError: mine$")
    with shown, failures_explained("big", experiment, ON_CPU, runs_custom_code=True):
        raise LookupError("mine")
