"""Judges of a network's outputs, a class for each kind of targets."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from photofinish.config.metrics import Metrics
from photofinish.custom.reference import is_reference
from photofinish.custom.running import run_custom_code
from photofinish.data.packed import PackedSplit
from photofinish.data.tasks import TASKS
from photofinish.errors import UserError
from photofinish.evaluation.scores import SCORES, Array, scores_of_classes
from photofinish.models.custom import generators_seeded
from photofinish.nested import call_with, map_nested, samples_in
from photofinish.results.records import DeviceEvaluation, TrainingRecord
from photofinish.training.batches import Batch, Normaliser, has_live_inputs, part_of
from photofinish.training.custom_step import CustomStep, step_with_a_loss
from photofinish.training.input_paths import validation_batch_size
from photofinish.training.loading import LoadedSamples
from photofinish.training.losses import Loss
from photofinish.training.output_metrics import custom_scores, joined, rows_that_count
from photofinish.training.torch_device import CPU

_MOST_SAMPLES = 1000
"""Largest batch, as double precision takes twice the memory of validation."""


class Scored(NamedTuple):
    """Scores of a network, its predictions and their targets."""

    scores: DeviceEvaluation
    actual: Array
    predicted: Array


@torch.inference_mode()
def score(
    network: nn.Module, record: TrainingRecord, split: PackedSplit, metrics: Metrics = ()
) -> Scored:
    """Score one network on the test samples. Draws are the same for each device and run."""
    with generators_seeded(record.experiment.seed):
        return _score(network.eval(), record, split, metrics)


def _score(
    network: nn.Module, record: TrainingRecord, split: PackedSplit, metrics: Metrics
) -> Scored:
    step = step_with_a_loss(record.experiment)
    if step and _predicts_nothing(network, record, split):
        return _score_by_step(network, step, record, split, metrics)
    task = TASKS[record.task]
    kind: type[Judge] = JudgeOfSamples
    if not task.losses:
        kind = JudgeByLoss
    elif task.is_one_of_many and record.target_shape:
        kind = JudgeOfPositions
    judge, name = kind(record, metrics), record.experiment.model.name
    if not is_reference(name):
        network = network.to(judge.dtype)
    with run_custom_code(f"model {name} fails in evaluation"):
        for inputs, targets in _test_batches(record, split):
            outputs = call_with(network, map_nested(partial(_in_precision, judge.dtype), inputs))
            judge.add(outputs, targets)
    return judge.scored()


class Judge(ABC):
    """Judge that collects a network's outputs on the test samples, then scores them."""

    def __init__(self, record: TrainingRecord, metrics: Metrics) -> None:
        self._record, self._metrics = record, metrics
        self._loss = Loss(record.experiment.loss, record.task, CPU)
        self._outputs: list[Any] = []
        self._targets: list[Any] = []
        self._loss_sum, self._weight_sum = 0.0, 0.0

    @property
    def dtype(self) -> torch.dtype:
        """Precision in which the network computes.

        Double precision keeps rounding out of the comparison of devices. Custom networks may
        contain tensors in other precisions, so they compute in float32.
        """
        return torch.float32 if is_reference(self._record.experiment.model.name) else torch.float64

    def add(self, outputs: Any, targets: Any) -> None:
        self._outputs.append(outputs)
        self._targets.append(targets)

    @abstractmethod
    def scored(self) -> Scored:
        """Return the scores of all outputs that were added."""

    def _add_loss(self, outputs: Any, targets: Any) -> None:
        """Add a batch's loss to the sum, if outputs are not all kept."""
        total, weight = self._loss.sum_and_weight(outputs, targets)
        self._loss_sum += float(total)
        self._weight_sum += float(weight)

    def _with_metrics(self, scored: Scored, outputs: Any, targets: Any) -> Scored:
        """Add the metrics of params.yaml to the scores."""
        names = self._record.class_names
        custom = custom_scores(self._metrics, self._loss.task, outputs, targets, names)
        main = next(iter(custom), scored.scores.main)
        added = {"metrics": custom | scored.scores.metrics, "main": main}
        return scored._replace(scores=scored.scores.model_copy(update=added))


class JudgeOfSamples(Judge):
    """Judge of outputs with one row for each sample: a class, labels or values."""

    def scored(self) -> Scored:
        outputs, targets = torch.cat(self._outputs).double(), torch.cat(self._targets)
        with run_custom_code("the loss fails in evaluation"):
            as_trained = outputs.float() if self._loss.has_tensors else outputs
            loss = _finite(self._loss.mean(as_trained, targets).item())
        names = self._record.class_names
        task = self._loss.task
        predicted: Array = task.predicted(outputs).numpy()
        actual: Array = targets.numpy()
        if task.has_accuracy:
            actual = actual.astype(np.int64)
        scores = SCORES[task.name](actual, predicted, loss, names)
        return self._with_metrics(Scored(scores, actual, predicted), outputs, targets)


