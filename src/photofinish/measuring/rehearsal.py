"""A trainer's steps for nothing: what is done before and after a training to measure it, and leaves it as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import torch

from photofinish.errors import UserError
from photofinish.models.own import same_bits
from photofinish.training.batches import Batch, Batches, seed_epoch
from photofinish.training.optimisation import has_another_first_step
from photofinish.training.steps import GraphedSteps, Steps, first_failure, hindrance, most_at_once, recorder_of
from photofinish.training.torch_device import CPU, is_accelerator
from photofinish.training.trainer import Trainer, TrainState

WARM_UP_STEPS = 3
WARM_UP_SECONDS = 0.2
"""of an accelerator, at least"""
TRIED_STEPS = 3
"""at once, before it is believed that recorded steps give the same bits"""


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
    trainer: Trainer, *other_images: int, layout: torch.memory_format | None = None, at_once: int = 1
) -> Iterator[list[Callable[[], object]]]:
    """So many training steps, as often as they are called, handed out as the training's own are: some on the first
    batch, then some for each number of other images, which are some of that batch or some of them several times. All
    train the same network."""
    images, labels = next(iter(trainer.training.shuffled(0)))
    batches = [(images, labels)]
    for count in other_images:
        rows = torch.arange(count, device=images.device) % len(images)
        batches.append((images.index_select(0, rows), labels.index_select(0, rows.to(labels.device))))
    with rehearsal(trainer, layout) as state:
        yield [trainer.steps.repeated(trainer, state, batch, at_once) for batch in batches]


def warm_up(trainer: Trainer) -> float:
    """Everything that happens only once (allocation, compilation, recording), so that it isn't timed as training; the
    seconds it took. The most memory that was taken is counted from here on, less what was taken for nothing."""
    clock = trainer.clock
    started_seconds = clock.now_seconds()
    with rehearsal(trainer) as state:
        step_on_every_size(trainer, state)
        while not is_awake(trainer, started_seconds):
            step_on_every_size(trainer, state)
    trainer.steps = chosen_steps(trainer)
    trainer.team.forget_peak_memory()
    if isinstance(trainer.steps, GraphedSteps):
        try:
            _begin(trainer, trainer.steps)
        except RuntimeError as error:
            trainer.steps.forget()
            trainer.team.forget_peak_memory()
            trainer.steps = _one_by_one(trainer, f"recording them failed ({first_failure(error)})")
    trainer.training.prepare(trainer.progress.epochs_done)  # as of every later epoch, not within its time
    return clock.now_seconds() - started_seconds


def is_awake(trainer: Trainer, started_seconds: float) -> bool:
    """Return True if the device has worked for long enough to run at its full clock, as the leader's clock says."""
    lasts_seconds = WARM_UP_SECONDS if is_accelerator(trainer.device) else 0.0
    is_over: bool = trainer.team.from_leader(trainer.clock.now_seconds() - started_seconds >= lasts_seconds)
    return is_over


def _begin(trainer: Trainer, steps: GraphedSteps) -> None:
    """Record the steps, then run each kind of step and of validation batch that an epoch has, with nothing learned.

    A graph keeps its memory to itself, so an epoch's eager steps and its validation need further memory. Here it is
    allocated before the first epoch's time counts, or found to be missing while steps may still be taken one by one.
    """
    steps.begin(trainer, trainer.state)
    with put_back(trainer.state):
        steps.run_each_kind(trainer, trainer.state)
        _validate_every_size(trainer, trainer.state)


@contextmanager
def put_back(state: TrainState) -> Iterator[None]:
    """Restore weights, buffers, optimizer and scaler at the end, each in its place, where graphs read them."""
    kept = [each for values in state.optimizer.state.values() for each in values.values()]
    tensors = [*state.network.parameters(), *state.network.buffers(), *kept]
    before = [each.detach().to(CPU, copy=True) for each in tensors]
    scale = state.scaler.state_dict()
    try:
        yield
    finally:
        state.optimizer.zero_grad()
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
        state.scaler.load_state_dict(scale)


