"""Validation after each epoch, with the metric that early stopping may follow."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from photofinish.data.tasks import Task
from photofinish.errors import ConfigError
from photofinish.training.batch_loss import BatchLoss, LossOfOutputs
from photofinish.training.batches import Batch, map_batch
from photofinish.training.output_metrics import joined, monitored_value
from photofinish.training.state import TrainState
from photofinish.training.world import World

if TYPE_CHECKING:
    from photofinish.config.early_stopping import EarlyStopping
    from photofinish.config.metrics import Metric


class Sums(NamedTuple):
    """Sums over this rank's validation samples."""

    loss: float
    weight: float
    """Divisor that turns the summed loss into a mean."""
    correct: float
    predicted: float
    judged: list[tuple[Any, Any]]
    """Outputs and targets of each batch, if early stopping follows a metric."""


class Validator:
    """Validation of one training's network."""

    def __init__(
        self,
        loss: BatchLoss,
        task: Task,
        team: World,
        rule: EarlyStopping | None,
        metric: Metric | None,
    ) -> None:
        self._loss, self._task, self._team, self._metric = loss, task, team, metric
        is_judged = isinstance(loss, LossOfOutputs)
        self.has_accuracy = is_judged and task.has_accuracy
        if rule is None or rule.monitor == "validation_loss":
            return
        if not is_judged or not (metric or task.has_accuracy):
            source = f"{task.name} as targets" if is_judged else "a custom step"
            raise ConfigError(
                f"early_stopping.monitor is {rule.monitor} in params.yaml, and {source} can't give "
                f"it: follow validation_loss"
            )
        if metric:
            metric.reference.load()  # so that no epoch's time includes the import

    @torch.inference_mode()
    def evaluate(self, state: TrainState, batches: Iterable[Batch]) -> Sums:
        """Evaluate the network, or its average. Reads from the device after the last batch only.

        Without a validation part, there are no batches, and the sums are 0.
        """
        network = state.network
        if state.average:
            state.average.copy_buffers()
            network = state.average.network
        network.eval()
        scores = [self._loss.scores(network, state, batch) for batch in batches]
        if not scores:
            return Sums(0.0, 0.0, 0.0, 0.0, [])
        loss = torch.stack([batch.loss for batch in scores]).cpu().double().sum().item()
        correct = [batch.correct for batch in scores if batch.correct is not None]
        return Sums(
            loss,
            float(sum(batch.weight for batch in scores)),
            torch.stack(correct).sum().item() if correct else 0.0,
            float(sum(batch.predicted for batch in scores)),
            [batch.judged for batch in scores if batch.judged],
        )

    def monitored(self, judged: list[tuple[Any, Any]]) -> float | None:
        """Return the metric that early stopping follows, computed over all ranks, or None."""
        if self._metric is None:
            return None
        own = [map_batch(torch.Tensor.cpu, batch) for batch in judged]
        outputs, targets = zip(*chain(*self._team.all_gather_object(own)), strict=True)
        return monitored_value(self._metric, self._task, joined(outputs), joined(targets))
