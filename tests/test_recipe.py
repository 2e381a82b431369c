"""Each part of the usual recipe gives the bits of ten lines of PyTorch, and resumes exactly."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import recipe
import torch
from conftest import MakeTrainer, assert_same_run
from pydantic import TypeAdapter, ValidationError
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Optimizer, RMSprop, lr_scheduler
from torchmetrics.functional import auroc
from torchvision.transforms import v2

from photofinish.config import experiment as params
from photofinish.config.experiment import Sampler
from photofinish.errors import ConfigError, UserError
from photofinish.results.learned import weights_of
from photofinish.training import learning_rates, optimizer
from photofinish.training.batches import balanced_weights, derived_seed, make_sampler, seed_epoch
from photofinish.training.learning_rates import DeviceLearningRates, LearningRates
from photofinish.training.optimizer import build_optimizers
from photofinish.training.torch_device import CPU
from photofinish.training.trainer import Trainer

EPOCHS = 3
LR = 0.05
OWN = f"{Path(recipe.__file__)}:"
Batch = tuple[torch.Tensor, torch.Tensor]
Loop = Callable[[nn.Module, Optimizer, Trainer], object]
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


def rmsprop_by_milestones(net: nn.Module, _: Optimizer, trainer: Trainer) -> None:
    optimizer = RMSprop(net.parameters(), lr=0.001, momentum=0.5)
    scheduler, last = lr_scheduler.MultiStepLR(optimizer, [1, 2], gamma=0.5), 0
    for epoch, _, batch in batches(trainer):
        if epoch > last:
            scheduler.step()
            last = epoch
        step(net, optimizer, batch)


def cosine_by_steps_after_a_warm_up(net: nn.Module, optimizer: Optimizer, trainer: Trainer) -> None:
    total = EPOCHS * trainer.steps_per_epoch
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, total)
    for done, (_, _, batch) in enumerate(batches(trainer)):
        rate = optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (done + 1) / 5)
        step(net, optimizer, batch)
        optimizer.param_groups[0]["lr"] = rate
        scheduler.step()


def groups_and_an_own_schedule(net: nn.Module, _: Optimizer, trainer: Trainer) -> None:
    optimizer = recipe.two_rates(net, lr=LR)
    scheduler = recipe.rising_and_falling(optimizer, EPOCHS * trainer.steps_per_epoch)
    for _, _, batch in batches(trainer):
        step(net, optimizer, batch)
        scheduler.step()


def clipped(net: nn.Module, optimizer: Optimizer, trainer: Trainer) -> None:
    for _, _, (images, labels) in batches(trainer):
        optimizer.zero_grad()
        cross_entropy(net(images), labels).backward()
        clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()


def averaged(net: nn.Module, optimizer: Optimizer, trainer: Trainer) -> nn.Module:
    average = copy.deepcopy(net)
    for _, _, batch in batches(trainer):
        step(net, optimizer, batch)
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), net.parameters(), strict=True):
                mean.lerp_(weight, 1 - 0.9)
    return average


def mixed(net: nn.Module, optimizer: Optimizer, trainer: Trainer) -> None:
    mix = v2.MixUp(num_classes=3, alpha=0.4)
    for epoch, number, batch in batches(trainer):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed("batch", 0, epoch, number) % 2**32)
            images, targets = mix(*batch)
        step(net, optimizer, (images, targets))


def rows_backwards(net: nn.Module, optimizer: Optimizer, trainer: Trainer) -> None:
    images, labels = (torch.cat(parts) for parts in zip(*trainer.training.eval_batches()))  # noqa: B905
    for epoch in range(EPOCHS):
        seed_epoch(0, epoch)
        for rows in torch.arange(len(labels)).flip(0).split(16):
            step(net, optimizer, (images[rows], labels[rows]))


def smoothed(net: nn.Module, optimizer: Optimizer, trainer: Trainer) -> None:
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
def recipe_trainer(trainer_of: MakeTrainer) -> MakeTrainer:
    def make(**settings: Any) -> Trainer:
        return trainer_of(network(), **{"epochs": EPOCHS, "optimizer": SGD_SETTINGS} | settings)

    return make


@pytest.mark.parametrize(("settings", "plain"), RECIPES.values(), ids=RECIPES)
def test_it_has_the_bits_of_plain_pytorch(
    recipe_trainer: MakeTrainer, settings: dict[str, Any], plain: Loop
) -> None:
    trainer, net = recipe_trainer(**settings), network()
    metrics = [metrics for metrics, _ in trainer.epochs()]
    optimizer = SGD(net.parameters(), lr=LR, foreach=False)
    expected = plain(net.train(), optimizer, trainer)
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
def test_it_resumes_exactly(recipe_trainer: MakeTrainer, settings: dict[str, Any]) -> None:
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
def test_a_batch_in_parts_gives_the_same(trainer_of: MakeTrainer, settings: dict[str, Any]) -> None:
    runs = []
    for accumulate in (1, 3):
        trainer = trainer_of(accumulate=accumulate, optimizer=SGD_SETTINGS, **settings)
        runs.append([metrics.training_loss for metrics, _ in trainer.epochs()])
    assert runs[0] == pytest.approx(runs[1], rel=1e-5)


def test_losses_of_parts_add_up_on_the_output_device(trainer_of: MakeTrainer) -> None:
    trainer = trainer_of(accumulate=2, optimizer=SGD_SETTINGS)
    trainer.team.devices = (torch.device("meta"),)  # as DataParallel's first device is another
    assert trainer.step(trainer.state, 0, trainer.training.first()).isfinite()


def test_stopped_early_it_has_its_best_weights_also_when_resumed(trainer_of: MakeTrainer) -> None:
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


PLANNED, STEPS = 6, 4
RATE = 0.1
VALIDATION_LOSSES = [1.0, 0.5, 0.6, 0.7, 0.8, 0.9]  # worse from the third epoch on

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01, "nesterov": False},
    "adam": {"betas": (0.8, 0.99), "eps": 1e-7, "weight_decay": 0.02},
    "adamw": {"betas": (0.7, 0.98), "eps": 1e-6, "weight_decay": 0.03},
}
CLASSES: dict[str, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {},
    "step": {"step_size": 2, "gamma": 0.5},
    "cosine": {"eta_min": 0.01},
    "one_cycle": {"max_lr": 0.4, "pct_start": 0.25},
    "reduce_on_plateau": {"factor": 0.5, "patience": 1, "min_lr": 0.04},
}
OF_ONE_CYCLE = {"epochs": PLANNED, "steps_per_epoch": STEPS, "cycle_momentum": False}
THEIR_SCHEDULERS: dict[str, Callable[..., Any]] = {
    "constant": partial(lr_scheduler.LambdaLR, lr_lambda=lambda _epoch: 1.0),
    "step": lr_scheduler.StepLR,
    "cosine": partial(lr_scheduler.CosineAnnealingLR, T_max=PLANNED),
    "one_cycle": partial(lr_scheduler.OneCycleLR, **OF_ONE_CYCLE),
    "reduce_on_plateau": lr_scheduler.ReduceLROnPlateau,
}
"""Each takes the settings of ours."""


def optimizer_settings(name: str, **changes: Any) -> params.Optimizer:
    adapter: TypeAdapter[params.Optimizer] = TypeAdapter(params.Optimizer)
    return adapter.validate_python({"name": name, "lr": RATE, **changes})


def schedule_for(name: str, optimizer: Optimizer, **changes: Any) -> LearningRates:
    given = {"name": name, **SCHEDULES.get(name, {}), **changes}
    settings = TypeAdapter(params.Schedule).validate_python(given)
    experiment: Any = SimpleNamespace(schedule=settings, epochs=PLANNED, warmup_steps=0)
    return LearningRates(experiment, optimizer, STEPS)


def build_optimizer(
    settings: params.Optimizer, parameters: list[nn.Parameter], *, loss_is_scaled: bool = False
) -> Optimizer:
    network = nn.ParameterList(parameters)
    [optimizer] = build_optimizers(settings, network, loss_is_scaled=loss_is_scaled)
    return optimizer


def take_steps(
    optimizer: Optimizer, parameter: nn.Parameter, count: int, slopes: torch.Tensor | float = 1.0
) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        (parameter.sin() * slopes).sum().backward()
        optimizer.step()


def test_norms_and_biases_have_no_weight_decay() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    settings = optimizer_settings("adamw", weight_decay_exclude="norms and biases")
    [optimizer] = build_optimizers(settings, network)
    names = {parameter: name for name, parameter in network.named_parameters()}
    decays = [
        ([names[parameter] for parameter in group["params"]], group["weight_decay"])
        for group in optimizer.param_groups
    ]
    rest = ["0.bias", "1.weight", "1.bias", "3.bias"]
    assert decays == [(["0.weight", "3.weight"], 0.01), (rest, 0.0)]
    for other in ("rprop", "optim.py:Own"):
        with pytest.raises(ValidationError, match="no weight decay"):
            optimizer_settings(other, weight_decay_exclude="norms and biases")


def our_learning_rates(name: str, optimizer: Optimizer, **changes: Any) -> list[float]:
    """Return the learning rate of each step."""
    schedule, rates = schedule_for(name, optimizer, **changes), []
    for loss in VALIDATION_LOSSES:
        for _ in range(STEPS):
            rates.append(schedule.rates[0])
            optimizer.step()
            schedule.batch_ended()
        schedule.epoch_ended(loss)
    return rates


def their_learning_rates(name: str, optimizer: Optimizer) -> list[float]:
    """Return the learning rates of the loop in PyTorch's documentation."""
    scheduler, rates = THEIR_SCHEDULERS[name](optimizer, **SCHEDULES[name]), []
    for loss in VALIDATION_LOSSES:
        for _ in range(STEPS):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if name == "one_cycle":
                scheduler.step()
        if name == "reduce_on_plateau":
            scheduler.step(loss)
        elif name != "one_cycle":
            scheduler.step()
    return rates


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_steps_are_those_of_a_plain_loop(name: str, memory_format: torch.memory_format) -> None:
    """A fused kernel goes through memory in any layout, not through rows and columns."""
    start = torch.linspace(-1, 1, 3 * 2 * 5 * 5).reshape(3, 2, 5, 5)
    ours, theirs = (nn.Parameter(start.clone()) for _ in range(2))
    ours.data = ours.data.contiguous(memory_format=memory_format)
    optimizer = build_optimizer(optimizer_settings(name, **OPTIMIZERS[name]), [ours])
    plain = CLASSES[name]([theirs], lr=RATE, foreach=False, **OPTIMIZERS[name])
    take_steps(optimizer, ours, 4, start)
    take_steps(plain, theirs, 4, start)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(ours, start)