class JudgeOfPositions(Judge):
    """Judge of a class for each position. Does not keep all outputs, which may be too many."""

    def __init__(self, record: TrainingRecord, metrics: Metrics) -> None:
        super().__init__(record, metrics)
        self._predicted: list[torch.Tensor] = []

    def add(self, outputs: Any, targets: Any) -> None:
        self._add_loss(outputs.float(), targets)
        outputs, targets = rows_that_count(self._loss.task, outputs, targets)
        self._predicted.append(outputs.argmax(dim=1))
        super().add(outputs if self._metrics else outputs[:0], targets)

    def scored(self) -> Scored:
        loss = _finite(self._loss_sum / self._weight_sum)
        outputs, targets = torch.cat(self._outputs).double(), torch.cat(self._targets)
        actual: Array = targets.numpy()
        predicted: Array = torch.cat(self._predicted).numpy()
        scores = scores_of_classes(actual, predicted, loss, self._record.class_names)
        return self._with_metrics(Scored(scores, actual, predicted), outputs, targets)


class JudgeByLoss(Judge):
    """Judge of outputs that only a custom loss and custom metrics can interpret."""

    dtype = torch.float32

    def add(self, outputs: Any, targets: Any) -> None:
        self._add_loss(outputs, targets)
        if self._metrics:
            super().add(outputs, targets)

    def scored(self) -> Scored:
        scored = _without_predictions(self._loss_sum / self._weight_sum)
        if not self._metrics:
            return scored
        outputs, targets = (joined(parts) for parts in (self._outputs, self._targets))
        return self._with_metrics(scored, outputs, targets)


def _predicts_nothing(network: nn.Module, record: TrainingRecord, split: PackedSplit) -> bool:
    """Return True if only the custom step can interpret the network's outputs."""
    if type(network).forward is nn.Module.forward:
        return True
    inputs, targets = next(_test_batches(record, split))
    with run_custom_code(f"model {record.experiment.model.name} fails in evaluation"):
        outputs = call_with(network, inputs)
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return True
    counts = (len(targets), len(record.class_names))
    return tuple(outputs.shape) != counts and not (record.target_shape and outputs.dim() > 2)


def _score_by_step(
    network: nn.Module,
    step: CustomStep,
    record: TrainingRecord,
    split: PackedSplit,
    metrics: Metrics,
) -> Scored:
    """Score a network by the loss of its custom step. It has no predictions."""
    if metrics:
        raise UserError(
            "metrics in params.yaml need a network's outputs, and a custom step has none"
        )
    loss_sum, count = 0.0, 0
    for batch in _test_batches(record, split):
        samples = samples_in(batch[1])
        loss_sum += float(step(network, batch)) * samples
        count += samples
    return _without_predictions(loss_sum / count)


def _without_predictions(loss: float) -> Scored:
    """Return the loss as the only score, for outputs without a known meaning."""
    scores = DeviceEvaluation(main="test_loss", test_loss=_finite(loss))
    return Scored(scores, np.empty(0), np.empty(0))


def _finite(loss: float) -> float:
    if not math.isfinite(loss):
        raise UserError(f"the loss on the test data is {loss}: check the test part of the data")
    return loss


def _test_batches(record: TrainingRecord, split: PackedSplit) -> Iterator[Batch]:
    """Yield the test samples, normalised."""
    given, size = record.experiment.input, record.experiment.batch_size
    if given.name == "loader" and (given.eval_transform or given.collate or has_live_inputs(split)):
        samples = LoadedSamples(part_of(split, "test"), given, record.experiment.seed)
        for start in range(0, len(samples), size):
            rows = range(start, min(start + size, len(samples)))
            yield samples.collate(samples.__getitems__([(row, None, None, 0) for row in rows]))
        return
    normalise = Normaliser(record.mean, record.std, len(record.image_shape))
    inputs, targets = split.images("test"), split.labels("test")
    size = min(_MOST_SAMPLES, validation_batch_size(record.experiment, inputs, CPU))
    for start in range(0, samples_in(targets), size):
        read = partial(_read, slice(start, start + size))
        yield map_nested(normalise, map_nested(read, inputs)), map_nested(read, targets)


def _read(rows: slice, column: Array) -> torch.Tensor:
    return torch.from_numpy(np.array(column[rows]))


def _in_precision(dtype: torch.dtype, batch: torch.Tensor) -> torch.Tensor:
    """Convert floats only. Whole numbers are indices for a network."""
    return batch.to(dtype) if batch.is_floating_point() else batch
