"""Optimizers and schedules are PyTorch's own, with the settings that were asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import recipe
import torch
from conftest import MakeTrainer
from pydantic import TypeAdapter, ValidationError
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from photofinish.config import experiment as params
from photofinish.training import learning_rates, optimizer
from photofinish.training.learning_rates import DeviceLearningRates, LearningRates
from photofinish.training.optimizer import build_optimizers
from photofinish.training.torch_device import CPU

EPOCHS, STEPS = 6, 4
LR = 0.1
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
THEIR_SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "constant": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda _epoch: 1.0),
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(
        optimizer, T_max=EPOCHS, eta_min=0.01
    ),
    "one_cycle": lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=0.4,
        epochs=EPOCHS,
        steps_per_epoch=STEPS,
        pct_start=0.25,
        cycle_momentum=False,
    ),
    "reduce_on_plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=1, min_lr=0.04
    ),
}


def optimizer_settings(name: str, **changes: Any) -> params.Optimizer:
    adapter: TypeAdapter[params.Optimizer] = TypeAdapter(params.Optimizer)
    return adapter.validate_python({"name": name, "lr": LR, **changes})


def schedule_for(name: str, optimizer: Optimizer, **changes: Any) -> LearningRates:
    given = {"name": name, **SCHEDULES.get(name, {}), **changes}
    settings = TypeAdapter(params.Schedule).validate_python(given)
    experiment: Any = SimpleNamespace(schedule=settings, epochs=EPOCHS, warmup_steps=0)
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
    scheduler, rates = THEIR_SCHEDULERS[name](optimizer), []
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
def test_the_steps_are_those_of_pytorchs_plain_loop_over_the_parameters(
    name: str, memory_format: torch.memory_format
) -> None:
    """A fused kernel goes through memory in any layout, not through rows and columns."""
    start = torch.linspace(-1, 1, 3 * 2 * 5 * 5).reshape(3, 2, 5, 5)
    ours, theirs = (nn.Parameter(start.clone()) for _ in range(2))
    ours.data = ours.data.contiguous(memory_format=memory_format)
    optimizer = build_optimizer(optimizer_settings(name, **OPTIMIZERS[name]), [ours])
    plain = CLASSES[name]([theirs], lr=LR, foreach=False, **OPTIMIZERS[name])
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
def test_an_accelerators_optimizer_takes_the_same_steps_from_the_state_it_has_at_the_start(
    name: str, settings: dict[str, Any]
) -> None:
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 9)) for _ in range(2))
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    optimizer = build_optimizer(optimizer_settings(name, **settings), [ours, frozen])
    plain = CLASSES[name]([theirs], lr=LR, **{"fused": "foreach" not in settings} | settings)
    assert list(optimizer.state) == ([ours] if optimizer.defaults["fused"] else [])
    take_steps(optimizer, ours, 3)
    take_steps(plain, theirs, 3)
    assert torch.equal(ours, theirs)
    assert optimizer.state_dict()["state"][0].keys() == plain.state_dict()["state"][0].keys()


@pytest.mark.usefixtures("_as_on_an_accelerator")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_accelerators_optimizer_reads_its_rate_where_steps_can_be_given_another(
    name: str,
) -> None:
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
    assert optimizer.state_dict()["param_groups"][0]["lr"] == schedule.rates[0] == LR


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_step_has_the_learning_rate_of_pytorchs_own_scheduler(name: str) -> None:
    settings = optimizer_settings("adam")
    ours, theirs = (build_optimizer(settings, [nn.Parameter(torch.ones(1))]) for _ in range(2))
    assert our_learning_rates(name, ours) == their_learning_rates(name, theirs)


def test_one_cycle_moves_with_each_step_in_custom_code_and_over_the_epochs_given() -> None:
    def optimizer() -> Optimizer:
        return torch.optim.SGD([nn.Parameter(torch.ones(1))], LR)

    expected = their_learning_rates("one_cycle", optimizer())
    custom = f"{recipe.__file__}:one_cycle"
    assert our_learning_rates(custom, optimizer(), pct_start=0.25) == expected
    assert our_learning_rates(f"{recipe.__file__}:Rounds", optimizer()) == expected
    longer = our_learning_rates("one_cycle", optimizer(), epochs=2 * EPOCHS, steps_per_epoch=STEPS)
    assert longer[-1] > 2 * expected[-1]


def test_a_schedules_state_has_none_of_its_functions() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], LR)
    state = schedule_for(f"{recipe.__file__}:with_functions", optimizer).state_dict()
    assert "'_milestones': [3]" in str(state)
    assert "rule" not in str(state)


def test_an_optimizer_without_a_learning_rate_trains(
    trainer_of: MakeTrainer,
) -> None:
    settings = {"optimizer": {"name": f"{recipe.__file__}:SignDescent"}, "epochs": 1}
    [(metrics, _)] = trainer_of(**settings).epochs()
    assert metrics.learning_rate == 0.0