@pytest.fixture
def _as_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory that nothing was written to is no number."""
    for module in (learning_rates, optimizer):
        monkeypatch.setattr(module, "is_accelerator", lambda _device: True)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode(before)


@pytest.mark.usefixtures("_as_on_an_accelerator")
@pytest.mark.parametrize("dampening", [0.0, 0.5])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_first_step_that_overflows_leaves_nothing_behind(name: str, dampening: float) -> None:
    """The first steps in fp16 often overflow, until the loss scale is lower."""
    momentum = {"momentum": 0.9, "dampening": dampening} if name == "sgd" else {}
    weight, other = (nn.Parameter(torch.ones(3)) for _ in range(2))
    for parameter, factors in ((weight, (math.inf, 2.0, 2.0)), (other, (2.0, 2.0))):
        optimizer = build_optimizer(
            optimizer_settings(name, **momentum), [parameter], loss_is_scaled=True
        )
        scaler = torch.amp.GradScaler("cpu")
        for factor in factors:
            optimizer.zero_grad()
            scaler.scale((parameter * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert torch.equal(weight, other)
    assert (weight < 1).all()


@pytest.mark.usefixtures("_as_on_an_accelerator")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sgd", OPTIMIZERS["sgd"] | {"dampening": 0.0}),
        ("adam", OPTIMIZERS["adam"]),
        ("adamw", OPTIMIZERS["adamw"]),
        ("adam", {"amsgrad": True}),
        ("adam", {"fused": False}),
        ("sgd", {"foreach": True, "momentum": 0.9}),
        ("adamw", {"foreach": True}),
    ],
    ids=str,
)
def test_an_accelerators_optimizer_has_the_same_steps(name: str, settings: dict[str, Any]) -> None:
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 9)) for _ in range(2))
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    optimizer = build_optimizer(optimizer_settings(name, **settings), [ours, frozen])
    plain = CLASSES[name]([theirs], lr=RATE, **{"fused": "foreach" not in settings} | settings)
    assert list(optimizer.state) == ([ours] if optimizer.defaults["fused"] else [])
    take_steps(optimizer, ours, 3)
    take_steps(plain, theirs, 3)
    assert torch.equal(ours, theirs)
    assert optimizer.state_dict()["state"][0].keys() == plain.state_dict()["state"][0].keys()


@pytest.mark.usefixtures("_as_on_an_accelerator")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_accelerators_optimizer_reads_its_rate_where_steps_can_get_another(name: str) -> None:
    layer = nn.Linear(1, 1)  # a weight, and a bias in a group of its own
    settings = optimizer_settings(name, weight_decay_exclude="norms and biases")
    [optimizer] = build_optimizers(settings, layer)
    schedule, slots = schedule_for("constant", optimizer), DeviceLearningRates(2, 2, CPU)
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    for rates in ([(0.0, 0.25), (0.5, 0.5)], [(0.25, 0.0), (0.25, 0.125)]):
        slots.fill(rates)
        for rate, slot in zip(rates, slots.slots, strict=True):
            before = [parameter.item() for parameter in layer.parameters()]
            with schedule.applied(slot):
                optimizer.step()
            after = [parameter.item() for parameter in layer.parameters()]
            moved = [one - other for one, other in zip(before, after, strict=True)]
            # adamw's weight decay takes a hundredth of it
            assert moved == pytest.approx(rate, rel=0.02, abs=1e-6)
    with schedule.applied():
        optimizer.step()
    assert optimizer.state_dict()["param_groups"][0]["lr"] == schedule.rates[0] == RATE


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_step_has_the_learning_rate_of_pytorchs_own_scheduler(name: str) -> None:
    settings = optimizer_settings("adam")
    ours, theirs = (build_optimizer(settings, [nn.Parameter(torch.ones(1))]) for _ in range(2))
    assert our_learning_rates(name, ours) == their_learning_rates(name, theirs)


def test_one_cycle_moves_with_each_step_in_custom_code_and_over_the_epochs_given() -> None:
    def optimizer() -> Optimizer:
        return torch.optim.SGD([nn.Parameter(torch.ones(1))], RATE)

    expected = their_learning_rates("one_cycle", optimizer())
    custom = f"{OWN}one_cycle"
    assert our_learning_rates(custom, optimizer(), pct_start=0.25) == expected
    assert our_learning_rates(f"{OWN}Rounds", optimizer()) == expected
    longer = our_learning_rates("one_cycle", optimizer(), epochs=2 * PLANNED, steps_per_epoch=STEPS)
    assert longer[-1] > 2 * expected[-1]


def test_a_schedules_state_has_none_of_its_functions() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], RATE)
    state = schedule_for(f"{OWN}with_functions", optimizer).state_dict()
    assert "'_milestones': [3]" in str(state)
    assert "rule" not in str(state)


def test_an_optimizer_without_a_rate_trains_but_has_no_warm_up(trainer_of: MakeTrainer) -> None:
    settings = {"optimizer": {"name": f"{OWN}SignDescent"}, "epochs": 1}
    [(metrics, _)] = trainer_of(**settings).epochs()
    assert metrics.learning_rate == 0.0
    with pytest.raises(ConfigError, match="warmup_steps is 2, and the optimizer has no learning"):
        trainer_of(**settings, warmup_steps=2)
