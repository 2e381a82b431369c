"""Validation after each epoch, with the metric that early stopping may follow."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from photofinish.data.tasks import Task
from photofinish.errors import ConfigError
from photofinish.training.batch_loss import BatchLoss, LossOfOutputs, Scores, Weight
from photofinish.training.batches import Batch, Batches, map_batch
from photofinish.training.cuda_recorder import Recorded
from photofinish.training.graphs import GraphedSteps, most_steps
from photofinish.training.output_metrics import joined, monitored_value
from photofinish.training.state import TrainState
from photofinish.training.step import first_failure
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


class _Totals(NamedTuple):
    """Sums on the device."""

    losses: torch.Tensor
    """Summed loss of each batch."""
    weight: Weight
    correct: Weight
    predicted: Weight


class Validator:
    """Validation of one training's network, captured in one graph if its batches stay in place."""

    def __init__(
        self,
        loss: BatchLoss,
        task: Task,
        team: World,
        rule: EarlyStopping | None,
        metric: Metric | None,
    ) -> None:
        self._loss, self._task, self._team, self._metric = loss, task, team, metric
        self._captured: tuple[Recorded[_Totals], TrainState, list[Batch]] | None = None
        """Captured validation, and what it reads."""
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
        scores = self._scores(state, batches)
        if not scores:
            return Sums(0.0, 0.0, 0.0, 0.0, [])
        return _read_back(_totals(scores), [batch.judged for batch in scores if batch.judged])

    def _scores(self, state: TrainState, batches: Iterable[Batch]) -> list[Scores]:
        network = state.network
        if state.average:
            state.average.copy_buffers()
            network = state.average.network
        network.eval()
        return [self._loss.scores(network, state, batch) for batch in batches]

    def capture(self, state: TrainState, validation: Batches, steps: GraphedSteps) -> str | None:
        """Capture a whole validation on resident batches. Return why a capture failed, or None.

        Its sums must equal those of `evaluate`, also after more steps. Custom steps, metrics on
        outputs, and many batches are not captured.
        """
        batches = list(validation.eval_batches())
        is_short = 0 < len(batches) <= 2 * most_steps(state.network)  # a step has a backward pass
        if not (is_short and isinstance(self._loss, LossOfOutputs) and self._metric is None):
            return None
        try:
            with torch.inference_mode():
                with steps.recorder.beside():  # libraries prepare for the batches' sizes here
                    self._scores(state, batches)
                recorded = steps.record(lambda: _totals(self._scores(state, batches)))
            self._captured = recorded, state, batches
            steps.run_each_kind(state)
            if self.replay() == self.evaluate(state, batches):
                return None
            why = "recorded, it gave other sums"
        except RuntimeError as error:
            why = f"recording it failed ({first_failure(error)})"
        self.release()
        return why

    @property
    def is_captured(self) -> bool:
        return self._captured is not None

    @torch.inference_mode()
    def replay(self) -> Sums:
        """Evaluate the network on all batches of the captured validation."""
        assert self._captured
        recorded, state, _batches = self._captured
        state.network.eval()
        recorded.replay()
        return _read_back(recorded.output, [])

    def release(self) -> None:
        """Free what was captured."""
        self._captured = None

    def monitored(self, judged: list[tuple[Any, Any]]) -> float | None:
        """Return the metric that early stopping follows, computed over all ranks, or None."""
        if self._metric is None:
            return None
        own = [map_batch(torch.Tensor.cpu, batch) for batch in judged]
        outputs, targets = zip(*chain(*self._team.all_gather_object(own)), strict=True)
        return monitored_value(self._metric, self._task, joined(outputs), joined(targets))


def _totals(scores: list[Scores]) -> _Totals:
    correct = [batch.correct for batch in scores if batch.correct is not None]
    return _Totals(
        torch.stack([batch.loss for batch in scores]),
        sum(batch.weight for batch in scores),
        torch.stack(correct).sum() if correct else 0,
        sum(batch.predicted for batch in scores),
    )


def _read_back(totals: _Totals, judged: list[tuple[Any, Any]]) -> Sums:
    loss = totals.losses.cpu().double().sum().item()
    return Sums(loss, float(totals.weight), float(totals.correct), float(totals.predicted), judged)
