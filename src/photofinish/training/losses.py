"""What a training makes smaller: PyTorch's loss, or one's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from photofinish.errors import UserError
from photofinish.own_code import Reference, is_reference, users_code

if TYPE_CHECKING:
    from photofinish.params import experiment as params


class Loss:
    """Of a batch's outputs and labels: the mean over its images, as a step takes it, or the sum."""

    def __init__(self, settings: params.Loss, device: torch.device) -> None:
        self._name = settings.name
        self._own: Callable[..., Any] | None = None
        if is_reference(settings.name):
            self._own = _own_loss(cast("params.OwnLoss", settings), device)
        else:
            self._label_smoothing = cast("params.CrossEntropy", settings).label_smoothing

    def mean(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """A scalar."""
        if self._own is None:
            return cross_entropy(outputs, labels, label_smoothing=self._label_smoothing)
        loss = self._own(outputs, labels)
        if not isinstance(loss, torch.Tensor) or loss.dim():
            told = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise UserError(f"loss {self._name} gives {told}: it must give one number, the mean over the batch")
        return loss

    def total(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The sum over the images: of none, nothing."""
        if self._own is None:
            return cross_entropy(outputs, labels, reduction="sum", label_smoothing=self._label_smoothing)
        return self.mean(outputs, labels) * len(labels) if len(labels) else outputs.sum() * 0.0


def _own_loss(settings: params.OwnLoss, device: torch.device) -> Callable[..., Any]:
    """A class is made with its arguments, a function called with them too."""
    found = Reference.of(settings.name).load()
    if not isinstance(found, type):
        return partial(found, **settings.arguments)
    with users_code(f"loss {settings.name} can't be made"):
        loss = found(**settings.arguments)
        if not isinstance(loss, nn.Module):
            return loss  # type: ignore[no-any-return]
        loss = loss.to(device)
    if any(True for _ in loss.parameters()):
        raise UserError(f"loss {settings.name} has parameters, which no optimizer would see: put them into the network")
    return loss
