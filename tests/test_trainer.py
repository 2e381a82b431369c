"""The training loop learns, repeats bit for bit, and agrees with a plain loop."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import recipe
import torch
import torch._inductor.config as inductor
from conftest import HeldClock, MakeRun, MakeTrainer, assert_same_run, network_with_state
from torch import nn
from torch.nn.functional import cross_entropy
from training_process import measure_here, train_here

from photofinish.data import PartName
from photofinish.data.packed import PackedSplit
from photofinish.errors import ConfigError, UserError
from photofinish.models.registry import build_model
from photofinish.results.learned import weights_of
from photofinish.results.measured import read_trained
from photofinish.training.batches import Batch, Batches, batch_order
from photofinish.training.trainer import Trainer

ONE_CYCLE = {"name": "one_cycle", "max_lr": 0.05}
GENTLE = {"name": "sgd", "lr": 0.003}  # the small data set is learned within an epoch otherwise
PRECISIONS = ["fp32", "tf32", "bf16", "fp16"]


class FullAbove(nn.Module):
    """Network whose validation has no memory for more than `most` samples."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.layer, self.most, self.sizes = nn.Linear(64, 3), most, list[int]()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.training and len(images) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        self.sizes += [] if self.training else [len(images)]
        outputs: torch.Tensor = self.layer(images.flatten(1))
        return outputs


