"""What is measured once a network is trained, and that none of it changes what was learned."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
from conftest import HeldClock, MakeExperiment, MakeTrainer, network_with_state
from torch import nn
from training_process import NoTracker

from photofinish.data.packed import PackedSplit
from photofinish.errors import UserError
from photofinish.machine.fingerprint import CpuTarget
from photofinish.models.registry import build_model
from photofinish.profiling import scratch
from photofinish.profiling.attribution import SamplePlan, measure_by_turns, measure_steps, plan_samples
from photofinish.profiling.first_step import fingerprint_tensor, first_batch, first_step
from photofinish.profiling.scratch import WARM_UP_STEPS, forget_optimizer
from photofinish.results import EpochTiming
from photofinish.results.learned import weights_of
from photofinish.runs.meters import OverheadMeter
from photofinish.runs.repeats import train_repeats
from photofinish.runs.run import Run
from photofinish.runs.setup import Setup
from photofinish.runs.train import train as train_run
from photofinish.tracking.client import Tracker
from photofinish.training.batches import Batch
from photofinish.training.optimisation import Loss
from photofinish.training.torch_device import CPU, memory_format
from photofinish.training.trainer import Trainer
from photofinish.training.world import World

CROSS_ENTROPY = Loss(None, "classes", CPU)


@pytest.fixture
def trained(make_experiment: MakeExperiment, make_trainer: MakeTrainer) -> Trainer:
    trainer = make_trainer(make_experiment())
    list(trainer.epochs())
    return trainer


@pytest.fixture
def batch(make_experiment: MakeExperiment, make_trainer: MakeTrainer) -> Batch:
    found = first_batch(make_trainer(make_experiment()).training, World(CPU))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("step_seconds", "training_seconds", "samples", "steps"),
    [
        (1e-5, 0.1, 10, 50),  # quick: no more steps than are of use
        (1e-3, 1.0, 10, 5),  # a short training has a twentieth of a second
        (1e-3, 10.0, 10, 20),  # 2 % of it
        (1e-3, 1000.0, 10, 50),
        (0.08, 1000.0, 6, 1),  # half a second
        (0.33, 100.0, 5, 1),  # slow, but 2 % of the training are enough for an interval
        (0.33, 10.0, 3, 1),  # they aren't: as many as a second holds
        (1.5, 10.0, 1, 1),
    ],
)
def test_steps_are_sampled_within_the_time_there_is(
    step_seconds: float, training_seconds: float, samples: int, steps: int
) -> None:
    assert plan_samples(step_seconds, training_seconds) == SamplePlan(samples, steps)
    most_seconds = 0.5 if step_seconds < 0.1 else max(1.0, 0.02 * training_seconds)
    assert samples * steps * step_seconds <= most_seconds or samples == 1


def test_a_step_is_timed_without_waiting_for_data(
    make_experiment: MakeExperiment, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, clock: HeldClock
) -> None:
    trainer = make_trainer(make_experiment())
    trainer.network.register_forward_pre_hook(lambda *_: clock.take(0.25))
    batches = list(trainer.training.train_batches(0))

    def slowly(_epoch: int):  # type: ignore[no-untyped-def]
        for each in batches:
            clock.take(100.0)
            yield each

    monkeypatch.setattr(trainer.training, "train_batches", slowly)
    found = measure_steps(trainer, SamplePlan(3, 4))
    assert (found.sample_seconds, found.steps_per_sample) == ((1.0,) * 3, 4)
    assert found.step_seconds == [0.25] * 3


def test_an_accelerator_works_until_it_is_awake_before_its_steps_are_timed(
    make_experiment: MakeExperiment, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, clock: HeldClock
) -> None:
    """It may have idled since the training, and first runs at a low clock."""
    monkeypatch.setattr(scratch, "is_accelerator", lambda _device: True)
    trainer, steps = make_trainer(make_experiment()), []
    trainer.network.register_forward_pre_hook(lambda *_: steps.append(clock.take(0.03)))
    measure_steps(trainer, SamplePlan(2, 1))
    assert len(steps) == 7 + 2  # a fifth of a second, and the samples


def test_two_batch_sizes_are_timed_by_turns(make_experiment: MakeExperiment, make_trainer: MakeTrainer) -> None:
    """So that a slow spell of the machine makes neither look slower than the other."""
    sizes: list[int] = []
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    network.register_forward_pre_hook(lambda _module, inputs: sizes.append(len(inputs[0])))
    trainer = make_trainer(make_experiment(batch_size=16), network)
    same, other = measure_by_turns(trainer, SamplePlan(3, 2), 40)  # two steps at once, also to warm up
    assert sizes[2 * (WARM_UP_STEPS + 1) :] == [16, 16, 40, 40] * 3
    assert len(same.sample_seconds) == len(other.sample_seconds) == 3


def test_timing_steps_leaves_what_was_learned_as_it_is(trained: Trainer) -> None:
    before = weights_of(trained.network)
    measure_steps(trained, SamplePlan(2, 2))
    assert weights_of(trained.network) == before
    assert trained.steps_done == 3 * trained.steps_per_epoch


def test_what_only_further_training_needs_makes_room(trained: Trainer) -> None:
    optimizer = trained.state.optimizer
    assert any(optimizer.state.values())
    assert any(parameter.grad is not None for parameter in trained.network.parameters())
    forget_optimizer(trained)
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in trained.network.parameters())


class _Trainers:
    """Stands for a Setup that makes this trainer."""

    def __init__(self, run: Run, again: Trainer) -> None:
        self.run, self.new_trainer = run, lambda: again


def repeat(first: Trainer, again: Trainer) -> tuple[list[tuple[EpochTiming, ...]], list[tuple[int, int]]]:
    """The epochs of one repeat, and what was reported of them."""
    experiment = again.experiment.model_copy(update={"repeats": 2})
    run = Run("small", "cpu", experiment, cast(CpuTarget, None), Path(), Path())
    done: list[tuple[EpochTiming, ...]] = []
    reported: list[tuple[int, int]] = []
    setup = cast(Setup, _Trainers(run, again))
    assert list(train_repeats(setup, first, done, lambda *each: reported.append(each))) == [2]
    return done, reported


def test_a_repeat_has_its_own_times_and_reports_its_epochs(
    trained: Trainer, make_experiment: MakeExperiment, make_trainer: MakeTrainer
) -> None:
    (timings,), reported = repeat(trained, make_trainer(make_experiment()))
    assert reported == [(2, 1), (2, 2), (2, 3)]
    assert len(timings) == 3
    assert list(timings) != trained.progress.timings


def test_a_repeat_that_learns_something_else_is_an_error_that_names_the_epoch(
    trained: Trainer, make_experiment: MakeExperiment, make_trainer: MakeTrainer
) -> None:
    other = make_trainer(make_experiment())
    next(iter(other.network.parameters())).data[0] += 1e-6
    with pytest.raises(UserError, match=r"small, repeat 2: it did not learn the same .*: from epoch \d on"):
        repeat(trained, other)


def test_a_repeat_whose_weights_alone_differ_is_an_error_too(
    trained: Trainer, make_experiment: MakeExperiment, make_trainer: MakeTrainer
) -> None:
    trained.network.get_parameter("1.weight").data[0] += 1e-6
    with pytest.raises(UserError, match="the weights differ at the end"):
        repeat(trained, make_trainer(make_experiment()))


def test_the_first_step_is_that_of_the_training(batch: Batch, make_experiment: MakeExperiment) -> None:
    """Worked out anew: the loss and the gradients of the first batch, and the print of a tensor."""
    network = build_model(make_experiment().model, (1, 8, 8), 3, seed=0)
    found = first_step(network, CROSS_ENTROPY, batch, CPU, "fp32", torch.zeros(72, dtype=torch.int64).numpy(), seed=0)
    again = build_model(make_experiment().model, (1, 8, 8), 3, seed=0)
    loss = nn.functional.cross_entropy(again(batch[0]), batch[1])
    loss.backward()  # type: ignore[no-untyped-call]
    assert found.loss == loss.item()
    for name, parameter in again.named_parameters():
        assert parameter.grad is not None
        assert found.gradients[name] == fingerprint_tensor(parameter.grad)
        assert found.gradients[name][0] == pytest.approx(parameter.grad.norm().item(), rel=1e-5)
        assert found.weights[name] == fingerprint_tensor(parameter)
    assert list(found.outputs) == ["0", "1", "2", "3"]


def test_the_first_step_lies_in_memory_as_the_training_does(batch: Batch) -> None:
    network = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(16 * 4 * 4, 3))
    layout = memory_format(network, CPU, "fp32")
    seen = []
    network[1].register_forward_pre_hook(
        lambda module, inputs: seen.extend(
            each.is_contiguous(memory_format=layout) for each in (inputs[0], module.weight)
        )
    )
    first_step(network, CROSS_ENTROPY, batch, CPU, "fp32", torch.zeros(72, dtype=torch.int64).numpy(), seed=0)
    assert layout is torch.channels_last
    assert seen == [True] * 4  # in the step, and in the one that measures rounding


class Scale(nn.Module):
    """Gives a single number and a word."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(2.0))

    def forward(self) -> tuple[torch.Tensor, str]:
        return self.value * 1, "twice"


