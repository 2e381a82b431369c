"""What a training makes smaller: PyTorch's loss, or one's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional

from photofinish.errors import MistakeError, UserError
from photofinish.own_code import Reference, is_reference, users_code
from photofinish.params.tasks import LOSSES, loss_problem

if TYPE_CHECKING:
    from photofinish.data.images import Task
    from photofinish.params import experiment as params

_BUILT_IN: dict[str, Callable[..., Any]] = {
    "cross_entropy": functional.cross_entropy,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "bce_with_logits": functional.binary_cross_entropy_with_logits,
}


class Loss:
    """Of a batch's outputs and targets: the mean over its items, as a step takes it, or the sum."""

    def __init__(self, settings: params.Loss | None, task: Task, device: torch.device) -> None:
        self._name = settings.name if settings else LOSSES[task][0]
        if problem := loss_problem(self._name, task):
            raise MistakeError(problem)
        self._task = task
        if settings and is_reference(self._name):
            self._loss, self.is_own = _own_loss(cast("params.OwnLoss", settings), device), True
        else:
            arguments = settings.model_dump(exclude={"name"}) if settings else {}
            self._loss, self.is_own = partial(_BUILT_IN[self._name], **arguments), False

    def mean(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """A scalar."""
        loss: torch.Tensor = self._loss(outputs, targets)
        if not isinstance(loss, torch.Tensor) or loss.dim():
            told = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise UserError(f"loss {self._name} gives {told}: it must give one number, the mean over the batch")
        return loss

    def total(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The sum over the items: of none, nothing."""
        if self._task == "classes" and not self.is_own:
            return self._loss(outputs, targets, reduction="sum")  # type: ignore[no-any-return]
        return self.mean(outputs, targets) * len(targets) if len(targets) else outputs.sum() * 0.0

    def right(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """How many items are told right; of several labels, each item's share. Values are never right."""
        if self._task == "classes":
            return (outputs.argmax(dim=1) == targets).sum()
        if self._task == "labels":
            return ((outputs > 0) == (targets > 0)).float().mean(dim=1).sum()
        return torch.zeros((), device=outputs.device)


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