def convolutions() -> nn.Sequential:
    """Return layers whose memory layouts differ or seem equal, and one with one position left."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(
            *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 1), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Conv2d(5, 6, 2), nn.ReLU()),
            *(nn.Conv2d(6, 7, 3, padding=1, stride=2), nn.Flatten(), nn.Linear(7, 3)),
        )


def trained(trainer: Trainer) -> Trainer:
    list(trainer.epochs())
    return trainer


def normalised(split: PackedSplit, part: PartName) -> tuple[torch.Tensor, torch.Tensor]:
    mean, std = (
        torch.tensor(values).view(-1, 1, 1) for values in (split.manifest.mean, split.manifest.std)
    )
    images = torch.from_numpy(np.array(split.images(part))).float()
    return (images / 255 - mean) / std, torch.from_numpy(split.labels(part))


@pytest.mark.parametrize(("patience", "done", "left"), [(1, 2, 0), (9, 5, 4)])
def test_a_time_limit_leaves_no_epochs_of_a_training_that_stopped_early(
    trainer_of: MakeTrainer, patience: int, done: int, left: int
) -> None:
    rule = {"patience": patience, "min_delta": 10.0}  # the first epoch stays the best one
    trainer = trainer_of(epochs=9, early_stopping=rule)
    trainer.last_epoch = 5
    assert trained(trainer).progress.epochs_done == done
    assert trainer.epochs_left_out() == left


@pytest.mark.parametrize("network", [network_with_state, convolutions])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_training_again_gives_the_same_bits_in_every_precision(
    trainer_of: MakeTrainer, precision: str, network: Callable[[], nn.Module]
) -> None:
    first = trained(trainer_of(network(), precision=precision))
    torch.rand(7)
    assert_same_run(first, trained(trainer_of(network(), precision=precision)))


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("fp32", torch.float32),
        ("tf32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
    ],
)
def test_steps_and_validation_compute_in_the_experiments_precision(
    trainer_of: MakeTrainer, precision: str, dtype: torch.dtype
) -> None:
    trainer, seen = trainer_of(precision=precision, epochs=1), set()
    trainer.network.register_forward_hook(
        lambda network, _, outputs: seen.add((network.training, outputs.dtype))
    )
    trained(trainer)
    assert seen == {(True, dtype), (False, dtype)}
    assert trainer.state.scaler.is_enabled() is (precision == "fp16")


def trained_by_hand(
    network: nn.Module, optimizer: torch.optim.Optimizer, split: PackedSplit
) -> list[float]:
    """The training losses of three epochs, of a loop written out."""
    images, labels = normalised(split, "train")
    losses = []
    for epoch in range(3):
        sum_of_losses = 0.0
        for rows in batch_order(len(labels), seed=0, epoch=epoch).split(16):
            optimizer.zero_grad()
            loss = cross_entropy(network(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            sum_of_losses += loss.item() * len(rows)
        losses.append(sum_of_losses / len(labels))
    return losses


def test_it_computes_as_a_bare_loop(trainer_of: MakeTrainer, packed_split: PackedSplit) -> None:
    trainer = trained(trainer_of())
    network = build_model(trainer.experiment.model, (1, 8, 8), 3, seed=0)
    losses = trained_by_hand(
        network, torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9), packed_split
    )
    assert [each.training_loss for each in trainer.progress.metrics] == losses
    for ours, theirs in zip(trainer.network.parameters(), network.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_cnn_learns_in_channels_last(trainer_of: MakeTrainer, packed_split: PackedSplit) -> None:
    settings = {"lr": 0.01, "momentum": 0.9}
    trainer = trained(trainer_of(convolutions(), optimizer={"name": "sgd", **settings}))
    assert trainer.network[3].weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[index, union-attr]
    assert trainer.network[6].weight.stride() == (20, 1, 10, 5)  # type: ignore[index, union-attr]
    network = convolutions()
    trained_by_hand(
        network, torch.optim.SGD(network.parameters(), foreach=False, **settings), packed_split
    )
    for (name, ours), theirs in zip(
        trainer.network.state_dict().items(), network.state_dict().values(), strict=True
    ):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (1.0, 5.0, 0.2)])
def test_validation_loss_and_accuracy_are_those_of_all_validation_images_at_once(
    trainer_of: MakeTrainer, packed_split: PackedSplit, weights: tuple[float, float, float]
) -> None:
    loss = {"name": "cross_entropy", "weight": weights}
    trainer = trained(
        trainer_of(batch_size=7, validation_batch_size=7, epochs=2, optimizer=GENTLE, loss=loss)
    )
    images, labels = normalised(packed_split, "validation")
    with torch.inference_mode():
        outputs = trainer.network.eval()(images)
    last = trainer.progress.metrics[-1]
    assert 0 < last.validation_accuracy < 1
    expected = cross_entropy(outputs, labels, torch.tensor(weights)).item()
    assert last.validation_loss == pytest.approx(expected, rel=1e-6)
    assert last.validation_accuracy == (outputs.argmax(1) == labels).sum().item() / len(labels)


@pytest.mark.parametrize(
    ("failing_step", "where", "epochs_kept"),
    [(8, "epoch 2, at step 3 of 5", 1), (0, "epoch 1, in validation", 0)],
)
def test_a_non_finite_loss_ends_the_training_with_the_step_and_the_rate_to_lower(
    trainer_of: MakeTrainer, failing_step: int, where: str, epochs_kept: int
) -> None:
    trainer = trainer_of(recipe.FailsAtStep(failing_step))
    with pytest.raises(UserError, match=rf"finite: seed 0, {where}\..*\(it is 0\.1\)"):
        trained(trainer)
    assert trainer.progress.epochs_done == len(trainer.progress.metrics) == epochs_kept


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(
    "network", [network_with_state, lambda: None], ids=["with dropout and batch-norm", "plain"]
)
def test_warming_up_changes_no_result(
    trainer_of: MakeTrainer, network: Callable[[], nn.Module | None], precision: str
) -> None:
    cold, warm = (trainer_of(network(), schedule=ONE_CYCLE, precision=precision) for _ in range(2))
    assert warm.prepare().seconds > 0
    assert_same_run(trained(cold), trained(warm))


@pytest.mark.parametrize("name", ["sgd", "adam", "RMSprop"])
def test_a_network_that_is_large_for_its_device_warms_up_without_a_copy(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("photofinish.training.trainer.free_memory_bytes", lambda _device: 1)
    settings = {"optimizer": {"name": name, "lr": 0.01}, "schedule": ONE_CYCLE}
    cold, warm = (trainer_of(network_with_state(), ema=0.9, **settings) for _ in range(2))
    next(iter(cold.epochs()))
    warm.load_state_dict(copy.deepcopy(cold.state_dict()))
    alive = []

    def count(_network: nn.Module, _inputs: object) -> None:
        alive.append(sum(type(each) is nn.Parameter for each in gc.get_objects()))

    hook = warm.network.register_forward_pre_hook(count)
    count(warm.network, None)
    warm.prepare()
    hook.remove()
    assert len(alive) > 1
    assert len(set(alive)) == 1
    assert_same_run(trained(cold), trained(warm))


@pytest.mark.parametrize(("batch_size", "validation"), [(16, 10), (24, 24), (36, 100), (100, 7)])
def test_it_warms_up_each_size(trainer_of: MakeTrainer, batch_size: int, validation: int) -> None:
    trainer = trainer_of(batch_size=batch_size, validation_batch_size=validation, epochs=1)
    seen: set[tuple[int, bool]] = set()
    trainer.network.register_forward_pre_hook(
        lambda network, inputs: seen.add((len(inputs[0]), network.training))
    )
    trainer.prepare()
    warmed = seen.copy()
    seen.clear()
    trained(trainer)
    assert warmed == seen


def test_the_clock_is_read_only_at_the_ends_of_the_two_passes_and_after_the_order_is_made(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, events = trainer_of(epochs=2), []
    readings: Iterator[float] = iter([10.0, 13.0, 14.0, 20.0, 25.0, 25.5])

    def read() -> float:
        events.append("clock")
        return next(readings)

    def order(*arguments: int) -> torch.Tensor:
        events.append("order")
        return batch_order(*arguments)

    monkeypatch.setattr(trainer.clock, "now_seconds", read)
    monkeypatch.setattr("photofinish.training.batches.batch_order", order)
    timings = trained(trainer).progress.timings
    assert [(each.training_seconds, each.validation_seconds) for each in timings] == [
        (3.0, 1.0),
        (5.0, 0.5),
    ]
    assert events == ["order", "clock", "clock", "clock"] * 2


@pytest.mark.parametrize("train", [trained, lambda job: [*job.parts(0, 2, notes_waits=True)]])
@pytest.mark.parametrize("transform", [None, lambda batch, *_: (batch[0] + 0, batch[1])])
def test_a_batch_is_gone_before_the_next_is_loaded(
    train: Callable[[Trainer], object],
    transform: Any,
    trainer_of: MakeTrainer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each step would read memory that is in no cache, and a GPU would hold two batches."""
    trainer, load = trainer_of(epochs=1), Batches.train_batches
    trainer.batch_transform = transform
    seen: list[Callable[[], object]] = []
    held: list[bool] = []

    def noted(batch: Batch) -> Batch:
        held.append(any(each() is not None for each in seen))
        seen.append(weakref.ref(batch[0]))
        return batch

    monkeypatch.setattr(Batches, "train_batches", lambda *given: map(noted, load(*given)))
    train(trainer)
    assert held == [False] * trainer.steps_per_epoch


