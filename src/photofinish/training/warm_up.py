"""First batches of each size, for which libraries choose kernels and allocate memory."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING

from photofinish.errors import UserError
from photofinish.training.batches import Batch, Batches, first_samples
from photofinish.training.failures import is_out_of_memory
from photofinish.training.state import TrainState

if TYPE_CHECKING:
    from photofinish.training.trainer import Trainer

WARM_UP_STEPS = 3


def run_each_size(trainer: Trainer, state: TrainState) -> float:
    """Train and validate on batches as large as an epoch's first and last batch.

    Libraries choose kernels for each size. Return by how much first steps took longer.
    """
    state.network.train()
    batches = list(islice(trainer.training.train_batches(0), WARM_UP_STEPS))
    numbered = list(enumerate(batches))
    lasts = _first_and_last(trainer, trainer.training, batches[0])[1:]
    numbered += [(trainer.steps_per_epoch - 1, last) for last in lasts]
    ends = [trainer.clock.now_seconds()]
    for number, batch in numbered:
        trainer.step(state, number, batch, moves_schedule=False)
        ends.append(trainer.clock.now_seconds())
    _fit_validation(trainer, state)
    if trainer.experiment.model.compile:  # validation compiles another graph
        ends.append(trainer.clock.now_seconds())
    each = [end - began for began, end in pairwise(ends)]
    usual_seconds = min(each[: len(batches)])
    return sum(max(0.0, seconds - usual_seconds) for seconds in each)


def _fit_validation(trainer: Trainer, state: TrainState) -> None:
    """Validate on each batch size. Halve batches that memory is too small for.

    Raises UserError if the size is fixed or no larger than a training batch.
    """
    while True:
        try:
            return validate_each_size(trainer, state)
        except (MemoryError, RuntimeError) as error:
            if trainer.validation is None or not is_out_of_memory(error):
                raise
            size, settings = largest_batch(trainer.validation), trainer.experiment
            smaller = max(settings.batch_size, size // 2)
            if smaller >= size or settings.validation_batch_size or trainer.team.size > 1:
                reason = str(error).partition("\n")[0].rstrip(".") or "out of memory"
                raise UserError(
                    f"validation fails on {size} samples at once ({reason}): "
                    f"set a lower validation_batch_size in params.yaml"
                ) from error
        # The error holds the failed batch's tensors, so their memory is free only here.
        trainer.validation.resize(smaller)


def validate_each_size(trainer: Trainer, state: TrainState) -> None:
    if trainer.validation is None:
        return
    first = next(iter(trainer.validation.eval_batches()))
    trainer.validator.evaluate(state, _first_and_last(trainer, trainer.validation, first))


def _first_and_last(trainer: Trainer, batches: Batches, first: Batch) -> list[Batch]:
    """Return the first batch, and if the last is smaller, the first batch cut to its size.

    With `collate`, return the first batch only, since half of it may not be a valid batch.
    """
    loader, team = trainer.experiment.input, trainer.team
    last = batches.batch_samples(batches.steps - 1)
    if last == batches.batch_samples(0) or (loader.name == "loader" and loader.collate):
        return [first]
    return [first, first_samples(first, len(range(team.rank, last, team.size)))]


def largest_batch(batches: Batches | None) -> int:
    return batches.batch_samples(0) if batches else 0
