"""A step is taken apart into what really happens in each part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import HeldClock, MakeRun, MakeTrainer, assert_same_run, network_with_state
from recorded_jobs import attributed
from torch import nn
from torch.optim import SGD

from photofinish.config.experiment import Experiment, LoaderInput
from photofinish.measure import attribution, step_parts
from photofinish.measure.attribution import (
    changes_to_try,
    other_images,
    profile,
    time_steps,
    try_change,
)
from photofinish.measure.in_turns import Budget, with_threads
from photofinish.results.measurements import StepParts, TriedBy
from photofinish.runs.setup import Setup
from photofinish.training import trainer as trainer_module
from photofinish.training.batches import Batch, bytes_of_a_sample
from photofinish.training.input_paths import LoaderBatches
from photofinish.training.learning_rates import LearningRates
from photofinish.training.torch_device import CPU, configure_torch_for, torch_restored
from photofinish.training.trainer import Trainer
from photofinish.training.world import World

NAP_SECONDS = 1.0
LOADER = {"name": "loader", "workers": 0}
TRIES: dict[TriedBy, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "tf32": {"precision": "tf32"},
    "free algorithms": {"deterministic": False},
}
METHODS = {
    "copying": (LoaderBatches, "to_device"),
    "optimizer": (SGD, "step"),
    "rest": (LearningRates, "batch_ended"),
}
"""Methods that do a part of a step."""


@pytest.fixture
def napping_in(
    trainer_of: MakeTrainer, clock: HeldClock, monkeypatch: pytest.MonkeyPatch
) -> MakeTrainer:
    """Build a trainer whose steps take a second in one part, and no time in the others."""

    def nap(*_: Any) -> None:
        clock.take(NAP_SECONDS)

    def nap_before(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def napping(*arguments: Any) -> Any:
            nap()
            return original(*arguments)

        monkeypatch.setattr(owner, name, napping)

    def load_slowly(*arguments: Any) -> Iterator[Batch]:
        for batch in load(*arguments):
            nap()
            yield batch

    load = LoaderBatches._load

    def make(part: str, **settings: Any) -> Trainer:
        if part == "waiting":
            monkeypatch.setattr(LoaderBatches, "_load", load_slowly)
        if part in METHODS:
            nap_before(*METHODS[part])
        trainer = trainer_of(**settings)
        if part == "forward":
            trainer.network.register_forward_pre_hook(nap)
        if part == "backward":
            trainer.network.register_full_backward_pre_hook(nap)
        return trainer

    return make


@pytest.mark.parametrize("part", ["waiting", "copying", "forward", "backward", "optimizer", "rest"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_each_part_holds_what_happens_in_it_and_nothing_else(
    napping_in: MakeTrainer, monkeypatch: pytest.MonkeyPatch, part: str, precision: str
) -> None:
    trainer = napping_in(part, input=LOADER, precision=precision)
    parts = attributed(trainer).parts
    expected = {
        name: NAP_SECONDS * (name == f"{part}_seconds")
        for name in StepParts.model_fields
        if name != "waiting_seconds"  # which the training's parts have
    }
    assert parts.median_seconds == expected
    if part in ("waiting", "copying"):  # of which an accelerator times many batches together
        monkeypatch.setattr(step_parts, "is_accelerator", lambda _device: True)
        parts = attributed(trainer).parts
        for name in StepParts.model_fields:
            assert sum(getattr(parts, name)) == NAP_SECONDS * (name == f"{part}_seconds"), name


def test_many_workers_lengthen_no_measurement_of_a_cpus_steps(trainer_of: MakeTrainer) -> None:
    trainer = trainer_of()
    changes = {"input": LoaderInput(name="loader", workers=16)}
    trainer.experiment, trainer.steps_per_epoch = trainer.experiment.model_copy(update=changes), 100
    assert len(attributed(trainer).parts.forward_seconds) == 15


@pytest.mark.parametrize("source", [LOADER, {"name": "loader", "workers": 1}, {"name": "resident"}])
def test_profiling_between_epochs_changes_no_bit(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch, source: dict[str, Any]
) -> None:
    settings = {"input": source, "schedule": {"name": "one_cycle", "max_lr": 0.2}, "epochs": 2}
    undisturbed, measured = (trainer_of(network_with_state(), **settings) for _ in range(2))
    monkeypatch.setattr(attribution, "changes_to_try", lambda _trainer: dict(TRIES))
    list(undisturbed.epochs())
    found = []
    for _epoch in measured.epochs():
        found.append(attributed(measured))
    assert all([tried.by for tried in each.tried] == [*TRIES] for each in found)
    assert_same_run(measured, undisturbed)


@pytest.mark.parametrize(("shared", "tried"), [(0.0, [8, 1]), (0.3, [8]), (1.0, [])])
def test_half_the_threads_and_one_are_left_out_only_if_they_are_slow(
    trainer_of: MakeTrainer, clock: HeldClock, shared: float, tried: list[int]
) -> None:
    """A step of 20 ms takes longer by a share of its time for each thread less."""
    trainer = trainer_of()
    trainer.network.register_forward_pre_hook(
        lambda *_: clock.take(0.02 * (1 + shared * (16 - torch.get_num_threads())))
    )
    with with_threads(16):
        base, _, threads = time_steps(trainer, 0.02, 0.0)
        assert torch.get_num_threads() == 16
    assert list(threads) == tried
    for steps in (base, *threads.values()):
        assert len(steps.cpu_seconds) == len(steps.sample_seconds) >= 3


def test_a_bf16_or_tf32_step_has_the_memory_format_of_such_a_training(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts: set[bool] = set()
    second, last = nn.Conv2d(4, 4, 3), torch.channels_last
    second.register_forward_pre_hook(
        lambda layer, _: layouts.add(layer.weight.is_contiguous(memory_format=last))
    )
    monkeypatch.setattr(trainer_module, "memory_format", lambda *_: torch.contiguous_format)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), second, nn.Flatten(), nn.Linear(64, 3))
    trainer = trainer_of(network, epochs=1)
    for act, is_last in (
        (trainer.prepare, False),
        (lambda: try_change(trainer, 1, 0.0, "bf16", TRIES["bf16"]), True),
        (lambda: try_change(trainer, 1, 0.0, "tf32", TRIES["tf32"]), True),
        (lambda: list(trainer.epochs()), False),
    ):
        layouts.clear()
        act()
        assert layouts == ({False, True} if is_last else {False})  # in turns with the own format


def switches() -> tuple[Any, ...]:
    """Return TF32 of products and of convolutions, determinism and the search for algorithms."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    return matmul, cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled(), cudnn.benchmark


