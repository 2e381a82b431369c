"""A change of one's own to each training item, anew each epoch: its draws follow from seed, epoch and item alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from photofinish.errors import UserError
from photofinish.models.own import generators_seeded
from photofinish.own_code import Reference, users_code
from photofinish.training.batches import derived_seed

if TYPE_CHECKING:
    from photofinish.params.experiment import OwnTransform

_MOST_SEED = 2**32
"""that NumPy takes"""


class Transform:
    """The user's function of an item, or an instance of their class."""

    def __init__(self, settings: OwnTransform, seed: int) -> None:
        self._name, self._seed = settings.name, seed
        found = Reference.of(settings.name).load()
        self._own: Callable[..., Any] = partial(found, **settings.arguments)
        if isinstance(found, type):
            with users_code(f"transform {settings.name} can't be made"):
                self._own = self._own()

    def __call__(self, item: torch.Tensor, epoch: int, row: int) -> torch.Tensor:
        """The item as it is packed, changed; its shape and type stay."""
        seed = derived_seed("transform", self._seed, epoch, row) % _MOST_SEED
        with generators_seeded(seed), users_code(f"transform {self._name} fails on training item {row}"):
            changed = self._own(item.clone())
        if not isinstance(changed, torch.Tensor) or (changed.shape, changed.dtype) != (item.shape, item.dtype):
            raise UserError(
                f"transform {self._name} makes {_told(changed)} of {_told(item)}: the items that it doesn't see, for "
                f"validation, stay as they are, so shape and type must"
            )
        return changed


def _told(item: Any) -> str:
    if not isinstance(item, torch.Tensor):
        return f"a {type(item).__name__}"
    return f"{str(item.dtype).removeprefix('torch.')} of shape {tuple(item.shape)}"
