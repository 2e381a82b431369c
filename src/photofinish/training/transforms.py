"""A change of one's own to each training item, anew each epoch: its draws follow from seed, epoch and item alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from photofinish.errors import UserError
from photofinish.own_code import Reference, users_code
from photofinish.training.batches import derived_seed

if TYPE_CHECKING:
    from photofinish.params.experiment import OwnTransform

_MOST_SEED = 2**32
"""that NumPy takes"""


class Transform:
    """The user's function of an item, or an instance of their class."""

    def __init__(self, settings: OwnTransform, seed: int) -> None:
        self._name, self._seed, self._generator = settings.name, seed, np.random.MT19937()
        found = Reference.of(settings.name).load()
        self._own: Callable[..., Any] = partial(found, **settings.arguments)
        if isinstance(found, type):
            with users_code(f"transform {settings.name} can't be made"):
                self._own = self._own()

    def __call__(self, item: torch.Tensor, epoch: int, row: int) -> torch.Tensor:
        """The item as it is packed, changed; its shape and type stay."""
        seed = derived_seed("transform", self._seed, epoch, row) % _MOST_SEED
        with self._seeded(seed), users_code(f"transform {self._name} fails on training item {row}"):
            changed = self._own(item.clone())
        if not isinstance(changed, torch.Tensor) or (changed.shape, changed.dtype) != (item.shape, item.dtype):
            raise UserError(
                f"transform {self._name} makes {_told(changed)} of {_told(item)}: the items that it doesn't see, for "
                f"validation, stay as they are, so shape and type must"
            )
        return changed

    @contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """Python's, NumPy's and torch's generators of the CPU, as they were before once it is over.

        By hand, for an item takes little time itself: torch.manual_seed would take ten times as long as all of this,
        and seed the GPU that the network draws from; NumPy takes long to copy its generator's state.
        """
        python, torchs, numpys = random.getstate(), torch.default_generator.get_state(), get_bit_generator()
        set_bit_generator(self._generator)
        random.seed(seed)
        np.random.seed(seed)
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            set_bit_generator(numpys)
            torch.default_generator.set_state(torchs)


def _told(item: Any) -> str:
    if not isinstance(item, torch.Tensor):
        return f"a {type(item).__name__}"
    return f"{str(item.dtype).removeprefix('torch.')} of shape {tuple(item.shape)}"