def step_on_every_size(trainer: Trainer, state: TrainState) -> None:
    """Steps and validation with batches as large as the first one of an epoch, and as the last one, which may be
    smaller: each size has kernels and plans of its own."""
    state.network.train()
    batches = list(islice(trainer.training.shuffled(0), WARM_UP_STEPS))
    for number, batch in enumerate(batches):
        trainer.step(state, number, batch)
    for last in _as_last(trainer, trainer.training, batches[0]):
        trainer.step(state, trainer.steps_per_epoch - 1, last)
    _validate_every_size(trainer, state)


def _validate_every_size(trainer: Trainer, state: TrainState) -> None:
    first = next(iter(trainer.validation.in_order()))
    trainer.evaluate(state, [first, *_as_last(trainer, trainer.validation, first)])


def _as_last(trainer: Trainer, batches: Batches, first: Batch) -> list[Batch]:
    """Of the first batch as many images as this process has of the last one, where that is smaller than the others."""
    last = batches.image_count % batches.batch_size if batches.image_count > batches.batch_size else 0
    own = len(range(trainer.team.rank, last, trainer.team.size))
    return [(first[0][:own], first[1][:own])] if last else []


def chosen_steps(trainer: Trainer) -> Steps:
    """As `steps` in params.yaml says; `auto` records them where that is shown to change no bit."""
    if trainer.experiment.steps == "eager":
        return Steps("params.yaml says so")
    recorder = recorder_of(trainer.device)
    if recorder is None:
        return Steps(f"steps are recorded on CUDA and ROCm alone, not on {trainer.device.type}")
    if why_not := hindrance(trainer):
        return _one_by_one(trainer, why_not)
    at_once = most_at_once(trainer)
    # Of a training whose first step is by itself, neither way takes more at once than the other then.
    tried_at_once = 1 if has_another_first_step(trainer.experiment.optimizer) else min(at_once, TRIED_STEPS)
    whole = trainer.training.image_count // trainer.training.batch_size
    tried = min(whole, TRIED_STEPS) // tried_at_once * tried_at_once
    batch = next(iter(trainer.training.shuffled(0)))
    try:
        with rehearsal(trainer) as state, recorder.beside():
            one_by_one = _bits(trainer, state, Steps(), tried, batch)
        with rehearsal(trainer) as state:
            recorded = _bits(trainer, state, GraphedSteps(recorder, tried_at_once), tried, batch)
    except RuntimeError as error:
        return _one_by_one(trainer, f"recording some failed ({first_failure(error)})")
    if not trainer.experiment.deterministic:
        return GraphedSteps(recorder, at_once, "params.yaml says so; bits weren't compared, as deterministic is false")
    if not all(map(same_bits, one_by_one, recorded)):
        return _one_by_one(trainer, "recorded, some gave other bits")
    return GraphedSteps(recorder, at_once, "some were tried, and gave the same bits one by one")


def _one_by_one(trainer: Trainer, why: str) -> Steps:
    if trainer.experiment.steps == "graph":
        raise UserError(
            f"steps is graph in params.yaml, which can't be: {why}. `steps: auto` takes them one by one then"
        )
    return Steps(why)


def _bits(trainer: Trainer, state: TrainState, steps: Steps, count: int, batch: Batch) -> list[torch.Tensor]:
    """All that so many steps and one by itself give and leave, then those of a second epoch, if there is one."""
    steps.begin(trainer, state)
    losses: list[torch.Tensor] = []
    for epoch in range(min(2, trainer.experiment.epochs)):
        seed_epoch(trainer.experiment.seed, epoch)
        losses += islice(steps.epoch(trainer, state, epoch), count // steps.at_once)
        losses.append(trainer.step(state, 0, batch))
    found = [torch.cat([each.reshape(-1) for each in losses]), torch.tensor(state.scaler.get_scale())]
    found += state.network.state_dict().values()
    return found + [value for values in state.optimizer.state.values() for value in values.values()]


def forget_optimizer(trainer: Trainer) -> None:
    """What only further training would need: the memory is for what is measured after it."""
    trainer.steps.forget()
    trainer.state.optimizer.zero_grad()
    trainer.state.optimizer.state.clear()
