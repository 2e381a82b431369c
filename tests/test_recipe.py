"""Each part of the usual recipe gives the bits of ten lines of PyTorch, and resumes exactly."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recipe
import torch
from conftest import MakeTrainer, assert_same_run
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Optimizer, RMSprop, lr_scheduler
from torchmetrics.functional import auroc
from torchvision.transforms import v2

from photofinish.config.experiment import Sampler
from photofinish.errors import ConfigError, UserError
from photofinish.results.learned import weights_of
from photofinish.training.batches import balanced_weights, derived_seed, make_sampler, seed_epoch
from photofinish.training.trainer import Trainer

EPOCHS = 3
LR = 0.05
OWN = f"{Path(recipe.__file__)}:"
Batch = tuple[torch.Tensor, torch.Tensor]
Loop = Callable[[nn.Module, Trainer], object]
SGD_SETTINGS = {"name": "sgd", "lr": LR}
PLATEAU = {"name": "reduce_on_plateau", "patience": 0, "factor": 0.5}
ONE_CYCLE = {"name": "one_cycle", "max_lr": 0.1}
PERSISTENT = {"name": "loader", "workers": 2, "persistent_workers": True}


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        hidden = nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16), nn.Dropout(0.2)
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(16, 3))


def batches(trainer: Trainer) -> Iterator[tuple[int, int, Batch]]:
    """Yield epoch, number of the step and batch, seeded as the trainer does."""
    for epoch in range(EPOCHS):
        seed_epoch(0, epoch)
        for number, batch in enumerate(trainer.training.train_batches(epoch)):
            yield epoch, number, batch


def step(net: nn.Module, optimizer: Optimizer, batch: Batch) -> None:
    optimizer.zero_grad()
    cross_entropy(net(batch[0]), batch[1]).backward()
    optimizer.step()


def rmsprop_by_milestones(net: nn.Module, trainer: Trainer) -> None:
    optimizer = RMSprop(net.parameters(), lr=0.001, momentum=0.5)
    scheduler, last = lr_scheduler.MultiStepLR(optimizer, [1, 2], gamma=0.5), 0
    for epoch, _, batch in batches(trainer):
        if epoch > last:
            scheduler.step()
            last = epoch
        step(net, optimizer, batch)


def cosine_by_steps_after_a_warm_up(net: nn.Module, trainer: Trainer) -> None:
    optimizer = SGD(net.parameters(), lr=LR, foreach=False)
    total = EPOCHS * trainer.steps_per_epoch
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, total)
    for done, (_, _, batch) in enumerate(batches(trainer)):
        rate = optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (done + 1) / 5)
        step(net, optimizer, batch)
        optimizer.param_groups[0]["lr"] = rate
        scheduler.step()


def groups_and_an_own_schedule(net: nn.Module, trainer: Trainer) -> None:
    optimizer = recipe.two_rates(net, lr=LR)
    scheduler = recipe.rising_and_falling(optimizer, EPOCHS * trainer.steps_per_epoch)
    for _, _, batch in batches(trainer):
        step(net, optimizer, batch)
        scheduler.step()


def clipped(net: nn.Module, trainer: Trainer) -> None:
    optimizer = SGD(net.parameters(), lr=LR, foreach=False)
    for _, _, (images, labels) in batches(trainer):
        optimizer.zero_grad()
        cross_entropy(net(images), labels).backward()
        clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()


def averaged(net: nn.Module, trainer: Trainer) -> nn.Module:
    optimizer, average = SGD(net.parameters(), lr=LR, foreach=False), copy.deepcopy(net)
    for _, _, batch in batches(trainer):
        step(net, optimizer, batch)
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), net.parameters(), strict=True):
                mean.lerp_(weight, 1 - 0.9)
    return average


def mixed(net: nn.Module, trainer: Trainer) -> None:
    optimizer = SGD(net.parameters(), lr=LR, foreach=False)
    mix = v2.MixUp(num_classes=3, alpha=0.4)
    for epoch, number, batch in batches(trainer):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed("batch", 0, epoch, number) % 2**32)
            images, targets = mix(*batch)
        step(net, optimizer, (images, targets))


def rows_backwards(net: nn.Module, trainer: Trainer) -> None:
    optimizer = SGD(net.parameters(), lr=LR, foreach=False)
    images, labels = (torch.cat(parts) for parts in zip(*trainer.training.eval_batches()))  # noqa: B905
    for epoch in range(EPOCHS):
        seed_epoch(0, epoch)
        for rows in torch.arange(len(labels)).flip(0).split(16):
            step(net, optimizer, (images[rows], labels[rows]))


def smoothed(net: nn.Module, trainer: Trainer) -> None:
    optimizer = SGD(net.parameters(), lr=LR, foreach=False)
    for _, _, batch in batches(trainer):
        optimizer.zero_grad()
        recipe.margin_step(net, batch, smoothing=0.3).backward()
        optimizer.step()


RECIPES: dict[str, tuple[dict[str, Any], Loop]] = {
    "any optimizer and schedule": (
        {
            "optimizer": {"name": "RMSprop", "lr": 0.001, "momentum": 0.5},
            "schedule": {"name": "MultiStepLR", "milestones": [1, 2], "gamma": 0.5},
        },
        rmsprop_by_milestones,
    ),
    "a schedule by steps, with a warm-up": (
        {"schedule": {"name": "cosine", "every": "step"}, "warmup_steps": 5},
        cosine_by_steps_after_a_warm_up,
    ),
    "a frozen layer, groups and a custom schedule": (
        {
            "optimizer": {"name": f"{OWN}two_rates", "lr": LR},
            "schedule": {"name": f"{OWN}rising_and_falling", "every": "step"},
        },
        groups_and_an_own_schedule,
    ),
    "clipping": ({"clip_grad_norm": 0.1}, clipped),
    "averaged weights": ({"ema": 0.9}, averaged),
    "a batch transform": ({"batch_transform": {"name": "MixUp", "alpha": 0.4}}, mixed),
    "a custom sampler": ({"sampler": {"name": f"{OWN}backwards"}}, rows_backwards),
    "a custom step": ({"step": {"name": f"{OWN}margin_step", "smoothing": 0.3}}, smoothed),
}


@pytest.fixture
def recipe_trainer(trainer_of: MakeTrainer) -> Callable[..., Trainer]:
    def make(**settings: Any) -> Trainer:
        return trainer_of(network(), **{"epochs": EPOCHS, "optimizer": SGD_SETTINGS} | settings)

    return make


@pytest.mark.parametrize(("settings", "plain"), RECIPES.values(), ids=RECIPES)
def test_it_has_the_bits_of_plain_pytorch(
    recipe_trainer: Callable[..., Trainer], settings: dict[str, Any], plain: Loop
) -> None:
    trainer, net = recipe_trainer(**settings), network()
    metrics = [metrics for metrics, _ in trainer.epochs()]
    expected = plain(net.train(), trainer)
    assert weights_of(trainer.result) == weights_of(expected if expected else net)  # type: ignore[arg-type]
    assert len(metrics) == EPOCHS


@pytest.mark.parametrize(
    "settings",
    [
        *(settings for settings, _ in RECIPES.values()),
        {"sampler": {"name": "balanced"}},
        {"step": {"name": f"{OWN}mixing_step"}},
        {"accumulate": 3},
        {"early_stopping": {"patience": 1, "min_delta": 10.0}},
        {"optimizer": {"name": "adam", "lr": 0.01}, "schedule": PLATEAU, "precision": "fp16"},
        {"optimizer": {"name": "adamw", "lr": 0.01}, "schedule": ONE_CYCLE, "precision": "bf16"},
        {"schedule": {"name": "step", "step_size": 1}, "precision": "tf32"},
        {"schedule": ONE_CYCLE, "input": PERSISTENT, "augmentation": {"flip": 0.5}},
    ],
    ids=str,
)
def test_it_resumes_exactly(
    recipe_trainer: Callable[..., Trainer], settings: dict[str, Any]
) -> None:
    whole, stopped, resumed = (recipe_trainer(**settings) for _ in range(3))
    list(whole.epochs())
    next(iter(stopped.epochs()))
    file = io.BytesIO()
    torch.save(stopped.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    torch.rand(13), np.random.rand(13)  # another process has other streams
    resumed.prepare()
    list(resumed.epochs())
    assert_same_run(whole, resumed)
    assert weights_of(whole.result) == weights_of(resumed.result)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"loss": {"name": "cross_entropy", "weight": (1.0, 5.0, 2.0)}},
        {"batch_transform": {"name": f"{OWN}doubling"}},
    ],
    ids=str,
)
def test_a_batch_in_parts_gives_the_same_within_rounding(
    trainer_of: MakeTrainer, settings: dict[str, Any]
) -> None:
    runs = []
    for accumulate in (1, 3):
        trainer = trainer_of(accumulate=accumulate, optimizer=SGD_SETTINGS, **settings)
        runs.append([metrics.training_loss for metrics, _ in trainer.epochs()])
    assert runs[0] == pytest.approx(runs[1], rel=1e-5)


def test_losses_of_parts_add_up_on_the_output_device(trainer_of: MakeTrainer) -> None:
    trainer = trainer_of(accumulate=2, optimizer=SGD_SETTINGS)
    trainer.team.devices = (torch.device("meta"),)  # as DataParallel's first device is another
    assert trainer.step(trainer.state, 0, trainer.training.first()).isfinite()


def test_a_training_stops_early_with_the_weights_of_its_best_epoch_also_when_resumed(
    trainer_of: MakeTrainer,
) -> None:
    # it learns for some epochs, and is then driven away
    schedule = {"name": f"{OWN}then_away"}
    settings: dict[str, Any] = {"epochs": 40, "optimizer": SGD_SETTINGS, "schedule": schedule}
    trainer = trainer_of(early_stopping={"patience": 3}, **settings)
    losses = [metrics.validation_loss for metrics, _ in trainer.epochs()]
    best = losses.index(min(losses))
    assert len(losses) == best + 1 + 3 < 40
    alone = trainer_of(**settings)
    for _ in zip(range(best + 1), alone.epochs(), strict=False):
        pass
    assert weights_of(trainer.result) == weights_of(alone.network)
    # by a metric
    rule = {"monitor": "auroc", "mode": "max", "patience": 3}
    settings |= {"early_stopping": rule, "metrics": ({"name": "auroc"},)}
    trainer = trainer_of(**settings)
    values = [metrics.monitored for metrics, _ in trainer.epochs()]
    best = values.index(max(values))
    assert len(values) == best + 1 + 3 < 40
    outputs, targets = [], []
    for images, labels in trainer.validation.eval_batches():
        outputs.append(trainer.result(images).detach().double().softmax(1))
        targets.append(labels)
    expected = auroc(torch.cat(outputs), torch.cat(targets), task="multiclass", num_classes=3)
    assert max(values) == pytest.approx(float(expected))
    first, second = trainer_of(**settings), trainer_of(**settings)
    for _ in zip(range(best + 2), first.epochs(), strict=False):
        pass
    second.load_state_dict(first.state_dict())
    assert [metrics.monitored for metrics, _ in second.epochs()] == values[best + 2 :]
    assert weights_of(second.result) == weights_of(trainer.result)
    with pytest.raises(ConfigError, match="a custom step can't give"):
        trainer_of(**settings, step={"name": f"{OWN}margin_step"})


def test_balanced_draws_each_class_and_each_label_alike() -> None:
    classes = torch.tensor([0] * 90 + [1] * 10)
    drawn = torch.multinomial(balanced_weights(classes), 4000, replacement=True)
    assert classes[drawn].float().mean().item() == pytest.approx(0.5, abs=0.05)
    labels = torch.tensor([[1.0, 0.0]] * 90 + [[0.0, 1.0]] * 5 + [[0.0, 0.0]] * 5)
    weights = balanced_weights(labels)
    sums = [weights[:90].sum(), weights[90:95].sum(), weights[95:].sum()]
    assert sums == pytest.approx([1.0, 1.0, 1.0])
    with pytest.raises(ConfigError):
        balanced_weights(torch.rand(5, 1))


def test_a_sampler_that_ignores_its_seed_draws_the_same_rows_in_each_rank() -> None:
    settings = Sampler.model_validate({"name": f"{OWN}shuffled"})
    orders = []
    for rank in range(2):
        torch.manual_seed(rank)
        choose = make_sampler(settings, torch.arange(20), seed=0)
        orders.append((choose(0).tolist(), choose(1).tolist()))
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]


def test_a_gan_steps_its_own_optimizers_and_resumes_exactly(trainer_of: MakeTrainer) -> None:
    settings = {
        "optimizer": {"name": f"{OWN}two_optimizers", "lr": 0.001},
        "step": {"name": f"{OWN}gan_step"},
        "validation_step": {"name": f"{OWN}gan_loss"},
    }

    def gan() -> recipe.Gan:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return recipe.Gan()

    whole, stopped, resumed = (trainer_of(gan(), **settings) for _ in range(3))
    history = [metrics for metrics, _ in whole.epochs()]
    assert history[0].validation_accuracy is None
    assert history[-1].validation_loss != history[0].validation_loss
    next(iter(stopped.epochs()))
    resumed.load_state_dict(stopped.state_dict())
    list(resumed.epochs())
    assert_same_run(whole, resumed)
    with pytest.raises(UserError, match="clip_grad_norm"):
        trainer_of(gan(), clip_grad_norm=1.0, **settings)
