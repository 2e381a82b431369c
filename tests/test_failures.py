"""Errors of a training name the experiment, the problem and the line of params.yaml to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import MakeExperiment

from photofinish.config.experiment import Experiment
from photofinish.errors import UserError
from photofinish.training.failures import failures_explained
from photofinish.training.torch_device import CPU
from photofinish.training.world import World

ON_CPU, ON_CUDA = World(CPU), World(torch.device("cuda", 0))
GPU_IS_FULL = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.1"
Explain = Callable[..., str]


@pytest.fixture
def experiment(make_experiment: MakeExperiment) -> Experiment:
    return make_experiment(batch_size=1000)


@pytest.fixture
def explain(experiment: Experiment) -> Explain:
    """Return the message for an error of experiment `big`: `explain(MemoryError(), ON_CPU)`."""

    def message(error: Exception, world: World = ON_CUDA) -> str:
        with pytest.raises(UserError) as raised, failures_explained("big", experiment, world):
            raise error
        assert raised.value.__cause__ is error
        return str(raised.value)

    return message


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (torch.OutOfMemoryError(GPU_IS_FULL), GPU_IS_FULL),
        (
            torch.OutOfMemoryError(f"Caught OutOfMemoryError in replica 1\n{GPU_IS_FULL}"),
            GPU_IS_FULL,
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "ALLOC_FAILED"),
        (RuntimeError("GET was unable to find an engine to execute this"), "GET was unable"),
        (MemoryError(), "out of memory"),
    ],
)
def test_out_of_memory_has_torchs_own_words_and_what_to_change(
    explain: Explain, error: Exception, text: str
) -> None:
    message = explain(error)
    assert message.startswith("experiments.big: ")
    assert text in message
    for setting in ("batch_size (it is 1000)", "precision to bf16", "input to loader"):
        assert setting in message


def test_out_of_memory_on_the_cpu_is_recognised_from_the_real_allocator(
    experiment: Experiment,
) -> None:
    message = pytest.raises(UserError, match=r"tried to allocate \d+ .*batch_size")
    with message, failures_explained("big", experiment, ON_CPU):
        torch.empty(2**50)


def test_a_nondeterministic_operation_names_the_setting_that_allows_it(explain: Explain) -> None:
    text = "cumsum_cuda_kernel does not have a deterministic implementation, but you set ..."
    message = explain(RuntimeError(text))
    assert "torch has no deterministic cumsum_cuda_kernel" in message
    assert "experiments.big.model" in message
    assert "deterministic: false" in message


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[gloo/transport/tcp/pair.cc:545] Read error [::1]: Connection reset by peer"),
        torch.distributed.DistNetworkError("failed to recv, got 0 bytes"),
        RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
    ],
)
def test_other_errors_of_torchs_libraries_stand_behind_the_experiments_name(
    explain: Explain, error: Exception
) -> None:
    assert explain(error) == f"experiments.big on cuda:0: {error}"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)"),
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
