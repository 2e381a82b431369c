"""Steps on scratch copies, which warm a training up or measure it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice

import torch

from photofinish.errors import UserError
from photofinish.models.custom import same_bits
from photofinish.nested import samples_in
from photofinish.training.batches import Batch, Batches, first_samples, map_batch, seed_epoch
from photofinish.training.state import TrainState
from photofinish.training.steps import (
    GraphedSteps,
    Steps,
    first_failure,
    recorder_of,
    steps_per_graph,
    why_not_capturable,
)
from photofinish.training.torch_device import CPU, free_memory_bytes, is_accelerator
from photofinish.training.trainer import Trainer

WARM_UP_STEPS = 3
WARM_UP_SECONDS = 0.2
"""Time in which an idle accelerator reaches its full clock."""
TRIED_STEPS = 3
"""Steps in the graph whose bits are compared with those of eager steps."""
_LARGE_SHARE = 0.1
"""Share of the free memory beyond which no network is copied."""


@contextmanager
def scratch_copy(
    trainer: Trainer, layout: torch.memory_format | None = None
) -> Iterator[TrainState]:
    """Yield a fresh state to train and throw away: of a copy of the network, in any memory format.

    A network that is large for its device is trained itself and put back, as a copy and its
    optimizer might not fit beside it.

    With several processes or a compiled network it is the network itself, restored at the end. DDP
    fixes the order in which it adds gradients up in its first step. A resumed run must add in the
    same order as one that was never stopped, so both take that step here.
    """
    network, layout = trainer.network, layout or trainer.state.memory_format
    if is_large(trainer) and layout is trainer.state.memory_format:
        with put_back(trainer.state):
            network.train()
            yield trainer.state._replace(schedule=trainer.fresh_schedule(trainer.state.optimizer))
        return
    # A copy would be compiled again.
    if trainer.team.size == 1 and not trainer.experiment.model.compile:
        scratch = copy.deepcopy(network).to(memory_format=layout)
        yield trainer.fresh_state(trainer.team.parallel(scratch.train()), layout)
        return
    before = copy.deepcopy(network.state_dict())
    yield trainer.fresh_state(trainer.state.network.train(), layout)
    network.load_state_dict(before)
    network.zero_grad()


@contextmanager
def scratch_steps(
    trainer: Trainer,
    *other_images: int,
    layout: torch.memory_format | None = None,
    at_once: int = 1,
) -> Iterator[list[Callable[[], object]]]:
    """Yield functions that each take `at_once` steps, captured if the training's are.

    The first takes them on the first batch, the others on batches of other sizes, made of its
    images. All train the same scratch copy.
    """
    first = next(iter(trainer.training.train_batches(0)))
    batches = [first]
    for count in other_images:
        rows = torch.arange(count) % samples_in(first[1])
        batches.append(map_batch(partial(_selected, rows), first))
    with scratch_copy(trainer, layout) as state:
        yield [trainer.steps.repeat(trainer, state, batch, at_once) for batch in batches]


def _selected(rows: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.index_select(0, rows.to(tensor.device))


def warm_up(trainer: Trainer) -> float:
    """Do all that happens only once (allocation, compilation, capture) before the first epoch.

    Returns the seconds it took. The training's peak memory is counted from here on.
    """
    clock = trainer.clock
    started_seconds = clock.now_seconds()
    with scratch_copy(trainer) as state:
        _step_on_every_size(trainer, state)
        while not is_awake(trainer, started_seconds):
            _step_on_every_size(trainer, state)
    trainer.steps = chosen_steps(trainer)
    trainer.team.forget_peak_memory()
    if isinstance(trainer.steps, GraphedSteps):
        try:
            _capture(trainer, trainer.steps)
        except RuntimeError as error:
            trainer.steps.release()
            trainer.team.forget_peak_memory()
            trainer.steps = _one_by_one(trainer, f"recording them failed ({first_failure(error)})")
    return clock.now_seconds() - started_seconds


def is_awake(trainer: Trainer, started_seconds: float) -> bool:
    """Return True if the device has worked for long enough to run at its full clock.

    Rank 0's clock decides.
    """
    needed_seconds = WARM_UP_SECONDS if is_accelerator(trainer.device) else 0.0
    passed_seconds = trainer.clock.now_seconds() - started_seconds
    return bool(trainer.team.broadcast_object(passed_seconds >= needed_seconds))


def _capture(trainer: Trainer, steps: GraphedSteps) -> None:
    """Capture the steps, then run each kind of step and validation batch of an epoch, and undo it.

    A graph keeps its memory to itself, so an epoch's eager steps and validation need further
    memory. It is allocated before the first epoch is timed, or is missing while the
    training can still fall back to eager steps.
    """
    steps.capture(trainer, trainer.state)
    with put_back(trainer.state):
        steps.run_each_kind(trainer, trainer.state)
        _validate_every_size(trainer, trainer.state)


def is_large(trainer: Trainer) -> bool:
    """Return True if the weights take more than a tenth of the memory that the device has free."""
    if trainer.team.size > 1 or trainer.experiment.model.compile:
        return False
    free_bytes = free_memory_bytes(trainer.device)
    weights_bytes = sum(parameter.nbytes for parameter in trainer.network.parameters())
    return free_bytes is not None and weights_bytes > _LARGE_SHARE * free_bytes


@contextmanager
def put_back(state: TrainState) -> Iterator[None]:
    """Restore weights, buffers, optimizers and scaler in place, because graphs read them there."""
    tensors = [*state.network.parameters(), *state.network.buffers()]
    if state.average:
        tensors += state.average.network.parameters()
    settings = [(group, {**group}) for each in state.optimizers for group in each.param_groups]
    values = [(own, {**own}) for each in state.optimizers for own in each.state.values()]
    for _own, kept in values:
        tensors += [value for value in kept.values() if isinstance(value, torch.Tensor)]
    before = [tensor.detach().to(CPU, copy=True) for tensor in tensors]
    had_state = [set(optimizer.state) for optimizer in state.optimizers]
    scale = state.scaler.state_dict()
    try:
        yield
    finally:
        for optimizer, had in zip(state.optimizers, had_state, strict=True):
            optimizer.zero_grad()
            for parameter in optimizer.state.keys() - had:
                del optimizer.state[parameter]
        for changed, kept in [*settings, *values]:
            changed.clear()
            changed.update(kept)
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
        state.scaler.load_state_dict(scale)


def _step_on_every_size(trainer: Trainer, state: TrainState) -> None:
    """Train and validate with batches as large as an epoch's first and last: each has kernels."""
    state.network.train()
    batches = list(islice(trainer.training.train_batches(0), WARM_UP_STEPS))
    for number, batch in enumerate(batches):
        trainer.step(state, number, batch)
    for last in _as_last(trainer, trainer.training, batches[0]):
        trainer.step(state, trainer.steps_per_epoch - 1, last)
    _validate_every_size(trainer, state)