class Scaled(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 3))
        self.add_module("scale", Scale())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self[1](self[0](images)) * self[2]()[0]


def test_a_part_of_a_network_may_give_a_single_number_and_what_is_no_tensor(batch: Batch) -> None:
    labels = torch.zeros(72, dtype=torch.int64).numpy()
    found = first_step(Scaled(), CROSS_ENTROPY, batch, CPU, "fp32", labels, seed=0)
    assert found.outputs["scale"][0] == 2


def test_the_first_step_repeats_bit_for_bit_also_with_dropout(batch: Batch) -> None:
    labels = torch.zeros(72, dtype=torch.int64).numpy()
    first = first_step(network_with_state(), CROSS_ENTROPY, batch, CPU, "bf16", labels, seed=0)
    torch.manual_seed(99)
    assert first_step(network_with_state(), CROSS_ENTROPY, batch, CPU, "bf16", labels, seed=0) == first


def test_the_shares_of_several_processes_make_the_batch_of_one(batch: Batch) -> None:
    images, labels = batch

    class Comparison(World):
        size = 2

        def all_gather_object(self, values: list[torch.Tensor]) -> list[list[torch.Tensor]]:
            return [[part[rank::2] for part in values] for rank in range(2)]

    class Once:
        image_count = batch_size = len(labels)

        def train_batches(self, _epoch: int):  # type: ignore[no-untyped-def]
            yield batch

    team = Comparison(CPU)
    whole = first_batch(Once(), team)  # type: ignore[arg-type]
    assert whole is not None
    assert torch.equal(whole[0], images)
    assert torch.equal(whole[1], labels)
    team.rank = 1
    assert first_batch(Once(), team) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("change", ["one value", "two swapped", "signs"])
