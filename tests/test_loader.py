"""The loader's workers: their lifetime, their threads, and the error when one dies."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import MakeExperiment
from training_process import FORK_SERVER

from photofinish.config.experiment import Augmentation, Experiment, LoaderInput
from photofinish.errors import EXIT_FAILED
from photofinish.stage.process import run_stage
from photofinish.training.batches import Batches, Normaliser, Part
from photofinish.training.failures import failures_explained
from photofinish.training.input_paths import make_batches
from photofinish.training.torch_device import CPU
from photofinish.training.world import World

WORKERS = 2
Loaded = Callable[..., Batches]


def batches_of(experiment: Any, normalise: Normaliser) -> Batches:
    images = np.random.default_rng(0).integers(0, 256, size=(64, 1, 4, 4), dtype=np.uint8)
    return make_batches(experiment, Part("train", images, np.arange(64), normalise), CPU)


def worker_pids() -> set[int]:
    return {process.pid for process in multiprocessing.active_children() if process.pid}


@pytest.fixture
def loaded(make_experiment: MakeExperiment) -> Iterator[Loaded]:
    assert not worker_pids()
    yield lambda **settings: batches_of(
        make_experiment(input={"name": "loader", "workers": WORKERS} | settings, batch_size=4),
        Normaliser((0.5,), (0.2,)),
    )
    assert not worker_pids()


def pids_of_an_epoch(batches: Batches, epoch: int) -> set[int]:
    seen = batches.train_batches(epoch)
    next(seen)
    pids = worker_pids()
    assert len(list(seen)) == 15
    return pids


def test_persistent_workers_live_on_from_epoch_to_epoch_and_when_a_pass_is_left_halfway(
    loaded: Loaded,
) -> None:
    batches = loaded(persistent_workers=True)
    next(batches.train_batches(0))
    halfway, first, second = worker_pids(), *(pids_of_an_epoch(batches, epoch) for epoch in (0, 1))
    assert len(halfway) == WORKERS
    assert halfway == first == second == worker_pids()


def test_workers_end_when_a_pass_is_left_halfway(loaded: Loaded) -> None:
    batches = loaded()
    for step, _ in enumerate(batches.train_batches(0)):
        if step == 2:
            break
    assert not worker_pids()


@pytest.mark.parametrize(
    ("fault", "message"),
    [("kill persistent", r"DataLoader worker \(pid"), ("full", "No space left")],
)
def test_a_worker_that_dies_ends_the_run_in_one_line_that_names_the_setting(
    fault: str, message: str, tmp_path: Path
) -> None:
    process = FORK_SERVER.Process(
        target=train_until_the_fault, args=(fault, tmp_path / "output.txt")
    )
    process.start()
    process.join()
    output = (tmp_path / "output.txt").read_text(encoding="utf-8")
    assert process.exitcode == EXIT_FAILED
    assert re.fullmatch(rf"error: .*{message}.*/dev/shm.*input\.workers: 0.*\n", output), output


class _FullSharedMemory(Normaliser):
    """Fails in the worker as PyTorch does where it can't place a batch."""

    def __call__(self, _image: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(
            "unable to allocate shared memory(shm) for file </torch_1>: "
            "No space left on device (28)"
        )


def train_until_the_fault(fault: str, output: Path) -> None:
    """Train in a separate process."""
    # As a training's, whose workers are its own children.
    multiprocessing.set_start_method("fork", force=True)
    with output.open("wb") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    run_stage(lambda: train(fault))


def train(fault: str) -> None:
    source = LoaderInput(name="loader", workers=WORKERS, persistent_workers="persistent" in fault)
    experiment = SimpleNamespace(
        input=source,
        batch_size=4,
        validation_batch_size=None,
        seed=0,
        augmentation=Augmentation(),
        sampler=None,
    )
    normalise = _FullSharedMemory if fault == "full" else Normaliser
    with failures_explained("small", cast(Experiment, None), World(CPU)):
        batches = batches_of(experiment, normalise((0.5,), (0.2,)))
        for step, _ in enumerate(batches.train_batches(0)):
            if step == 1 and "kill" in fault:
                os.kill(min(worker_pids()), signal.SIGKILL)
