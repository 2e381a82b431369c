"""A training step, its optimizer and its learning rate, with PyTorch's names and defaults."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer, lr_scheduler

from photofinish.config.pytorch_names import (
    CONSTANT,
    FUSED,
    MOVED_BY_STEPS,
    OPTIMIZERS,
    SCHEDULES,
    may_be_fused,
)
from photofinish.custom.reference import is_reference
from photofinish.custom.running import accepted_arguments, run_custom_code
from photofinish.errors import ConfigError
from photofinish.nested import samples_in
from photofinish.training.batches import Batch, Batches, split_batch
from photofinish.training.custom_step import CustomStep
from photofinish.training.losses import Loss, Weight, predict, to_input
from photofinish.training.torch_device import autocast, is_accelerator, to_device

if TYPE_CHECKING:
    from photofinish.config import experiment as params
    from photofinish.training.state import TrainState
    from photofinish.training.world import World


class Step:
    """Training step on one batch, launched operator by operator. graphs.py captures steps."""

    kind: Literal["eager", "graph"] = "eager"
    at_once = 1
    """Maximum number of steps that are launched together."""

    def __init__(
        self, experiment: params.Experiment, criterion: Loss, team: World, training: Batches
    ) -> None:
        self.custom = CustomStep(experiment.step) if experiment.step else None
        last = training.batch_samples(training.steps - 1)
        if self.custom and last < team.size:
            raise ConfigError(
                f"batch_size {training.batch_size} leaves {last} samples for the last batch of "
                f"{team.size} processes, and a step needs one in each: set another"
            )
        self._criterion, self._team, self._training = criterion, team, training
        self._parts, self._clip_norm = experiment.accumulate, experiment.clip_grad_norm
        collates = experiment.input.name == "loader" and experiment.input.collate is not None
        self._counts_samples = collates or experiment.batch_transform is not None
        self.autocast = autocast(team.devices[0], experiment.precision)
        """Context of the forward pass and the loss, entered in each step, but not inside itself."""
        self.why = ""
        """Reason for launching steps one by one, for the record."""

    def __call__(
        self,
        state: TrainState,
        number: int,
        batch: Batch,
        rate: torch.Tensor | None = None,
        *,
        moves_schedule: bool = True,
    ) -> torch.Tensor:
        """Train on the epoch's batch `number`, from 0. Return its mean loss, on the device.

        The learning rate is the schedule's, unless `rate` holds another rate on the device.
        """
        if len(state.optimizers) > 1:  # the custom step steps them, and their schedule is constant
            assert self.custom
            with self.autocast:
                loss = self.custom(state.network, to_input(state, batch), state.optimizers)
        else:
            loss = self._with_one_optimizer(state, number, batch, rate)
        if state.average:
            state.average.update()
        if moves_schedule:
            state.schedule.batch_ended()
        return loss.detach()

    def _with_one_optimizer(
        self, state: TrainState, number: int, batch: Batch, rate: torch.Tensor | None
    ) -> torch.Tensor:
        optimizer, scaler = state.optimizer, state.scaler
        if self._parts > 1:
            loss = self._add_gradients(state, number, batch)
        else:
            with self.autocast:
                if self._team.size > 1:
                    loss = self._share_of_mean(state, number, batch)
                elif self.custom:
                    loss = self.custom(state.network, to_input(state, batch))
                else:
                    # No name holds the outputs, which may be large, during the backward pass.
                    loss = self._criterion.mean(*predict(state.network, state, batch))
            optimizer.zero_grad()
            scaler.scale(loss).backward(state.first_gradient)  # type: ignore[no-untyped-call]
        if self._clip_norm:
            scaler.unscale_(optimizer)
            clip_grad_norm_(state.network.parameters(), self._clip_norm)
        with state.schedule.applied(rate):
            scaler.step(optimizer)
        scaler.update()
        return loss

    def _share_of_mean(self, state: TrainState, number: int, batch: Batch) -> torch.Tensor:
        """Return this rank's share of the batch's mean loss, times the number of ranks.

        DDP averages gradients over ranks, which gives the gradient of the whole batch's mean, even
        if shares are uneven.
        """
        total, weight = self._sum_and_weight(state, batch)
        if isinstance(weight, torch.Tensor):
            return total * (self._team.size / self._team.all_reduce(weight))
        return total * (self._team.size / self._samples(number, batch))

    def _samples(self, number: int, batch: Batch) -> Weight:
        """Return the number of samples in a batch, over all ranks, as custom code may change it."""
        if self._team.size == 1:
            return samples_in(batch[1])
        if not self._counts_samples:
            return self._training.batch_samples(number)
        count = torch.tensor(float(samples_in(batch[1])), device=self._team.devices[0])
        return self._team.all_reduce(count)

    def _sum_and_weight(self, state: TrainState, batch: Batch) -> tuple[torch.Tensor, Weight]:
        """Return this rank's summed loss, and the weight to divide it by for the mean."""
        if self.custom:
            count = samples_in(batch[1])
            return self.custom(state.network, to_input(state, batch)) * count, count
        return self._criterion.sum_and_weight(*predict(state.network, state, batch))

    def _add_gradients(self, state: TrainState, number: int, batch: Batch) -> torch.Tensor:
        """Add up the gradients of the batch's parts, and return the loss of the whole batch.

        Each part's loss is divided by the number of samples. If the loss has weights, their sum is
        known only after the last part, so gradients are scaled at the end.
        """
        team, count = self._team, self._samples(number, batch)
        parts = self._split(number, batch)
        loss, weights = torch.zeros((), device=team.output_device), None
        state.optimizer.zero_grad()
        for part_number, part in enumerate(parts):
            is_last = part_number == len(parts) - 1
            with nullcontext() if is_last else team.no_sync(state.network):
                with self.autocast:
                    total, weight = self._sum_and_weight(state, part)
                scaled = state.scaler.scale(total * (team.size / count))
                scaled.backward()  # type: ignore[no-untyped-call]
            loss += total.detach()
            if isinstance(weight, torch.Tensor):
                weights = weight if weights is None else weights + weight
        if weights is None:
            return loss * (team.size / count)
        weights = team.all_reduce(weights)
        for parameter in state.network.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(count / weights)
        return loss * (team.size / weights)

    def _split(self, number: int, batch: Batch) -> list[Batch]:
        """Split a batch into parts, as many on each rank, since SyncBatchNorm waits in each."""

        def parts_of(samples: int) -> int:
            return -(-samples // max(1, -(-samples // self._parts)))

        count, planned = samples_in(batch[1]), self._training.batch_samples(number)
        smallest, largest = planned // self._team.size, -(-planned // self._team.size)
        if parts_of(max(1, smallest)) == parts_of(largest):
            return split_batch(batch, max(1, -(-count // self._parts)))
        parts = min(self._parts, smallest)
        return split_batch(batch, [(count + part) // parts for part in range(parts)])

    def repeat(self, state: TrainState, batch: Batch, steps: int) -> Callable[[], object]:
        """Return a function that takes this number of steps on one batch."""
        return lambda: [self(state, 0, batch, moves_schedule=False) for _ in range(steps)]

    def with_training(self, training: Batches) -> Step:
        """Return this step for other batches, of which it knows the sizes."""
        step = copy.copy(self)
        step._training = training
        return step

    def because(self, why: str) -> Step:
        """Return this step, with the reason for launching it operator by operator."""
        step = copy.copy(self)
        step.why = why
        return step


def build_optimizers(
    settings: params.Optimizer, network: nn.Module, *, loss_is_scaled: bool = False
) -> list[Optimizer]:
    """Build PyTorch's optimizer, or call a custom function, which may return several.

    A custom function gets the network, and a custom class the parameters, as PyTorch's classes do.
    """
    arguments = settings.arguments
    reference = OPTIMIZERS.reference(settings.name)
    if not is_reference(settings.name):
        with run_custom_code(f"optimizer {settings.name} can't be made"):
            groups = _parameter_groups(network, settings.weight_decay_exclude)
            return [_pytorch_optimizer(reference.name, groups, arguments, loss_is_scaled)]
    custom = reference.load()
    is_class = isinstance(custom, type)
    with run_custom_code(f"optimizer {settings.name} can't be made"):
        built = custom(list(network.parameters()) if is_class else network, **arguments)
    return list(built) if isinstance(built, list | tuple) else [built]


def _parameter_groups(network: nn.Module, without_decay: str | None) -> list[dict[str, Any]]:
    """Return the parameters in one group, or in two if some have no weight decay.

    Norms and biases are recognised as in timm and nanoGPT, by having at most one dimension.
    """
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in network.named_parameters():
        is_excluded = without_decay and (parameter.dim() <= 1 or name.endswith(".bias"))
        groups[1 if is_excluded else 0]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def _pytorch_optimizer(
    name: str, groups: list[dict[str, Any]], arguments: dict[str, Any], loss_is_scaled: bool
) -> Optimizer:
    """Build an optimizer of torch.optim.

    SGD (except on the CPU, docs/evidence.md), Adam and AdamW are fused, unless params.yaml asks
    for another implementation. On an accelerator, fused optimizers get their state here, because a
    captured step can't create it.
    """
    if name not in FUSED:
        return cast("Optimizer", getattr(torch.optim, name)(groups, **arguments))
    parameters = [parameter for group in groups for parameter in group["params"]]
    on_accelerator = is_accelerator(parameters[0].device)
    momentum, dampening = (arguments.get(key, 0) for key in ("momentum", "dampening"))
    is_damped = momentum > 0 and dampening > 0
    defaults = {"fused": may_be_fused(arguments)}
    if name == "SGD":
        # Fused SGD with dampening does not write its momentum if the first scaled loss overflows.
        may_fuse = on_accelerator and not (is_damped and loss_is_scaled)
        defaults = {"foreach": False, "fused": defaults["fused"] and may_fuse}
    optimizer = getattr(torch.optim, name)(groups, **(defaults | arguments))
    if on_accelerator and optimizer.defaults["fused"] and not is_damped:
        for parameter in parameters:
            if parameter.requires_grad:
                optimizer.state[parameter] = _first_state(name, parameter, arguments)
    return cast("Optimizer", optimizer)


def _first_state(
    name: str, parameter: nn.Parameter, arguments: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """Return a fused optimizer's state before its first step."""
    if name == "SGD":
        names = ["momentum_buffer"] if arguments.get("momentum") else []
        return {name: torch.zeros_like(parameter) for name in names}
    names = ["exp_avg", "exp_avg_sq"]
    if arguments.get("amsgrad"):
        names.append("max_exp_avg_sq")
    step = torch.zeros((), dtype=torch.float32, device=parameter.device)
    return {"step": step, **{name: torch.zeros_like(parameter) for name in names}}


Rates = tuple[float, ...]
"""Learning rate of each parameter group."""


@contextmanager
def override_groups(optimizer: Optimizer, key: str, values: Sequence[object]) -> Iterator[None]:
    """Override a setting of each of the optimizer's parameter groups within the block."""
    groups = optimizer.param_groups
    before = [{name: group[name] for name in (key,) if name in group} for group in groups]
    for group, value in zip(groups, values, strict=True):
        group[key] = value
    try:
        yield
    finally:
        for group, kept in zip(groups, before, strict=True):
            del group[key]
            group.update(kept)


class DeviceLearningRates:
    """Learning rates of the next steps, on the device.

    A captured step reads its slot at each replay. Rates are float32. An accelerator's eager steps
    read slots, too, so that both kinds of steps compute equal bits.
    """

    def __init__(self, count: int, groups: int, device: torch.device) -> None:
        self._rates: list[Rates] = []
        self._tensor = torch.zeros(count, groups, dtype=torch.float32, device=device)
        self.slots = self._tensor.unbind()
        """Tensor of all groups' rates, for each step."""

    def fill(self, rates: list[Rates]) -> None:
        """Write each step's rates to its slot, unless the slots hold these rates already."""
        if rates == self._rates:
            return
        self._rates = rates
        if len({rate for each in rates for rate in each}) == 1:
            self._tensor.fill_(rates[0][0])
        else:
            values = torch.tensor(rates, dtype=torch.float32)
            self._tensor.copy_(to_device(values, self._tensor.device))


class LearningRates:
    """Learning-rate schedule of every parameter group.

    A rate changes after each step or epoch, or by the validation loss. A warm-up multiplies it.
    """

    def __init__(
        self, experiment: params.Experiment, optimizer: Optimizer, steps_per_epoch: int
    ) -> None:
        self._optimizer, self._warmup_steps = optimizer, experiment.warmup_steps
        self._steps_done = 0
        groups = optimizer.param_groups
        if self._warmup_steps and any("lr" not in group for group in groups):
            raise ConfigError(
                f"warmup_steps is {self._warmup_steps}, and the optimizer has no learning rate (lr "
                f"in its parameter groups): set 0"
            )
        device = groups[0]["params"][0].device
        has_slots = is_accelerator(device) and all(group.get("fused") for group in groups)
        self._device_rates = DeviceLearningRates(1, len(groups), device) if has_slots else None
        self._scheduler: lr_scheduler.LRScheduler | None = None
        self._moves_each_step = False
        settings, epochs = experiment.schedule, experiment.epochs
        given = settings.arguments
        if settings.name == CONSTANT:
            return
        reference = SCHEDULES.reference(settings.name)
        by_default = "step" if reference.name in MOVED_BY_STEPS else "epoch"
        self._moves_each_step = (settings.every or by_default) == "step"
        moves = epochs * steps_per_epoch if self._moves_each_step else epochs
        offered = {
            "T_max": moves,
            "total_steps": moves,
            "epochs": epochs,
            "steps_per_epoch": steps_per_epoch,
            "cycle_momentum": False,  # it would override the momentum in params.yaml
        }
        if not is_reference(settings.name) and {"epochs", "steps_per_epoch"} & given.keys():
            del offered["total_steps"]  # it would override them
        build = reference.load()
        arguments = accepted_arguments(build, offered, given)
        with run_custom_code(f"schedule {settings.name} can't be made"):
            self._scheduler = build(optimizer, **arguments)
        if not settings.every and not {"T_max", "total_steps"} & arguments.keys():
            self._moves_each_step = type(self._scheduler).__name__ in MOVED_BY_STEPS

    @property
    def learning_rate(self) -> float:
        """Learning rate of the first parameter group in the next step."""
        return self.rates[0]

    @property
    def rates(self) -> Rates:
        """Learning rate of each parameter group in the next step, or 0 for a group without one."""
        factor = 1.0
        if self._steps_done < self._warmup_steps:
            factor = (self._steps_done + 1) / self._warmup_steps
        return tuple(float(group.get("lr", 0.0)) * factor for group in self._optimizer.param_groups)

    def applied(self, slot: torch.Tensor | None = None) -> AbstractContextManager[None]:
        """Return a context in which the optimizer has the rates of the next step.

        On an accelerator, a fused optimizer reads the rates from a slot.
        """
        if self._device_rates is not None:
            if slot is None:
                self._device_rates.fill([self.rates])
                (slot,) = self._device_rates.slots
            return override_groups(self._optimizer, "lr", slot.unbind())
        if self._steps_done >= self._warmup_steps:
            return nullcontext()
        return override_groups(self._optimizer, "lr", self.rates)

    def next_rates(self, steps: int) -> list[Rates]:
        """Return the rates of the next `steps` steps, and advance past them."""
        rates = []
        for _ in range(steps):
            rates.append(self.rates)
            self.batch_ended()
        return rates

    def batch_ended(self) -> None:
        """Advance to the next step's rate."""
        self._steps_done += 1
        if self._moves_each_step and self._scheduler:
            self._scheduler.step()

    def epoch_ended(self, validation_loss: float | None) -> None:
        """Advance to the next epoch's rate, if the schedule changes each epoch."""
        if isinstance(self._scheduler, lr_scheduler.ReduceLROnPlateau):
            if validation_loss is None:
                raise ConfigError(
                    "schedule follows the validation loss, and the data set has no validation part"
                )
            self._scheduler.step(validation_loss)
        elif self._scheduler and not self._moves_each_step:
            self._scheduler.step()

    def state_dict(self) -> dict[str, object]:
        scheduler = dict(self._scheduler.state_dict()) if self._scheduler else {}
        return {"steps_done": self._steps_done, "scheduler": scheduler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps_done = state["steps_done"]
        if self._scheduler:
            self._scheduler.load_state_dict(state["scheduler"])
