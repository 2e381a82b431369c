"""A loader is timed alone and with workers, and other inputs are tried beside it."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import pytest
import torch
from conftest import HeldClock, MakeExperiment, MakeResult, MakeTrainer
from result_files import in_turns, job_of, made_up_attribution, trained, with_record, with_timings
from torch.utils.data import get_worker_info

from photofinish.answer.diagnosis import loader_remedies
from photofinish.config.experiment import LoaderInput
from photofinish.data.sources import LiveSamples
from photofinish.inside.timed_batches import is_loading
from photofinish.measure import loader_times, loader_tries
from photofinish.measure.in_turns import Budget, Way, turns
from photofinish.measure.loader_tries import measure_loader, try_inputs
from photofinish.nested import map_nested
from photofinish.results.measurements import LoaderTimes, Tried, TriedWorkers
from photofinish.training.batches import BatchPlan, Normaliser, Part
from photofinish.training.input_paths import LoaderBatches, make_batches
from photofinish.training.torch_device import CPU
from photofinish.training.trainer import Trainer


def burn(item: Any) -> Any:
    """Compute for a while, and longer than all else that a planted sample takes."""
    end_seconds = time.thread_time() + 0.005
    while time.thread_time() < end_seconds:
        pass
    return item


@dataclass
class Items:
    """Data set with a transform."""

    read: Callable[[int], Any] = lambda row: torch.full((1, 8, 8), float(row))
    transforms: Any = ()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> tuple[Any, int]:
        item = self.read(row)
        for transform in self.transforms:
            item = transform(item)
        return item, row % 2


class Read(LiveSamples):
    """Live samples of a data set without a split."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, row: int) -> tuple[Any, Any]:
        item, target = self.dataset[row]
        return map_nested(np.asarray, item), np.int64(target)


Load = Callable[..., LoaderBatches]


@pytest.fixture
def load(make_experiment: MakeExperiment) -> Load:
    """Return the batches of a data set that is read in each epoch."""

    def make(dataset: Any, **settings: Any) -> LoaderBatches:
        experiment = make_experiment(input={"name": "loader"} | settings, batch_size=4)
        part = Part("train", None, np.arange(8) % 2, Normaliser((), ()), Read(dataset))
        batches = make_batches(experiment, part, CPU)
        assert isinstance(batches, LoaderBatches)
        return batches

    return make


TEN = Budget.of(math.inf, 40.0)
"""Budget with ten seconds for a loader."""


def measure(batches: LoaderBatches, cores: int, budget: Budget = TEN) -> LoaderTimes:
    ends_seconds = time.perf_counter() + budget.loader_seconds
    return loader_times.measure(batches, budget, ends_seconds, cores)


