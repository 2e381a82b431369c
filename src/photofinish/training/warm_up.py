"""First batches of each size, for which libraries choose kernels and allocate memory.

Then steps are captured.
"""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

from photofinish.training.batches import Batch, Batches, first_samples
from photofinish.training.failures import is_out_of_memory
from photofinish.training.graphs import GraphedSteps, fall_back, first_failure
from photofinish.training.state import TrainState, put_back

if TYPE_CHECKING:
    from photofinish.training.trainer import Trainer

WARM_UP_STEPS = 3


class WarmUp(NamedTuple):
    seconds: float
    first_seconds: float
    """First steps and compilation: a training without a warm-up takes this time, too."""


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
    """Validate each batch size. If memory is too small, take the training's."""
    settings = trainer.experiment
    try:
        validate_each_size(trainer, state)
    except (MemoryError, RuntimeError) as error:
        may_shrink = not settings.validation_batch_size and trainer.team.size == 1
        is_larger = largest_batch(trainer.validation) > settings.batch_size
        if not (trainer.validation and may_shrink and is_larger and is_out_of_memory(error)):
            raise
    else:
        return
    # The error holds the failed batch's tensors, so their memory is free only here.
    trainer.validation.resize(settings.batch_size)
    validate_each_size(trainer, state)


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


def capture_steps(trainer: Trainer, steps: GraphedSteps) -> None:
    """Capture the steps. Then replay each graph and validate once, and undo the changes.

    Graphs share no memory with other work, so an epoch's batches and validation need more.
    Allocate this memory now: if it is not enough, eager steps are still possible.
    """
    try:
        steps.capture_epoch(trainer.state, trainer.training)
        with put_back(trainer.state):
            steps.run_each_kind(trainer.state)
            validate_each_size(trainer, trainer.state)
            # Validation on other batches stays eager.
            if trainer.validation and trainer.experiment.input.name == "resident":
                why = trainer.validator.capture(trainer.state, trainer.validation, steps)
                if why:
                    steps.why += f"; validation is launched one by one: {why}"
                    # A failed capture replaces the generator from which the steps' graphs draw.
                    steps.release()
                    steps.capture_epoch(trainer.state, trainer.training)
    except RuntimeError as error:
        trainer.release()
        trainer.team.forget_peak_memory()
        why = f"capturing them failed ({first_failure(error)})"
        trainer.steps = fall_back(trainer, why)
