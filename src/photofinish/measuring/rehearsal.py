"""A trainer's steps for nothing: what is done before and after a training to measure it, and leaves it as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice

import torch

from photofinish.training.trainer import Trainer, TrainState

WARM_UP_STEPS = 3


@contextmanager
def rehearsal(trainer: Trainer, layout: torch.memory_format | None = None) -> Iterator[TrainState]:
    """What may be trained for nothing, in the training's own order of memory or another: a copy of the network, or with
    several processes or a compiled network that itself, which is put back then.

    DDP settles after its first step in which order it adds gradients up, for as long as it lives. A resumed run
    must add in the same order as one that was never stopped, so both have that step behind them.
    """
    layout = layout or trainer.state.memory_format
    if trainer.team.size == 1 and not trainer.experiment.model.compile:  # a copy would be compiled for itself
        network = copy.deepcopy(trainer.network).to(memory_format=layout)
        yield trainer.fresh_state(trainer.team.parallel(network.train()), layout)
        return
    before = copy.deepcopy(trainer.network.state_dict())
    yield trainer.fresh_state(trainer.state.network.train(), layout)
    trainer.network.load_state_dict(before)
    trainer.network.zero_grad()


@contextmanager
def rehearsed_steps(
    trainer: Trainer, *other_images: int, layout: torch.memory_format | None = None
) -> Iterator[list[Callable[[], torch.Tensor]]]:
    """A training step, as often as it is called: one on the first batch, then one for each number of other images,
    which are some of that batch or some of them several times. All train the same network."""
    images, labels = next(iter(trainer.training.shuffled(0)))
    batches = [(images, labels)]
    for count in other_images:
        rows = torch.arange(count, device=images.device) % len(images)
        batches.append((images.index_select(0, rows), labels.index_select(0, rows.to(labels.device))))
    with rehearsal(trainer, layout) as state:
        yield [partial(trainer.step, state, 0, batch) for batch in batches]


def warm_up(trainer: Trainer) -> float:
    """A few steps for nothing, so that what happens only once (allocation, compilation) isn't timed as training; the
    seconds they took."""
    started_seconds = trainer.clock.now_seconds()
    with rehearsal(trainer) as state:
        for number, batch in enumerate(islice(trainer.training.shuffled(0), WARM_UP_STEPS)):
            trainer.step(state, number, batch)
        if not trainer.experiment.model.compile:
            trainer.evaluate(state, most_batches=1)
        else:  # for each size of a batch anew: the last ones are smaller
            last = trainer.training.image_count % trainer.training.batch_size
            if last:
                own = len(range(trainer.team.rank, last, trainer.team.size))
                trainer.step(state, trainer.steps_per_epoch - 1, (batch[0][:own], batch[1][:own]))
            trainer.evaluate(state)
    return trainer.clock.now_seconds() - started_seconds


def forget_optimizer(trainer: Trainer) -> None:
    """What only further training would need: the memory is for what is measured after it."""
    trainer.state.optimizer.zero_grad()
    trainer.state.optimizer.state.clear()