def test_a_tensors_print_tells_it_from_others(change: str) -> None:
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    other = tensor.clone()
    if change == "one value":
        other[7] += 1e-6
    if change == "two swapped":
        other[[3, 4, 5, 6]] = tensor[[6, 5, 4, 3]]
    if change == "signs":
        other.neg_()
    assert fingerprint_tensor(other) != fingerprint_tensor(tensor)
    assert fingerprint_tensor(tensor.view(10, 100).clone()) == fingerprint_tensor(tensor)


def test_what_is_not_finite_in_a_tensor_counts_as_0_in_its_print() -> None:
    masked = torch.tensor([1.0, -torch.inf, torch.nan, torch.inf, 2.0])
    assert fingerprint_tensor(masked) == fingerprint_tensor(torch.tensor([1.0, 0.0, 0.0, 0.0, 2.0]))


def test_a_tensor_larger_than_a_chunk_has_the_norm_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("photofinish.profiling.first_step._CHUNK", 7)
    norm, _ = fingerprint_tensor(torch.ones(100))
    assert norm == 10.0


def test_overhead_is_told_apart_by_what_it_is_for(clock: HeldClock) -> None:
    meter = OverheadMeter()
    clock.take(16.0)  # the timed passes
    with meter.spent_on("saving"):
        clock.take(5.0)
    clock.take(3.0)
    found = meter.overhead(passes_seconds=16.0)
    assert (found.saving_seconds, found.tracking_seconds, found.rest_seconds) == (5.0, 0.0, 3.0)
    assert found.share == 0.5


def test_a_run_that_had_nothing_left_to_train_has_no_overhead() -> None:
    assert OverheadMeter().overhead(0.0).share == 0.0


@pytest.mark.parametrize("measurement", ["measure_steps", "first_step"])
def test_out_of_memory_after_the_training_does_not_cost_the_training(
    make_experiment: MakeExperiment,
    cpu_host: CpuTarget,
    packed_split: PackedSplit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    measurement: str,
) -> None:
    def out_of_memory(*_arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def train() -> None:
        train_run(run, CPU, World(CPU), cast(Tracker, NoTracker()), 0.0)

    monkeypatch.chdir(tmp_path)
    run = Run("small", "cpu", make_experiment(epochs=2), cpu_host, packed_split.folder, tmp_path / "small" / "cpu")
    with monkeypatch.context() as patch:
        patch.setattr(f"photofinish.runs.profile.{measurement}", out_of_memory)
        with pytest.raises(UserError, match=r"2\.00 GiB.*The training itself is done and kept"):
            train()
    train()
    assert "resumes after epoch 2" in capsys.readouterr().out
