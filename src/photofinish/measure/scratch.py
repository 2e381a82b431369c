"""Steps on scratch copies, to measure a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from photofinish.nested import samples_in
from photofinish.training.batches import map_batch
from photofinish.training.trainer import Trainer


@contextmanager
def scratch_steps(
    trainer: Trainer,
    *other_images: int,
    layout: torch.memory_format | None = None,
    at_once: int = 1,
) -> Iterator[list[Callable[[], object]]]:
    """Yield functions that each take `at_once` steps, captured if the training's steps are.

    The first function steps on the first batch, the others on batches of other sizes, made of its
    images. All functions train one scratch copy.
    """
    first = trainer.training.first()
    batches = [first]
    for count in other_images:
        rows = torch.arange(count) % samples_in(first[1])
        batches.append(map_batch(partial(_selected, rows), first))
    with trainer.scratch_copy(layout) as state:
        yield [trainer.steps.repeat(state, batch, at_once) for batch in batches]


def _selected(rows: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.index_select(0, rows.to(tensor.device))
