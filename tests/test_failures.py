"""Errors of a training name the experiment, the problem and the line of params.yaml to change."""

from __future__ import annotations

import pytest
import torch
from conftest import MakeExperiment

from photofinish.config.experiment import Experiment
from photofinish.errors import UserError
from photofinish.training.failures import failures_explained
from photofinish.training.torch_device import CPU
from photofinish.training.world import World

ON_CPU, ON_CUDA = World(CPU), World(torch.device("cuda", 0))
FULL = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.1"
LESS_MEMORY = ("batch_size (it is 1000)", "precision to bf16", "input to loader")
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
        (
            RuntimeError(NONDETERMINISTIC),
            ("no deterministic cumsum_cuda", "experiments.big.model", "deterministic: false"),
        ),
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


def test_out_of_memory_on_the_cpu_is_recognised_from_the_real_allocator(
    experiment: Experiment,
) -> None:
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
