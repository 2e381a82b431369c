"""The same training again, from the same start, for its times alone: what it learns must be the same bit for bit."""

from __future__ import annotations

from collections.abc import Callable

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes
from photofinish.results.epochs import EpochMetrics, EpochTiming
from photofinish.results.learned import weights_of
from photofinish.training.trainer import Trainer


def repeat_training(
    first: Trainer, again: Trainer, name: str, number: int, on_epoch: Callable[[int], None]
) -> tuple[EpochTiming, ...]:
    """Train `again`, which has not begun, and hold it against `first`, which is done; the times of its epochs.

    `on_epoch` is told the epoch, from 1.
    """
    again.warm_up()
    done = again.train(lambda metrics, _timing: on_epoch(metrics.epoch))
    if difference := _difference(first, done.metrics, again):
        raise UserError(
            f"{name}, repeat {number}: it did not learn the same as the first time, from the same start: {difference}. "
            f"Times of different work can't be put together. Something on this device doesn't repeat bit for bit, "
            f"which is worth telling PyTorch's or photofinish's makers; repeats: 1 in params.yaml does without"
        )
    return tuple(done.timings)


def _difference(first: Trainer, metrics: list[EpochMetrics], again: Trainer) -> str | None:
    for before, now in zip(first.progress.metrics, metrics, strict=True):
        if before != now:
            return f"from epoch {now.epoch} on (training loss {now.training_loss!r}, was {before.training_loss!r})"
    same = sha256_of_bytes(weights_of(first.network)) == sha256_of_bytes(weights_of(again.network))
    return None if same else "the weights differ at the end, though no epoch's figures do"
