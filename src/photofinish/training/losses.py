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


_FOR_EACH = {"weight": "classes", "pos_weight": "labels"}
"""arguments that are a number for each of these"""


class Loss:
    """Of a batch's outputs and targets: the mean over its items, as a step takes it, or what that is made of: a sum,
    and the weight that it is divided by, which add up over batches and processes."""

    def __init__(self, settings: params.Loss | None, task: Task, device: torch.device) -> None:
        self.name = settings.name if settings else LOSSES[task][0]
        if problem := loss_problem(self.name, task):
            raise MistakeError(problem)
        self._task = task
        self._class_weights: torch.Tensor | None = None
        self._is_own = is_reference(self.name)
        if settings and self._is_own:
            self._loss = _own_loss(cast("params.OwnLoss", settings), device)
        else:
            arguments = settings.model_dump(exclude={"name"}, exclude_none=True) if settings else {}
            arguments |= {key: torch.tensor(arguments[key], device=device) for key in _FOR_EACH if key in arguments}
            self._class_weights = arguments.get("weight")
            self._loss = partial(_BUILT_IN[self.name], **arguments)
        self.has_tensors = self._is_own or any(key in arguments for key in _FOR_EACH)
        """of single precision, or may have"""

    def mean(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """A scalar."""
        total, weight = self._checked(self._loss(outputs, targets))
        return total if weight is None else total / weight

    def parts(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | int]:
        """The sum over the items, and their weight: how many they are, or, as a tensor, what the loss makes of them. Of
        no items, nothing."""
        count = len(targets)
        if self._task == "classes" and not self._is_own:
            total = self._loss(outputs, targets, reduction="sum")
            return total, count if self._class_weights is None else self._class_weights[targets].sum()
        total, weight = outputs.sum() * 0.0, torch.full((), count, dtype=torch.float32, device=outputs.device)
        if count:
            loss, own_weight = self._checked(self._loss(outputs, targets))
            total, weight = (loss * count, weight) if own_weight is None else (loss, own_weight)
        return total, weight if self._is_own else count

    def _checked(self, loss: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A mean, or a sum and its weight, in which no gradient flows: it is a number of the whole batch."""
        given = loss if isinstance(loss, tuple) else (loss,)
        if len(given) not in (1, 2) or not all(isinstance(each, torch.Tensor) and each.dim() == 0 for each in given):
            told = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {loss!r:.200}"
            raise UserError(
                f"loss {self.name} gives {told}: it must give one number, the mean over the batch, or two, a sum and "
                f"the weight that it is divided by"
            )
        return given[0], given[1].detach() if len(given) == 2 else None

    def right(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """How many items are told right; of several labels, each item's share. Values are never right."""
        if self._task == "classes":
            return (outputs.argmax(dim=1) == targets).sum()
        if self._task == "labels":
            return ((outputs > 0) == (targets > 0)).float().mean(dim=1).sum()
        return torch.zeros((), device=outputs.device)


def refuse_other_count(settings: params.Loss | None, names: tuple[str, ...]) -> None:
    """Of numbers for each class or label, where there are others of these."""
    for key, what in _FOR_EACH.items():
        numbers = getattr(settings, key, None) if settings and not is_reference(settings.name) else None
        if numbers is not None and len(numbers) != len(names):
            raise MistakeError(
                f"loss.{key} has {len(numbers)} numbers, and there are {len(names)} {what}: give one for each, in the "
                f"order of {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"
            )


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
