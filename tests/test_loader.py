"""The loader's workers: their lifetime, their threads, and the error when one dies."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import torch
from conftest import MakeExperiment
from training_process import FORK_SERVER
from training_stage import wait_for

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


def explained() -> AbstractContextManager[None]:
    """Return the context manager that explains failures."""
    return failures_explained("small", cast(Experiment, None), World(CPU))


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


@pytest.mark.slow
def test_workers_end_soon_after_the_training_process_was_killed(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    parent = FORK_SERVER.Process(
        target=train_until_the_fault, args=("kill-parent persistent", output)
    )
    parent.start()
    parent.join()
    pids = output.read_text(encoding="utf-8").split()
    assert parent.exitcode == -signal.SIGKILL
    assert len(pids) == WORKERS
    wait_for(lambda: not any(is_running(int(pid)) for pid in pids))


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_states_of_generators_are_kept_once_a_batch(
    make_experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(row: int) -> tuple[Any, Any]:
        return np.random.rand(2), np.int64(row)

    kept = Mock(wraps=random.getstate)
    monkeypatch.setattr(random, "getstate", kept)
    part = Part("train", None, np.arange(8), Normaliser((), ()), read)
    batches = make_batches(make_experiment(input={"name": "loader"}, batch_size=4), part, CPU)
    before = np.random.get_state()[1]
    assert len(list(batches.train_batches(0))) == kept.call_count == 2
    assert np.array_equal(np.random.get_state()[1], before)


class _FullSharedMemory(Normaliser):
    """Fails in the worker as PyTorch does where it can't place a batch."""

    def __call__(self, _image: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(
            "unable to allocate shared memory(shm) for file </torch_1>: "
            "No space left on device (28)"
        )


def train_until_the_fault(fault: str, output: Path) -> None:
    """Train in a separate process."""
    multiprocessing.set_start_method(
        "fork", force=True
    )  # as a training's, whose workers are its own children
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
    with explained():
        for step, _ in enumerate(
            batches_of(experiment, normalise((0.5,), (0.2,))).train_batches(0)
        ):
            if step == 1 and "kill-parent" in fault:
                print(*worker_pids(), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if step == 1 and "kill" in fault:
                os.kill(min(worker_pids()), signal.SIGKILL)