def test_validation_takes_smaller_batches_where_memory_is_small(trainer_of: MakeTrainer) -> None:
    def ends(trainer: Trainer) -> tuple[str, list[int]]:
        trainer.network.sizes.clear()
        trainer.prepare()
        list(trainer.epochs())
        return trainer.steps.why, trainer.network.sizes[-3:]

    settings = {"batch_size": 4, "epochs": 1}
    why, sizes = ends(trainer_of(FullAbove(10), **settings))
    assert sizes == [4, 4, 4]
    assert "; validation takes 4 samples at once, as memory is too small for 24" in why
    why, sizes = ends(trainer_of(FullAbove(24), **settings))
    assert sizes[-1] == 24
    assert "memory" not in why
    for most, further in ((3, {}), (10, {"validation_batch_size": 12})):
        with pytest.raises(torch.OutOfMemoryError):
            trainer_of(FullAbove(most), batch_size=4, **further).prepare()


def test_without_a_validation_part_the_last_weights_are_kept(trainer_of: MakeTrainer) -> None:
    validating, other = (trainer_of(network_with_state(), ema=0.5) for _ in range(2))
    other.validation = None
    other.prepare()
    for metrics, _ in other.epochs():
        assert (metrics.validation_loss, metrics.validation_accuracy) == (None, None)
    assert weights_of(other.result) == weights_of(trained(validating).result)
    follows = trainer_of(schedule={"name": "reduce_on_plateau"})
    follows.validation = None
    with pytest.raises(ConfigError, match=r"^schedule "):
        trained(follows)