def _validate_every_size(trainer: Trainer, state: TrainState) -> None:
    first = next(iter(trainer.validation.eval_batches()))
    trainer.evaluate(state, [first, *_as_last(trainer, trainer.validation, first)])


def _as_last(trainer: Trainer, batches: Batches, first: Batch) -> list[Batch]:
    """Return the first batch cut to this rank's share of an epoch's last, if that is smaller.

    Nothing if `collate` makes the batches: a part of one may be none.
    """
    given = trainer.experiment.input
    if given.name == "loader" and given.collate:
        return []
    last = batches.image_count % batches.batch_size
    if not last or batches.image_count < batches.batch_size:
        return []
    own = len(range(trainer.team.rank, last, trainer.team.size))
    return [first_samples(first, own)]


def chosen_steps(trainer: Trainer) -> Steps:
    """Return the kind of steps that params.yaml names.

    With `auto`, capture them if a trial gives the bits of eager ones.
    """
    if trainer.experiment.cuda_graphs == "off":
        return Steps("params.yaml says so")
    recorder = recorder_of(trainer.device)
    if recorder is None:
        return Steps(f"steps are recorded on CUDA and ROCm alone, not on {trainer.device.type}")
    if why_not := why_not_capturable(trainer):
        return _one_by_one(trainer, why_not)
    at_once = steps_per_graph(trainer)
    if is_large(trainer):
        if trainer.experiment.cuda_graphs == "on":
            return GraphedSteps(
                recorder, at_once, "params.yaml says so; no copy to try them on fits"
            )
        return Steps("its network is too large for its device to try them on a copy")
    tried_at_once = min(at_once, TRIED_STEPS)
    whole = trainer.training.image_count // trainer.training.batch_size
    tried = min(whole, TRIED_STEPS) // tried_at_once * tried_at_once
    batch = next(iter(trainer.training.train_batches(0)))
    try:
        with scratch_copy(trainer) as state, recorder.beside():
            eager = _bits(trainer, state, Steps(), tried, batch)
        with scratch_copy(trainer) as state:
            captured = _bits(trainer, state, GraphedSteps(recorder, tried_at_once), tried, batch)
    except RuntimeError as error:
        return _one_by_one(trainer, f"recording some failed ({first_failure(error)})")
    why = "some were tried, and gave the same bits one by one"
    if not trainer.experiment.deterministic:
        why = "params.yaml says so; bits weren't compared, as deterministic is false"
    elif not all(map(same_bits, eager, captured)):
        return _one_by_one(trainer, "recorded, some gave other bits")
    return GraphedSteps(recorder, at_once, why)


def _one_by_one(trainer: Trainer, why: str) -> Steps:
    if trainer.experiment.cuda_graphs == "on":
        raise UserError(
            f"cuda_graphs is on in params.yaml, which can't be: {why}. "
            f"`cuda_graphs: auto` takes them one by one then"
        )
    return Steps(why)


def _bits(
    trainer: Trainer, state: TrainState, steps: Steps, count: int, batch: Batch
) -> list[torch.Tensor]:
    """Return losses, weights and optimizer state after `count` steps and an eager one, twice.

    The schedule moves between the two, so that a learning rate fixed in a graph shows.
    """
    losses: list[torch.Tensor] = []
    for epoch in range(min(2, trainer.experiment.epochs)):
        seed_epoch(trainer.experiment.seed, epoch)
        losses += islice(trainer.take_steps(steps, state, epoch), count // steps.at_once)
        losses.append(trainer.step(state, 0, batch))
        state.schedule.epoch_ended(0.0)
    tensors = [torch.cat([loss.reshape(-1) for loss in losses])]
    tensors.append(torch.tensor(state.scaler.get_scale()))
    tensors += state.network.state_dict().values()
    if state.average:
        tensors += state.average.network.state_dict().values()
    for values in state.optimizer.state.values():
        tensors += values.values()
    return tensors


def forget_optimizer(trainer: Trainer) -> None:
    """Free what only further training needs: graphs, gradients and optimizer state."""
    trainer.steps.release()
    for optimizer in trainer.state.optimizers:
        optimizer.zero_grad()
        optimizer.state.clear()
