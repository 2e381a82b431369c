"""Measurements after a training do not change what was learned."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import HeldClock, MakeExperiment, MakeRun, MakeTrainer, network_with_state
from torch import nn
from training_process import measure_here

from photofinish.errors import UserError
from photofinish.inside import tensors
from photofinish.inside.tensors import fingerprint_tensor
from photofinish.measure.attribution import time_steps
from photofinish.measure.first_step import first_batch, first_step
from photofinish.measure.in_turns import Budget, Way, turns, with_threads
from photofinish.measure.take_parts import take_parts
from photofinish.models.registry import build_model
from photofinish.results.learned import weights_of
from photofinish.results.trained import FirstStep
from photofinish.runs.setup import Setup
from photofinish.runs.training import check_repeat
from photofinish.training.batches import Batch
from photofinish.training.loading import LoadedSamples
from photofinish.training.losses import Loss
from photofinish.training.torch_device import CPU
from photofinish.training.trainer import Trainer
from photofinish.training.warm_up import WARM_UP_STEPS
from photofinish.training.world import World


@pytest.fixture
def trained(trainer_of: MakeTrainer) -> Trainer:
    trainer = trainer_of()
    list(trainer.epochs())
    return trainer


@pytest.fixture
def batch(trainer_of: MakeTrainer) -> Batch:
    batch = first_batch(trainer_of().training, World(CPU))
    assert batch
    return batch


def take_first_step(network: nn.Module, batch: Batch, precision: str = "fp32") -> FirstStep:
    labels = torch.zeros(72, dtype=torch.int64).numpy()
    loss = Loss(None, "classes", CPU)
    return first_step(network, loss, batch, CPU, precision, labels, seed=0)


def test_a_step_is_timed_without_waiting_for_data(
    trained: Trainer, monkeypatch: pytest.MonkeyPatch, clock: HeldClock
) -> None:
    trained.network.register_forward_pre_hook(lambda *_: clock.take(0.25))
    batches, before = list(trained.training.train_batches(0)), weights_of(trained.network)

    def slowly(_epoch: int) -> Iterator[Batch]:
        for batch in batches:
            clock.take(100.0)
            yield batch

    monkeypatch.setattr(trained.training, "train_batches", slowly)
    with with_threads(1):
        measured = time_steps(trained, 0.25, 4.0).base
    assert measured.step_seconds == [0.25] * 15
    assert weights_of(trained.network) == before


def test_steps_that_settle_a_way_come_after_another_ways_and_are_not_timed(
    trained: Trainer, clock: HeldClock
) -> None:
    taken: list[str] = []

    def way(name: str) -> Way:
        def settle() -> None:
            taken.append(f"{name} settles")
            clock.take(9.0)

        def take() -> None:
            taken.append(name)
            clock.take(1.0)

        return Way(take, WARM_UP_STEPS, settle=settle)

    one, (other,) = turns(trained, way("one"), [way("other")], 100.0, 2)
    assert one.sample_seconds == other.sample_seconds == (1.0, 1.0)
    warm_up = ["one settles", "one", "other settles", "other"]
    assert taken == [*warm_up, "other", "one settles", "one", "one", "other settles", "other"]


def test_a_repeat_that_learns_something_else_is_an_error(
    trained: Trainer, trainer_of: MakeTrainer
) -> None:
    changed_before, changed_after = trainer_of(), trainer_of()
    next(iter(changed_before.network.parameters())).data[0] += 1e-6
    for trainer in (changed_before, changed_after):
        list(trainer.epochs())
    next(iter(changed_after.network.parameters())).data[0] += 1e-6
    with pytest.raises(UserError, match=r"small, repeat 2 .* from epoch \d on"):
        check_repeat(trained, changed_before, "small", 2)
    with pytest.raises(UserError, match="in its weights at the end"):
        check_repeat(trained, changed_after, "small", 2)


def test_the_first_step_is_that_of_the_training(
    batch: Batch, make_experiment: MakeExperiment
) -> None:
    network, again = (build_model(make_experiment().model, (1, 8, 8), 3, seed=0) for _ in range(2))
    taken = take_first_step(network, batch)
    loss = nn.functional.cross_entropy(again(batch[0]), batch[1])
    loss.backward()  # type: ignore[no-untyped-call]
    assert taken.loss == loss.item()
    for name, weight in again.named_parameters():
        assert weight.grad is not None
        assert taken.gradients[name] == fingerprint_tensor(weight.grad)
        assert taken.gradients[name][0] == pytest.approx(weight.grad.norm().item(), rel=1e-5)
        assert taken.weights[name] == fingerprint_tensor(weight)
    assert list(taken.outputs) == ["0", "1", "2", "3"]


def test_the_first_step_repeats_bit_for_bit_also_with_dropout(batch: Batch) -> None:
    first = take_first_step(network_with_state(), batch, "bf16")
    torch.manual_seed(99)
    assert take_first_step(network_with_state(), batch, "bf16") == first


def test_the_shares_of_several_ranks_make_the_batch_of_one(
    batch: Batch, trainer_of: MakeTrainer
) -> None:
    class TwoRanks(World):
        size = 2

        def all_gather_object(self, values: list[torch.Tensor]) -> list[list[torch.Tensor]]:
            return [[part[rank::2] for part in values] for rank in range(2)]

    training, team = trainer_of().training, TwoRanks(CPU)
    assert all(map(torch.equal, first_batch(training, team), batch))


def test_different_tensors_have_different_fingerprints() -> None:
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    one_changed, swapped = tensor.clone(), tensor.clone()
    one_changed[7] += 1e-6
    swapped[[3, 4, 5, 6]] = tensor[[6, 5, 4, 3]]
    for other in (one_changed, swapped, -tensor):
        assert fingerprint_tensor(other) != fingerprint_tensor(tensor)
    assert fingerprint_tensor(tensor.view(10, 100).clone()) == fingerprint_tensor(tensor)


def test_a_fingerprint_is_that_of_any_torch_and_leaves_the_scripts_settings_alone() -> None:
    # As torch 2.0 and 2.14 computed it.
    ramp = (2999999249.999822, -7453078370, -507790364, -5010556186, -3708937520, 736708186)
    tensors._signs.cache_clear()
    before = torch.get_rng_state()
    with torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
        found = fingerprint_tensor(torch.arange(3e6, device="cpu"))
    assert found[:6] == pytest.approx(ramp, rel=1e-12)
    assert torch.equal(torch.get_rng_state(), before)
    infinite = torch.tensor([1.0, torch.inf, -torch.nan, 1e300], dtype=torch.float64)
    assert all(map(math.isfinite, fingerprint_tensor(infinite)))


@pytest.mark.parametrize(
    "times",
    [(0.01, 0, 150), (0.01, 0, 15_000), (2, 0, 150), (0.01, 1, 20), (0.1, 0.4, 300)],
    ids=str,
)
def test_measuring_takes_its_seconds_and_at_most_three_more(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, clock: HeldClock, times: Any
) -> None:
    """`times` are seconds of a step, seconds to load its batch, and the number of epochs."""
    (step_seconds, batch_seconds, epochs), began_seconds = times, list[float]()

    def slow_network(*arguments: Any) -> nn.Module:
        network = new_network(*arguments)
        network.register_forward_pre_hook(lambda *_: clock.take(step_seconds))
        return network

    def collate_slowly(samples: LoadedSamples, batch: list[Batch]) -> Batch:
        clock.take(batch_seconds * len(batch) / 16)
        return collate(samples, batch)

    def take_parts_first(*arguments: Any) -> Any:
        began_seconds.append(clock.now_seconds)
        return take_parts(*arguments)

    new_network, collate = Setup.new_network, LoadedSamples.collate
    monkeypatch.setattr(Setup, "new_network", slow_network)
    monkeypatch.setattr(LoadedSamples, "collate", collate_slowly)
    monkeypatch.setattr("photofinish.measure.measure.take_parts", take_parts_first)
    source = {"name": "loader" if batch_seconds else "resident"}
    measured = measure_here(make_run(epochs=epochs, batch_size=16, input=source), None)
    took_seconds = clock.now_seconds - began_seconds[0]
    job_seconds = epochs * 5 * (step_seconds + batch_seconds)
    assert took_seconds <= Budget.of(job_seconds).whole_seconds + 3
    assert measured.operations
    assert (measured.attribution is None) is (step_seconds + batch_seconds >= 1)
    assert bool(measured.loader) is (batch_seconds > 0)


@pytest.mark.parametrize("failing", ["first_step", "profile"])
def test_what_runs_out_of_memory_is_left_out_with_its_reason(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def out_of_memory(*_arguments: object, **_further: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(f"photofinish.measure.measure.{failing}", out_of_memory)
    # Slow steps, as on a loaded machine, would not be measured one by one.
    monkeypatch.setattr("photofinish.measure.measure.second_step_seconds", lambda _trainer: 0.001)
    measured = measure_here(make_run())
    assert measured.parts
    assert (measured.steady_state is None) == (failing == "profile")
    without = {"first_step": measured.no_first_step, "profile": measured.not_counted}
    found = {"first_step": measured.first_step, "profile": measured.operations}
    assert "2.00 GiB" in str(without.pop(failing))
    assert [name for name, each in found.items() if each] == [*without]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_job_in_half_precision_records_the_rate_of_an_fp32_product(
    make_run: MakeRun, precision: str
) -> None:
    """A CPU may compute such steps slowly."""
    rate = measure_here(make_run(epochs=1, precision=precision)).fp32_flops_a_second
    assert (rate is not None and rate > 1e7) is (precision == "fp16")
