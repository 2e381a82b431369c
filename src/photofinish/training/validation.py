"""Validation after each epoch, with the metric that early stopping may follow."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from photofinish.errors import ConfigError
from photofinish.nested import map_nested, samples_in
from photofinish.training.batches import Batch, Batches, map_batch
from photofinish.training.graphs import GraphedSteps, Recorded, first_failure, most_steps
from photofinish.training.losses import CustomStep, Loss, Weight, predict, to_input
from photofinish.training.output_metrics import joined, monitored_value, rows_that_count
from photofinish.training.state import TrainState
from photofinish.training.step import Step
from photofinish.training.world import World

if TYPE_CHECKING:
    from photofinish.config.experiment import Experiment
    from photofinish.config.losses_and_metrics import Metric


class Scores(NamedTuple):
    """Result of validation on one batch, or sums of all batches, on the device."""

    loss: torch.Tensor
    """Summed loss of a batch, or of each batch."""
    weight: Weight
    correct: Weight = 0
    """Number of correct predictions. A custom step counts none."""
    predicted: Weight = 0
    judged: tuple[Any, Any] | None = None
    """Outputs and targets, if a metric needs them."""


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
    """Validation of a network, captured in one graph if its batches stay in place."""

    def __init__(
        self,
        experiment: Experiment,
        criterion: Loss,
        step: Step,
        team: World,
        metric: Metric | None,
    ) -> None:
        settings = experiment.validation_step
        rule = experiment.early_stopping
        task = criterion.task
        self._custom = CustomStep(settings) if settings else step.custom
        self._criterion, self._autocast = criterion, step.autocast
        self._team, self._metric = team, metric
        self._captured: tuple[Recorded[Scores], TrainState, list[Batch]] | None = None
        is_judged = self._custom is None
        self.has_accuracy = is_judged and task.has_accuracy
        if rule is None or rule.monitor == "validation_loss":
            return
        if not is_judged or not (metric or task.has_accuracy):
            source = f"{task.name} as targets" if is_judged else "a custom step"
            raise ConfigError(
                f"early_stopping.monitor is {rule.monitor} in params.yaml, but {source} can't give "
                f"it: use validation_loss"
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
        return [self._score(network, state, batch) for batch in batches]

    def _score(self, network: nn.Module, state: TrainState, batch: Batch) -> Scores:
        """Return the scores on a batch of `network`: the network of `state`, or its average."""
        if self._custom:
            with self._autocast:
                loss = self._custom(network, to_input(state, batch)).float()
            count = samples_in(batch[1])
            # The mean over no samples may be NaN.
            return Scores(loss * count if count else torch.zeros_like(loss), count)
        with self._autocast:
            outputs, targets = predict(network, state, batch)
        task, to_fp32 = self._criterion.task, torch.Tensor.float
        loss, weight = self._criterion.sum_and_weight(map_nested(to_fp32, outputs), targets)
        judged = rows_that_count(task, outputs, targets) if self._metric else None
        correct = task.num_correct(outputs, targets)
        predicted = task.num_predictions(targets)
        return Scores(loss, weight, correct, predicted, judged)

    def capture(
        self,
        state: TrainState,
        validation: Batches,
        steps: GraphedSteps,
    ) -> str | None:
        """Capture a whole validation on resident batches. Return why a capture failed, or None.

        Its sums must equal those of `evaluate`, also after more steps. Custom steps, metrics on
        outputs, and many batches are not captured.
        """
        batches = list(validation.eval_batches())
        is_short = 0 < len(batches) <= 2 * most_steps(state.network)  # a step has a backward pass
        if not is_short or self._custom or self._metric:
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
            why = "captured, it gave other sums"
        except RuntimeError as error:
            why = f"capturing it failed ({first_failure(error)})"
        self.release()
        return why

    @property
    def is_captured(self) -> bool:
        return self._captured is not None

    @torch.inference_mode()
    def replay(self) -> Sums:
        assert self._captured
        recorded, state, _batches = self._captured
        state.network.eval()
        recorded.replay()
        return _read_back(recorded.output, [])

    def release(self) -> None:
        self._captured = None

    def monitored(self, judged: list[tuple[Any, Any]]) -> float | None:
        """Return the metric that early stopping follows, computed over all ranks, or None."""
        if self._metric is None:
            return None
        own = [map_batch(torch.Tensor.cpu, batch) for batch in judged]
        outputs, targets = zip(*chain(*self._team.all_gather_object(own)), strict=True)
        return monitored_value(self._metric, self._criterion.task, joined(outputs), joined(targets))


def _totals(scores: list[Scores]) -> Scores:
    correct = [batch.correct for batch in scores if isinstance(batch.correct, torch.Tensor)]
    return Scores(
        torch.stack([batch.loss for batch in scores]),
        sum(batch.weight for batch in scores),
        torch.stack(correct).sum() if correct else 0,
        sum(batch.predicted for batch in scores),
    )


def _read_back(totals: Scores, judged: list[tuple[Any, Any]]) -> Sums:
    loss = totals.loss.cpu().double().sum().item()
    return Sums(loss, float(totals.weight), float(totals.correct), float(totals.predicted), judged)
