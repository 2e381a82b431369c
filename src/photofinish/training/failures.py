"""Errors that end a training, with the experiment's name and what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from photofinish.custom.running import has_user_frame, user_traceback
from photofinish.errors import UserError

if TYPE_CHECKING:
    from photofinish.config.experiment import Experiment
    from photofinish.training.world import World

# cuDNN reports no engine if its workspaces don't fit into memory.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED|unable to find an engine|"
    r"unable to find a valid cuDNN algorithm",
    re.I,
)
_WORKER_FAILED = re.compile(
    r"DataLoader worker \(pid[^)]*\) [^\n.]*|unable to allocate shared memory.*"
)
_LIBRARY = re.compile(r"CUDA|HIP error|cuDNN|CUDNN|CUBLAS|NCCL|MIOpen|gloo")


def check_finite(
    seed: int,
    epoch: int,
    first_failing: float,
    steps: int,
    validation_loss: float | None,
    learning_rate: float,
) -> None:
    """Raise UserError if a loss isn't finite. `first_failing` is infinity for no step."""
    if math.isfinite(first_failing):
        where = f"at step {first_failing + 1} of {steps}"
    elif validation_loss is not None and not math.isfinite(validation_loss):
        where = "in validation"
    else:
        return
    raise UserError(
        f"the loss is no longer finite: seed {seed}, epoch {epoch + 1}, {where}. The training has "
        f"diverged: lower the learning rate in params.yaml (it is {learning_rate:g})"
    )


@contextmanager
def failures_explained(
    name: str, experiment: Experiment, team: World, *, runs_custom_code: bool = False
) -> Iterator[None]:
    """Turn errors of torch and custom code in experiment `name` into UserError.

    A custom error's traceback starts with the first line of custom code.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        text = str(error).strip()
        if match := _WORKER_FAILED.search(text):
            raise UserError(
                f"experiments.{name}: a DataLoader worker failed: {match[0]}. Usually memory has "
                f"run out, or the shared memory (/dev/shm) through which workers send batches. "
                f"Enlarge it, or lower input.workers in params.yaml (input.workers: 0 needs none)"
            ) from error
        if is_out_of_memory(error):
            line = next(filter(_OUT_OF_MEMORY.search, text.splitlines()), text or "out of memory")
            raise UserError(
                f"experiments.{name}: {line.rstrip('.')}. In params.yaml, lower its batch_size (it "
                f"is {experiment.batch_size}) or validation_batch_size, set its precision to bf16 "
                f"or its input to loader, or choose a smaller model or smaller samples"
            ) from error
        if runs_custom_code and has_user_frame(error):
            traceback = user_traceback(error)
            raise UserError(f"experiments.{name}: custom code failed:\n{traceback}") from error
        if isinstance(error, RuntimeError) and (
            isinstance(error, dist.DistError) or _LIBRARY.search(text)
        ):
            raise UserError(f"experiments.{name} on {team.devices[0]}: {text}") from error
        raise


def is_out_of_memory(error: Exception) -> bool:
    """Return True if the device's or the machine's memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(_OUT_OF_MEMORY.search(str(error)))


@contextmanager
def nondeterminism_explained(experiment: Experiment) -> Iterator[None]:
    """Explain errors of nondeterministic operations with the setting that allows them."""
    try:
        yield
    except RuntimeError as error:
        operation, _, rest = str(error).strip().partition(" ")
        if "deterministic implementation" not in rest:
            raise
        raise UserError(
            f"model {experiment.model.name} can't be trained on this device with the same result "
            f"each time: torch has no deterministic {operation}. Choose another model in "
            f"params.yaml, or let results differ (deterministic: false)"
        ) from error