def test_a_data_set_that_fails_is_not_timed_and_says_why(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise TypeError("not a Compose")

    monkeypatch.setattr(loader_times, "measure", fail)
    assert measure_loader(trainer_of(input={"name": "loader"}), 1.0, TEN) is None
    assert "TypeError: not a Compose" in capsys.readouterr().out
    assert measure_loader(trainer_of(input={"name": "resident"}), 1.0, TEN) is None


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_are_tried_up_to_the_cores(
    load: Load, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"workers": workers} if workers else {}
    monkeypatch.setattr(loader_times, "SAMPLES", 8)
    found = measure(load(Items(transforms=[burn]), **settings), cores=2)
    assert [each.workers for each in found.tried_workers] == [1, 2]
    monkeypatch.setattr(loader_times, "available_memory_bytes", lambda: 1)
    in_little_memory = measure(load(Items()), cores=2)
    assert [each.workers for each in in_little_memory.tried_workers] == [1]
    is_by_a_worker = found.whole_seconds == found.tried_workers[0].batch_seconds
    assert is_by_a_worker is (workers > 0)


def test_the_slow_line_of_loading_in_this_process_is_named(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each item is a sample of a line if it is read where lines are sampled."""
    samples = list[str]()

    def read(item: Any) -> Any:
        samples.extend(["augment.py:17"] * is_loading())
        return item

    monkeypatch.setattr(loader_times, "sample_lines", lambda _seconds: samples)
    found = measure(load(Items(transforms=[read])), cores=0)
    assert found.slow_line == (1.0, "augment.py:17")


def hangs_in_a_worker(row: int) -> Any:
    if get_worker_info():
        time.sleep(2.0)
    return torch.full((2,), row)


def test_workers_that_hang_leave_the_time_of_this_process(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_times, "SAMPLES", 8)
    found = measure(load(Items(read=hangs_in_a_worker)), cores=2, budget=Budget.of(10.0))
    assert found.whole_seconds > 0
    assert not found.tried_workers


def planted(whole_seconds: float, *batch_seconds: float, start_seconds: float = 0.0) -> LoaderTimes:
    """Return times of loading by this process, by one worker, two, and so on."""
    tried = tuple(
        TriedWorkers(workers=workers, batch_seconds=seconds, start_seconds=start_seconds)
        for workers, seconds in enumerate(batch_seconds, 1)
    )
    return LoaderTimes(whole_seconds=whole_seconds, tried_workers=tried)


def drawing(_row: int) -> Any:
    return torch.rand(1, 8, 8)


LOADER, STAYING = {"name": "loader"}, {"persistent_workers": True}
FLIP: dict[str, Any] = {"name": "RandomHorizontalFlip"}
TRIES: dict[str, tuple[Any, dict[str, Any], LoaderTimes, dict[str, Any]]] = {
    "a loader that is fine": (Items(), {}, planted(0.01, 0.01, 0.01), {}),
    "two workers load faster": (
        Items(read=drawing), {}, planted(0.5, 0.5, 0.3),
        {"input": LOADER | STAYING | {"workers": 2}},
    ),
    "workers that start in each epoch": (
        Items(read=drawing), {"workers": 1}, planted(0.5, 0.5, start_seconds=0.8),
        {"input": LOADER | STAYING | {"workers": 1}},
    ),
    "workers that stay": (
        Items(read=drawing), {"workers": 1} | STAYING, planted(0.5, 0.5, start_seconds=0.8), {},
    ),
    "items without draws": (Items(), {}, planted(0.5), {"decode": "once", "input": "resident"}),
    "a transform of torchvision": (
        Items(read=drawing), {"transform": FLIP}, planted(0.5),
        {"input": LOADER | {"transform": None}, "batch_transform": FLIP},
    ),
}  # fmt: skip
"""Data set, settings and times of a loader, and what is tried: epochs take two steps, a second."""


@pytest.mark.parametrize(("dataset", "settings", "found", "expected"), TRIES.values(), ids=TRIES)
def test_what_may_be_faster_is_tried(
    load: Load,
    trainer_of: MakeTrainer,
    dataset: Items,
    settings: dict[str, Any],
    found: LoaderTimes,
    expected: dict[str, Any],
) -> None:
    trainer = trainer_of(input={"name": "loader"})
    trainer.training, trainer.steps_per_epoch = load(dataset, **settings), 2
    tried = try_inputs(trainer, found, 1.0, TEN, time.perf_counter() + 20.0)
    assert [each.changes for each in tried] == [expected] * bool(expected)
    for each in tried:
        assert len(each.turns.ratios) >= 4


def test_only_workers_that_stay_are_not_timed_beside_the_own_loader(
    load: Load, trainer_of: MakeTrainer
) -> None:
    trainer = trainer_of(input={"name": "loader"})
    trainer.steps_per_epoch = 2
    stay, live = TRIES["workers that start in each epoch"], load(Items(), transform=FLIP)
    by_graphs = trainer.experiment.model_copy(update={"cuda_graphs": "on"})
    has_transform = {"batch_transform": lambda batch, *_: batch}
    both = {"decode once": False, "batch transform": False}
    for batches, changes, found, names in (
        (load(stay[0], **stay[1]), {}, stay[2], {"workers": True}),
        (live, {}, planted(0.5), both),
        (live, {"experiment": by_graphs}, planted(0.5), {"decode once": False}),
        (live, has_transform, planted(0.5), {"decode once": False}),
    ):
        changed = copy.copy(trainer)
        vars(changed).update(changes, training=batches)
        tried = try_inputs(changed, found, 1.0, TEN, time.perf_counter() + 40.0)
        assert {each.by: each.turns.base == each.turns.changed for each in tried} == names


def test_an_input_that_fails_in_its_turn_loses_no_other(
    load: Load, trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trainer: Trainer, base: Way, others: list[Way], *limits: Any) -> Any:
        assert len(others) == 1, "too little memory for two"
        return turns(trainer, base, others, *limits)

    monkeypatch.setattr(loader_tries, "turns", fail)
    trainer = trainer_of(input=LOADER)
    trainer.training, trainer.steps_per_epoch = load(Items(), transform=FLIP), 2
    assert len(try_inputs(trainer, planted(0.5), 1.0, TEN, time.perf_counter() + 40.0)) == 2


def test_workers_that_start_slowly_for_two_batches_are_tried_persistent(
    load: Load, trainer_of: MakeTrainer, clock: HeldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker starts in 2 s, as a spawned one does, and a step takes 1 ms, on a held clock.

    The order of an epoch takes 0.1 s more, with workers and without.
    """
    start, order = BaseProcess.start, BatchPlan.order

    def order_slowly(plan: BatchPlan, epoch: int) -> torch.Tensor:
        clock.take(0.1)
        return order(plan, epoch)

    def slow(item: Any) -> Any:
        clock.take(0.001)
        return item

    def start_slowly(process: BaseProcess) -> None:
        clock.take(2.0)
        start(process)

    monkeypatch.setattr(BaseProcess, "start", start_slowly)
    trainer = trainer_of(input={"name": "loader", "workers": 1})
    trainer.network.register_forward_pre_hook(lambda *_: clock.take(0.001))
    batches = load(Items(read=drawing, transforms=[slow]), workers=1)
    trainer.training, trainer.steps_per_epoch = batches, 2
    with monkeypatch.context() as patch:
        patch.setattr(BatchPlan, "order", order_slowly)
        found = measure(batches, cores=1)
    (own,) = found.tried_workers
    assert own.start_seconds == pytest.approx(2.0)
    (persistent,) = try_inputs(
        trainer, found, own.start_seconds + 0.002, TEN, clock.now_seconds + 60.0
    )
    assert persistent.changes["input"]["persistent_workers"]
    assert persistent.turns.changed.median_seconds == pytest.approx(0.001)
    assert len(persistent.turns.ratios) == 10  # each of many steps, which come unevenly


@pytest.mark.parametrize(
    ("is_timed", "epochs", "suggested"), [(True, 2, 0), (True, 100, 1), (False, 100, 0)]
)
def test_workers_pay_for_their_start_and_are_not_suggested_if_it_is_unknown(
    make_result: MakeResult, is_timed: bool, epochs: int, suggested: int
) -> None:
    """An epoch takes 0.6 s, and 0.38 s with two workers that start once in 0.5 s.

    Steps take 79 ms, of which they wait 69 ms for the loader.
    """
    given = {"name": "loader", "workers": 2, "persistent_workers": True}
    timed = planted(0.01, *(0.01, 0.01) if is_timed else (0.01,), start_seconds=0.5)
    tried = Tried(by="workers", changes={"input": given}, turns=in_turns(0.016, 0.01))
    loader = timed.model_copy(update={"tried_inputs": (tried,)})
    result = with_timings(
        trained(make_result), loader=loader, attribution=made_up_attribution(0.069)
    )
    experiment = result.record.experiment.model_copy(update={"input": LoaderInput(name="loader")})
    result = with_record(result, experiment=experiment)
    epoch = replace(result.times.epochs[0], training_seconds=0.6)
    part = replace(result.steps.parts[0], seconds=0.6)
    total_seconds = result.times.startup_seconds + epochs * 0.7
    times = {"epochs": (epoch,) * epochs, "parts": (part,), "total_seconds": total_seconds}
    result = with_timings(result, **times)
    assert len(loader_remedies(job_of(result))) == suggested


@pytest.mark.parametrize("item_seconds", [0.001, 0.1, 0.4, 2.0])
def test_all_measurements_share_ten_seconds(
    load: Load,
    trainer_of: MakeTrainer,
    clock: HeldClock,
    monkeypatch: pytest.MonkeyPatch,
    item_seconds: float,
) -> None:
    """A step takes as long as its four items, by each of eight workers that were tried before."""

    def slow(item: Any) -> Any:
        clock.take(item_seconds)
        return item

    def load_in_workers(_batches: Any, workers: int, *_: Any) -> tuple[TriedWorkers, int]:
        clock.take(4 * item_seconds * workers)
        return planted(0.0, *[4 * item_seconds] * workers).tried_workers[-1], 0

    monkeypatch.setattr(loader_times, "try_workers", load_in_workers)
    monkeypatch.setattr(loader_tries, "allowed_cores", lambda _: 8)
    trainer = trainer_of(input=LOADER, batch_size=4)
    trainer.training, trainer.steps_per_epoch = load(Items(transforms=[slow]), transform=FLIP), 2
    began_seconds = clock.now_seconds
    found = measure_loader(trainer, 8 * item_seconds, TEN)
    assert (found is None) is (item_seconds > 1)
    assert clock.now_seconds - began_seconds <= 10.0
