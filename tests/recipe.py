"""Custom code of the recipes that tests train with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, Optimizer, lr_scheduler

Batch = tuple[torch.Tensor, torch.Tensor]


def two_rates(network: nn.Module, lr: float) -> Optimizer:
    """Freeze the first layer, and train the second with a tenth of the last one's rate."""
    first, middle, last = (layer for layer in network if isinstance(layer, nn.Linear))  # type: ignore[union-attr]
    first.requires_grad_(False)
    groups = [{"params": middle.parameters(), "lr": lr / 10}, {"params": last.parameters()}]
    return SGD(groups, lr=lr, momentum=0.9)


def rising_and_falling(optimizer: Optimizer, total_steps: int) -> lr_scheduler.LRScheduler:
    half = total_steps // 2
    rising = lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=half)
    falling = lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=total_steps - half)
    return lr_scheduler.SequentialLR(optimizer, [rising, falling], [half])


class SignDescent(Optimizer):
    """An optimizer without a learning rate."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, _closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad.sign() * 1e-3)


def one_cycle(
    optimizer: Optimizer, epochs: int, steps_per_epoch: int, **more: float
) -> lr_scheduler.LRScheduler:
    sizes = {"epochs": epochs, "steps_per_epoch": steps_per_epoch, "cycle_momentum": False}
    return lr_scheduler.OneCycleLR(optimizer, 0.4, **sizes, **more)  # type: ignore[arg-type]


class Rounds(lr_scheduler.OneCycleLR):
    def __init__(self, optimizer: Optimizer, epochs: int, steps_per_epoch: int) -> None:
        sizes = {"epochs": epochs, "steps_per_epoch": steps_per_epoch, "cycle_momentum": False}
        super().__init__(optimizer, 0.4, pct_start=0.25, **sizes)  # type: ignore[arg-type]


def with_functions(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    parts: list[Any] = [lr_scheduler.ConstantLR(optimizer) for _ in range(2)]
    whole: Any = lr_scheduler.SequentialLR(optimizer, parts, [3])
    for each in (whole, *parts):
        each.rule, each.rules = abs, [partial(pow, 2), lambda epoch: epoch]
    return whole


def then_away(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    """From the fourth epoch on, climb instead of descending."""
    return lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0 if epoch < 3 else -0.5)


def backwards(targets: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.arange(len(targets)).flip(0) if seed else torch.arange(len(targets))


def shuffled(targets: torch.Tensor, _seed: int) -> torch.Tensor:
    return torch.randperm(len(targets))


def noisy(images: torch.Tensor, targets: torch.Tensor) -> Batch:
    return images + 0.1 * torch.randn(images.shape), targets


def doubling(images: torch.Tensor, targets: torch.Tensor) -> Batch:
    return torch.cat([images, images.flip(-1)]), torch.cat([targets, targets])


def both(outputs: Batch, targets: Batch) -> torch.Tensor:
    return cross_entropy(outputs[0], targets[0]) + cross_entropy(outputs[1], targets[1])


def fading(outputs: torch.Tensor, _targets: torch.Tensor, calls: list[int] = []) -> torch.Tensor:  # noqa: B006
    """Become smaller with each call."""
    calls.append(1)
    return outputs.sum() / len(calls)


def margin_step(network: nn.Module, batch: Batch, smoothing: float = 0.1) -> torch.Tensor:
    images, targets = batch
    return cross_entropy(network(images), targets, label_smoothing=smoothing)


class AnnealedStep:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, network: nn.Module, batch: Batch) -> torch.Tensor:
        self.calls += 1
        return min(1.0, self.calls / 100) * margin_step(network, batch)


def mixing_step(network: nn.Module, batch: Batch) -> torch.Tensor:
    images, targets = batch
    share = float(np.random.beta(0.4, 0.4))  # as most do
    return cross_entropy(network(share * images + (1 - share) * images.flip(0)), targets)


class Gan(nn.Module):
    """A generator and a discriminator of images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64))
        self.discriminator = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def loss(self, images: torch.Tensor, number: int) -> torch.Tensor:
        """Return the discriminator's loss (0) or the generator's (1)."""
        made = self.generator(torch.randn(len(images), 4).to(images))
        softplus = nn.functional.softplus
        if number:
            return softplus(-self.discriminator(made)).mean()
        real = softplus(-self.discriminator(images.flatten(1))).mean()
        return real + softplus(self.discriminator(made.detach())).mean()


def two_optimizers(network: Gan, lr: float) -> list[Optimizer]:
    return [Adam(network.discriminator.parameters(), lr), Adam(network.generator.parameters(), lr)]


def gan_step(network: Gan, batch: Batch, optimizers: Sequence[Optimizer]) -> torch.Tensor:
    for number, optimizer in enumerate(optimizers):
        optimizer.zero_grad()
        loss = network.loss(batch[0], number)
        loss.backward()
        optimizer.step()
    return loss


def gan_loss(network: Gan, batch: Batch) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return network.loss(batch[0], 0) + network.loss(batch[0], 1)


class FailsAtStep(nn.Module):
    """Network that returns NaN at one training step, from 1, or in validation (0)."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.layer, self.step, self.steps = nn.Linear(64, 3), step, 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        fails = self.steps == self.step if self.training else self.step == 0
        outputs: torch.Tensor = self.layer(images.flatten(1))
        return outputs * float("nan") if fails else outputs
