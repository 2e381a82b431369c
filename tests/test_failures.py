"""What torch can't do is told in words: what happened, what was measured, which line of params.yaml to change."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import MakeExperiment
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from photofinish.config.experiment import Experiment
from photofinish.errors import UserError
from photofinish.training import failures as memory_failures
from photofinish.training.failures import PeerLostError, failures_explained, too_large_a_network_explained
from photofinish.training.teams import DataParallelWorld, World
from photofinish.training.torch_device import CPU

CUDA = torch.device("cuda", 0)
ON_CPU, ON_CUDA = World(CPU), World(CUDA)
FRUGAL = {"precision": "bf16", "input": {"name": "loader"}}
_CUDA_OUT_OF_MEMORY = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 5.69 GiB is "
    "free. Including non-PyTorch memory, this process has 73.40 GiB memory in use."
)
Explained = Callable[..., str]


@pytest.fixture
def experiment(make_experiment: MakeExperiment) -> Experiment:
    return make_experiment(batch_size=1000)


@pytest.fixture
def explained(make_experiment: MakeExperiment) -> Explained:
    """What is told of an error in an experiment of such settings: `explained(MemoryError(), ON_CPU, batch_size=1)`."""

    def told_of(error: Exception, team: World = ON_CUDA, **settings: Any) -> str:
        experiment = make_experiment(**{"batch_size": 1000, **settings})
        with pytest.raises(UserError) as raised, failures_explained("big", experiment, team):
            raise error
        assert raised.value.__cause__ is error
        return str(raised.value)

    return told_of


@pytest.fixture
def _a_gpu_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_failures, "memory_bytes", lambda _device: (60 * 2**30, 80 * 2**30))
    monkeypatch.setattr(memory_failures, "peak_memory_bytes", lambda _device: 65 * 2**30)
    monkeypatch.setattr(memory_failures, "device_name", lambda device: f"Some GPU {device.index}")


class _OneOfFour(World):
    rank, size = 1, 4


@pytest.mark.usefixtures("_a_gpu_in_use")
def test_out_of_memory_on_a_gpu_tells_the_measured_need_and_what_to_change(explained: Explained) -> None:
    assert explained(_CUDA_OUT_OF_MEMORY) == (
        "out of memory on cuda:0 (Some GPU 0): 20.0 GiB more were asked for, 60.0 GiB were in use, 65.0 GiB at the "
        "peak, the device has 80.0 GiB, input: resident puts all images there, its share of a batch is 1,000 images. "
        "In params.yaml, lower experiments.big.batch_size (it is 1000), or set its precision to bf16, or set its input "
        "to loader, which leaves the data set in the main memory or on disk. Nothing was made smaller behind your back"
    )


@pytest.mark.usefixtures("_a_gpu_in_use")
def test_only_what_would_change_something_is_proposed(explained: Explained) -> None:
    text = explained(_CUDA_OUT_OF_MEMORY, **FRUGAL)
    assert "the device has 80.0 GiB, its share" in text
    assert "experiments.big.batch_size" in text
    assert "set its precision to bf16" in explained(MemoryError(), ON_CPU, precision="tf32")
    assert "precision" not in text
    assert "input" not in text


@pytest.mark.usefixtures("_a_gpu_in_use")
def test_of_several_processes_each_has_its_share_of_a_batch_in_memory(explained: Explained) -> None:
    text = explained(_CUDA_OUT_OF_MEMORY, _OneOfFour(CUDA))
    assert "its share of a batch is 250 images" in text
    assert "lower experiments.big.batch_size (it is 1000)" in text
    assert "precision to bf16" in text


@pytest.mark.usefixtures("_a_gpu_in_use")
def test_of_several_gpus_of_one_process_the_one_that_torch_names_ran_out(explained: Explained) -> None:
    team = DataParallelWorld(tuple(torch.device("cuda", index) for index in range(3)), CUDA)
    traceback = f"Caught OutOfMemoryError in replica 2 on device 2.\nOriginal Traceback (...):\n{_CUDA_OUT_OF_MEMORY}"
    text = explained(torch.OutOfMemoryError(traceback.replace("GPU 0", "GPU 2")), team)
    assert text.startswith("out of memory on cuda:2 (Some GPU 2): 20.0 GiB more")
    assert "its share of a batch is 334 images" in text
    assert "input" not in text  # its images lie on the first GPU
    assert "precision to fp16" in text


def test_an_absurd_allocation_on_the_cpu_is_told_in_bytes_by_the_real_allocator(experiment: Experiment) -> None:
    told = pytest.raises(UserError, match=r"out of memory on the CPU: 4,096\.0 TiB more were asked for, .* in use")
    with told, failures_explained("big", experiment, ON_CPU):
        torch.empty(2**50)


def test_of_a_network_that_is_too_large_for_the_main_memory_no_batch_size_is_blamed() -> None:
    told = pytest.raises(
        UserError, match=r"^the network of experiments\.big doesn't fit .* 4,096\.0 TiB .* smaller layers"
    )
    with told, too_large_a_network_explained("big"):
        torch.empty(2**50)
    with pytest.raises(RuntimeError, match="something else"), too_large_a_network_explained("big"):
        raise RuntimeError("something else")


def test_what_a_device_does_not_tell_of_its_memory_is_left_out(
    explained: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_failures, "memory_bytes", lambda _device: (None, None))
    monkeypatch.setattr(memory_failures, "peak_memory_bytes", lambda _device: None)
    told = explained(torch.OutOfMemoryError("GPU 1 has a total capacity of less, says other code"), ON_CPU)
    assert told.startswith(
        "out of memory on the CPU: input: resident puts all images there, its share of a batch is 1,000 images. In"
    )


def test_a_network_left_on_another_device_is_told_with_both_devices(experiment: Experiment) -> None:
    """The real refusal of torch, for a GPU that is made up."""
    with FakeTensorMode(), pytest.raises(UserError) as raised, failures_explained("big", experiment, ON_CUDA):
        nn.Linear(4, 2)(torch.empty(1, 4, device="cuda"))
    assert "one step had tensors on two devices" in str(raised.value)
    assert "all on cuda:0 before the first step (devices.gpu in params.yaml" in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (when checking "
        "argument for argument mat1 in method wrapper_CUDA_addmm)",
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
        "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same or input should be "
        "a MKLDNN tensor and weight is a dense tensor",
        "Expected all tensors to be on the same device, but got weight is on cpu, different from others on cuda:0",
        "module must have its parameters and buffers on device cuda:0 (device_ids[0]) but found one of them on "
        "device: cpu",
    ],
)
def test_every_way_torch_puts_a_mix_of_devices_is_understood(explained: Explained, text: str) -> None:
    told = explained(RuntimeError(text))
    assert told.startswith(f"one step had tensors on two devices ({text[:90]}")
    assert "a part of model mlp makes or keeps a tensor elsewhere" in told


@pytest.mark.parametrize(
    ("operation", "proposed"),
    [
        (
            "adaptive_avg_pool2d_backward_cuda",
            "choose another model",
        ),
        ("cumsum_cuda_kernel", "choose another model"),
    ],
)
def test_an_operation_that_does_not_repeat_is_explained(explained: Explained, operation: str, proposed: str) -> None:
    refusal = f"{operation} does not have a deterministic implementation, but you set ..."
    told = explained(RuntimeError(refusal))
    assert told.endswith(
        f" the same result each time: torch has no deterministic {operation}; {proposed} in params.yaml "
        "(experiments.big.model), or allow that results differ (deterministic: false)"
    )


@pytest.mark.parametrize(
    ("text", "library"),
    [
        ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "cuDNN"),
        (
            "Unable to load any of {libcudnn_engines_precompiled.so.9.1.0, libcudnn_engines_precompiled.so}",
            "libcudnn_engines_precompiled",
        ),
        (
            "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            "CUBLAS_STATUS_NOT_INITIALIZED",
        ),
    ],
)
def test_a_library_that_can_not_be_used_is_named(explained: Explained, text: str, library: str) -> None:
    told = explained(RuntimeError(f"{text}.\nException raised from ..."))
    assert told.startswith(f"{library} can't be used on cuda:0 ({text}). Other processes")


def test_a_process_that_loads_images_and_is_lost_is_told_with_the_memory_that_they_share(
    explained: Explained, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(total=64 * 2**20))
    monkeypatch.setattr(memory_failures, "_SHARED_MEMORY", tmp_path)
    lost = RuntimeError(
        "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that ... Please try ..."
    )
    assert explained(lost, ON_CPU).startswith(
        "a process that loads images failed: DataLoader worker (pid 7) is killed by signal: Bus error. Most often "
        f"memory has run out, or the shared memory that batches pass through ({tmp_path}, 64 MiB): enlarge it, or lower"
    )
    monkeypatch.setattr(memory_failures, "_SHARED_MEMORY", tmp_path / "none")
    assert " that batches pass through: enlarge it, or lower" in explained(lost, ON_CPU)


@pytest.mark.usefixtures("_a_gpu_in_use")
def test_cublas_without_memory_to_start_is_out_of_memory(explained: Explained) -> None:
    text = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    assert explained(RuntimeError(text)).startswith("out of memory on cuda:0")


@pytest.mark.usefixtures("_a_gpu_in_use")
@pytest.mark.parametrize(
    "text",
    [
        "GET was unable to find an engine to execute this computation",
        "Unable to find a valid cuDNN algorithm to run convolution",
    ],
)
@pytest.mark.parametrize("free_gib", [1, 70])
def test_cudnn_without_an_algorithm_has_too_little_memory(
    explained: Explained, monkeypatch: pytest.MonkeyPatch, text: str, free_gib: int
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(memory_failures, "free_memory_bytes", lambda _device: free_gib * 2**30)
    error = RuntimeError(text)
    told = explained(error)
    assert memory_failures.is_out_of_memory(error) == (free_gib == 1)
    assert told.startswith("out of memory on cuda:0" if free_gib == 1 else "cuDNN found no algorithm")
    assert "experiments.big.batch_size" in told


def _nccl_error(name: str, last: str) -> torch.distributed.DistBackendError:
    """As torch 2.14 puts it."""
    return torch.distributed.DistBackendError(
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:94, unhandled system error (run with "
        f"NCCL_DEBUG=INFO for details), NCCL version 2.28.9\n{name}: A call failed.\nLast error:\n{last}"
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            _nccl_error("ncclSystemError", "Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)"),
            r"failed: Error while creating shared memory .* NCCL needs more shared memory.*--shm-size",
        ),
        (
            _nccl_error("ncclInvalidUsage", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 41000"),
            r"failed: Duplicate GPU detected : rank 1 .* Two processes use one GPU: .*--nproc-per-node",
        ),
        (
            _nccl_error("ncclSystemError", "Call to posix_fallocate failed for /dev/shm/nccl-x"),
            r"NCCL needs more shared memory \(/dev/shm, [\d,]+ MiB\): enlarge it",
        ),
        (_nccl_error("ncclSystemError", "No Shared Memory is left"), "NCCL needs more shared memory"),
        (
            _nccl_error("ncclUnhandledCudaError", "Cuda failure 700 'an illegal memory access was encountered'"),
            r"failed: Cuda failure 700 .* With NCCL_DEBUG=INFO it .* whether all GPUs are well$",
        ),
    ],
    ids=["shared memory", "duplicate", "its folder", "in capitals", "another"],
)
def test_what_fails_in_nccl_itself_is_told_in_its_last_words(explained: Explained, error: Exception, said: str) -> None:
    told = explained(error, _OneOfFour(CUDA))
    assert re.search(said, told)
    assert "another process" not in told


def test_nccl_has_no_other_process_to_lose_where_one_process_uses_several_gpus(explained: Explained) -> None:
    team = DataParallelWorld((CUDA, torch.device("cuda", 1)), CUDA)
    told = explained(RuntimeError("NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO)"), team)
    assert told.startswith("NCCL, by which GPUs exchange what they computed, failed: NCCL Error 2: unhandled")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:43154: Connection reset by peer"),
        RuntimeError("[gloo/transport/tcp/pair.cc:552] Connection closed by peer [127.0.0.1]:33114"),
        torch.distributed.DistBackendError("NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited"),
        torch.distributed.DistNetworkError("The client socket has timed out after 600s while trying to connect to ..."),
        torch.distributed.DistNetworkError("failed to recv, got 0 bytes"),
        _nccl_error("ncclRemoteError", "socketProgress: Connection closed by remote peer 10.0.0.2<40000>"),
        _nccl_error("ncclSystemError", "socketStartConnect: Connect to 10.0.0.2<40000> failed : Connection refused"),
        torch.distributed.DistBackendError("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"),
        torch.distributed.DistStoreError("wait timeout after 600000ms, keys: /default_pg/0/1"),
    ],
    ids=lambda error: str(error).splitlines()[-1][:30],
)
def test_a_lost_process_is_told_apart_from_what_this_one_does(experiment: Experiment, error: Exception) -> None:
    told = pytest.raises(PeerLostError, match=r"connection to another process .* was lost")
    with told, failures_explained("big", experiment, _OneOfFour(CUDA)):
        raise error
    with pytest.raises((RuntimeError, UserError)) as alone, failures_explained("big", experiment, ON_CUDA):
        raise error
    assert not isinstance(alone.value, PeerLostError)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors might be ...",
            r"no kernel image .* isn't built for this GPU \(compute capability 5\.0\): install a torch that is",
        ),
        ("CUDA error: all CUDA-capable devices are busy or unavailable\nSearch for ...", "keeps the GPU to itself"),
        ("CUDA error: invalid device ordinal\nGPU device may be out of range ...", "torch sees fewer GPUs than `plan`"),
        ("CUDA error: an illegal memory access was encountered\n...", "cuda_graphs: off.*CUDA_LAUNCH_BLOCKING=1"),
        ("CUDA error: unspecified launch failure\n...", "unspecified launch failure. See nvidia-smi"),
        (
            "Caught AcceleratorError in replica 1 on device 1.\nOriginal Traceback (most recent call last):\n  ...\n"
            "torch.AcceleratorError: CUDA error: unspecified launch failure\n",
            "torch.AcceleratorError: CUDA error: unspecified launch failure. See nvidia-smi",
        ),
    ],
    ids=["no kernel", "busy", "ordinal", "illegal", "another", "in a thread"],
)
def test_a_fault_of_cuda_is_told_in_one_line_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, explained: Explained, text: str, said: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", {CUDA: (5, 0)}.__getitem__)
    told = explained(RuntimeError(text))
    assert told.startswith("cuda:0 can't be used: ")
    assert re.search(said, told, re.IGNORECASE)
    assert "\n" not in told


def test_a_gpu_that_does_not_tell_its_capability_is_told_without(
    monkeypatch: pytest.MonkeyPatch, explained: Explained
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", Mock(side_effect=AssertionError("no CUDA")))
    told = explained(RuntimeError("CUDA error: no kernel image is available for execution"))
    assert "isn't built for this GPU: install a torch that is" in told


@pytest.mark.parametrize(
    "text",
    [
        "Input type (float) and bias type (c10::Half) should be the same",
        "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same",
    ],
)
def test_tensors_of_two_precisions_are_not_taken_for_two_devices(experiment: Experiment, text: str) -> None:
    with pytest.raises(RuntimeError, match="should be the same"), failures_explained("big", experiment, ON_CUDA):
        raise RuntimeError(text)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)"),
        ValueError("Expected input batch_size (4) to match target batch_size (2)."),
        UserError("explained already"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_another_fault_stays_what_it_is(experiment: Experiment, error: Any) -> None:
    with pytest.raises(type(error)) as raised, failures_explained("big", experiment, ON_CPU):
        raise error
    assert raised.value is error


def test_of_code_of_ones_own_that_fails_the_experiment_is_named_for_it_may_be_a_loss(experiment: Experiment) -> None:
    named = pytest.raises(UserError, match=r"^experiments\.big: code of its own failed:\n(.*\n)+LookupError: mine$")
    with named, failures_explained("big", experiment, ON_CPU, runs_custom_code=True):
        raise LookupError("mine")
