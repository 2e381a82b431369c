"""Samplers, which choose the rows of an epoch's training samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from photofinish.custom.reference import CodeReference
from photofinish.custom.running import as_function, run_custom_code
from photofinish.errors import ConfigError, UserError
from photofinish.models.custom import generators_seeded
from photofinish.nested import map_nested, samples_in
from photofinish.training.batches import SEEDS, derived_seed, stream

if TYPE_CHECKING:
    from photofinish.config.experiment import Sampler


def make_sampler(settings: Sampler, targets: Any, seed: int) -> Callable[[int], torch.Tensor]:
    """Return a function that draws the rows of an epoch, one row per target."""
    if settings.name == "balanced":
        weights = balanced_weights(targets)

        def balanced(epoch: int) -> torch.Tensor:
            generator = stream("sampler", seed, epoch)
            count = len(weights)
            return torch.multinomial(weights, count, replacement=True, generator=generator)

        return balanced
    choose = as_function(CodeReference.of(settings.name).load(), settings.arguments)

    def custom(epoch: int) -> torch.Tensor:
        drawn = derived_seed("sampler", seed, epoch) % SEEDS
        # Ranks must draw alike, also in a function that ignores its seed.
        with generators_seeded(drawn), run_custom_code(f"sampler {settings.name} fails"):
            rows = choose(map_nested(torch.clone, targets), drawn)
            rows = torch.as_tensor(rows, dtype=torch.int64)
        count = samples_in(targets)
        if rows.shape != (count,) or rows.min() < 0 or rows.max() >= count:
            raise UserError(
                f"sampler {settings.name} must return {count} rows, as many as there are "
                f"training samples, each from 0 to {count - 1}"
            )
        return rows

    return custom


def balanced_weights(targets: Any) -> torch.Tensor:
    """Return each sample's weight, 1 divided by the number of samples in its class.

    With several labels, it is the mean over the sample's labels. To have none counts as a label.
    """
    refused = ConfigError("sampler: balanced needs targets that are classes or labels")
    if isinstance(targets, tuple | dict):
        raise refused
    if targets.dtype == torch.int64 and targets.dim() == 1:
        return (1 / torch.bincount(targets).double())[targets]
    if targets.dim() != 2 or not torch.isin(targets, torch.tensor([0.0, 1.0])).all():
        raise refused
    labels = torch.cat([targets, targets.sum(dim=1, keepdim=True) == 0], dim=1).double()
    return (labels / labels.sum(dim=0).clamp(min=1)).sum(dim=1) / labels.sum(dim=1)