JUDGED = ("highest", False, True, False)


@pytest.mark.parametrize(
    ("changes", "tried"),
    [
        ({"precision": "tf32"}, ("high", True, True, False)),
        ({"deterministic": False}, ("highest", False, False, True)),
    ],
    ids=str,
)
@pytest.mark.parametrize("error", [None, RuntimeError, KeyError])
def test_tried_steps_have_the_switches_of_such_a_training_and_later_steps_have_their_own(
    trainer_of: MakeTrainer,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    tried: tuple[Any, ...],
    error: type[Exception] | None,
) -> None:
    def configure(experiment: Experiment, _device: torch.device, threads: int) -> None:
        configure_torch_for(experiment, torch.device("cuda"), threads)

    def note(*_: Any) -> None:
        seen.add(switches())
        if error:
            raise error

    seen: set[Any] = set()
    monkeypatch.setattr(attribution, "configure_torch_for", configure)
    trainer = trainer_of()
    with torch_restored():
        configure(trainer.experiment, CPU, 1)
        trainer.network.register_forward_pre_hook(note)
        with pytest.raises(KeyError) if error is KeyError else nullcontext():
            measured = try_change(trainer, 1, 0.0, "tf32", changes)
            assert (measured is None) is (error is not None)
        assert seen - {JUDGED} == ({tried} if error is None else set())
        assert switches() == JUDGED


@pytest.mark.parametrize(
    ("settings", "has_tf32", "tries"),
    [
        ({}, True, (True, True, True)),
        ({}, False, (True, False, True)),  # an older GPU
        ({"precision": "tf32"}, True, (True, False, True)),
        ({"precision": "bf16", "deterministic": False}, True, (False, False, False)),
    ],
)
def test_a_cuda_gpu_is_tried_with_what_it_has_and_the_training_does_not_use(
    trainer_of: MakeTrainer,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    has_tf32: bool,
    tries: tuple[bool, ...],
) -> None:
    trainer = trainer_of(**settings)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    capability = (8, 0) if has_tf32 else (7, 5)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    trainer.device = torch.device("cuda")
    changes = changes_to_try(trainer)
    assert tuple(name in changes for name in TRIES) == tries


@pytest.mark.parametrize(
    ("batch_size", "step_seconds", "devices", "room", "images"),
    [
        (16, 1e-3, 1, 99, 2),  # with a larger batch, an epoch would have too few steps
        (1, 1e-3, 1, 99, 8),
        (1, 0.045, 1, 99, 4),  # slow: as large a batch as has time
        (1, 1.0, 1, 99, 1),
        (16, 1e-3, 2, 99, 4),  # two devices share a batch
        (4, 1e-3, 1, 7, 2),
        (1, 1e-3, 1, 0, 1),  # neither fewer nor more: then nothing is known of it
    ],
)
def test_the_other_batch_is_as_large_as_time_and_memory_allow(
    trainer_of: MakeTrainer,
    monkeypatch: pytest.MonkeyPatch,
    batch_size: int,
    step_seconds: float,
    devices: int,
    room: int,
    images: int,
) -> None:
    trainer = trainer_of(batch_size=batch_size)
    trainer.team.devices *= devices
    free_bytes = room * 1000 * bytes_of_a_sample(trainer.training.first())
    monkeypatch.setattr(attribution, "available_memory_bytes", lambda: free_bytes)
    assert other_images(trainer, step_seconds, Budget.of(0.0)) == images


class _OneOfTwo(World):
    rank, size = 1, 2


@pytest.mark.parametrize(
    ("team", "error", "why"),
    [
        (_OneOfTwo(CPU), RuntimeError(), "several processes train together"),
        (World(CPU), torch.OutOfMemoryError("no memory"), "measuring it fails (no memory)"),
        (World(CPU), ValueError("one sample"), "measuring it fails (one sample)"),
    ],
    ids=["several processes", "too little memory", "a network that wants other batches"],
)
def test_a_step_that_cannot_be_profiled_has_a_reason(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, team: World, error: Exception, why: str
) -> None:
    for name in ("measure_attribution", "count_operations"):
        monkeypatch.setattr(attribution, name, Mock(side_effect=error))
    trainer = Setup(make_run(epochs=1), team).new_trainer()
    further = profile(trainer, 1e-3, Budget.of(0.0))
    assert further.get("attribution") is None
    assert str(further["not_attributed"]).startswith(why)
    assert further.get("operations") is None
    assert str(further["not_counted"]).startswith(("several processes", "measuring it fails"))
    assert further["steady_state"].sample_seconds