COMPILED = {"name": "mlp", "hidden": (8,), "compile": True}


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """List each call of a compiled network: the batch size, and if gradients are on."""
    seen: list[tuple[int, bool]] = []

    def compile_as_torch_does(network: nn.Module, *, dynamic: bool) -> None:
        assert not dynamic
        plain = network.forward

        def compiled(images: torch.Tensor) -> torch.Tensor:
            seen.append((len(images), torch.is_grad_enabled()))
            outputs: torch.Tensor = plain(images)
            return outputs

        monkeypatch.setattr(network, "forward", compiled)

    monkeypatch.setattr(nn.Module, "compile", compile_as_torch_does)
    return seen


@pytest.mark.usefixtures("shapes")
@pytest.mark.parametrize(("compiles", "seconds"), [(True, 0.19 + 0.19 + 0.39), (False, 0.38)])
def test_what_only_first_steps_and_compilation_take_is_the_jobs_time(
    trainer_of: MakeTrainer, clock: HeldClock, compiles: bool, seconds: float
) -> None:
    """Each size of a batch takes 0.2 s once, and 0.01 s from then on, which is no first time."""
    settings = {"model": COMPILED} if compiles else {}
    trainer = trainer_of(epochs=1, batch_size=16, validation_batch_size=10, **settings)
    seen: set[tuple[int, bool]] = set()

    def begins(network: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        shape = len(inputs[0]), network.training
        clock.take(0.01 if shape in seen else 0.2)
        seen.add(shape)

    trainer.network.register_forward_pre_hook(begins)
    warm_up = trainer.prepare()
    assert warm_up.first_seconds == pytest.approx(seconds)
    assert warm_up.seconds > seconds


def test_first_steps_are_in_start_ups(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = Trainer.prepare
    first = {"first_seconds": 100.0}
    monkeypatch.setattr(Trainer, "prepare", lambda trainer: prepare(trainer)._replace(**first))
    run = make_run()
    measure_here(run)
    train_here(run)
    times, measured = read_trained(run.out)
    assert min(times.startup_seconds, measured.startup_seconds, times.total_seconds) > 100


@pytest.mark.usefixtures("shapes")
def test_a_warm_up_and_a_failing_scratch_step_leave_the_network(trainer_of: MakeTrainer) -> None:
    trainer = trainer_of(model=COMPILED)
    before = weights_of(trainer.network)
    trainer.prepare()
    assert weights_of(trainer.network) == before

    def fail_after_a_step() -> None:
        with trainer.scratch_copy() as state:
            trainer.step(state, 0, trainer.training.first())
            raise MemoryError

    with pytest.raises(MemoryError):
        fail_after_a_step()
    assert weights_of(trainer.network) == before


def test_a_process_warms_up_on_its_own_share_of_the_last_batch(
    shapes: list[tuple[int, bool]], trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(model=COMPILED, epochs=1, batch_size=16)
    monkeypatch.setattr(trainer.team, "rank", 1)
    monkeypatch.setattr(trainer.team, "size", 3)
    trainer.prepare()
    assert (3, True) in shapes  # of 8: the second, the fifth and the eighth


@pytest.mark.usefixtures("shapes")
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_compiler_is_as_deterministic_as_its_experiment(
    trainer_of: MakeTrainer, deterministic: bool
) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(not deterministic)
        trainer_of(model=COMPILED, deterministic=deterministic)
        found = inductor.deterministic, torch.are_deterministic_algorithms_enabled()
        assert found == (deterministic, deterministic)
    finally:
        torch.use_deterministic_algorithms(before)
