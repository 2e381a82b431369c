"""Scores of one network on the test samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from photofinish.config.metrics import Metrics
from photofinish.custom.reference import is_reference
from photofinish.custom.running import run_custom_code
from photofinish.data.packed import Array, PackedSplit
from photofinish.data.tasks import TASKS
from photofinish.errors import UserError
from photofinish.evaluation.scores import SCORES
from photofinish.models.custom import generators_seeded
from photofinish.nested import call_with, map_nested, samples_in
from photofinish.results.records import TrainingRecord
from photofinish.results.trained import DeviceEvaluation
from photofinish.training.batches import Batch, Normaliser, has_live_inputs, part_of
from photofinish.training.input_paths import validation_batch_size
from photofinish.training.loading import LoadedSamples
from photofinish.training.losses import CustomStep, Loss, step_with_a_loss
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
        step = step_with_a_loss(record.experiment)
        if step and _predicts_nothing(network.eval(), record, split):
            return _score_by_step(network, step, record, split, metrics)
        return _score_by_outputs(network.eval(), record, split, metrics)


def _score_by_outputs(
    network: nn.Module, record: TrainingRecord, split: PackedSplit, metrics: Metrics
) -> Scored:
    """Score the outputs for all test samples by the loss, the task's scores and the metrics.

    Without a task's scores, only a custom loss and custom metrics can interpret the outputs. Of
    classes of positions, outputs are kept for metrics alone, because they may be too many.
    """
    name, names = record.experiment.model.name, record.class_names
    is_interpreted = bool(TASKS[record.task].losses)
    has_positions = TASKS[record.task].is_one_of_many and bool(record.target_shape)
    loss = Loss(record.experiment.loss, record.task, CPU)
    # Double precision keeps rounding out of the comparison of devices. Custom networks may contain
    # tensors in other precisions, so they compute in float32.
    dtype = torch.float64 if is_interpreted and not is_reference(name) else torch.float32
    if not is_reference(name):
        network = network.to(dtype)
    kept: list[tuple[Any, Any]] = []
    predicted_classes: list[torch.Tensor] = []
    loss_sum = weight_sum = 0.0
    with run_custom_code(f"model {name} fails in evaluation"):
        for inputs, targets in _test_batches(record, split):
            outputs = call_with(network, map_nested(partial(_in_precision, dtype), inputs))
            if has_positions or not is_interpreted:
                total, weight = loss.sum_and_weight(
                    outputs.float() if has_positions else outputs, targets
                )
                loss_sum, weight_sum = loss_sum + float(total), weight_sum + float(weight)
            if has_positions:
                outputs, targets = rows_that_count(loss.task, outputs, targets)
                predicted_classes.append(outputs.argmax(dim=1))
                outputs = outputs if metrics else outputs[:0]
            if metrics or is_interpreted:
                kept.append((outputs, targets))
    if not is_interpreted and not metrics:
        return _without_predictions(loss_sum / weight_sum)
    outputs, targets = (joined(batches) for batches in zip(*kept, strict=True))
    if not is_interpreted:
        scored = _without_predictions(loss_sum / weight_sum)
    else:
        outputs = outputs.double()
        actual: Array = targets.numpy()
        if loss.task.has_accuracy:
            actual = actual.astype(np.int64)
        if has_positions:
            mean_loss = loss_sum / weight_sum
            predicted: Array = torch.cat(predicted_classes).numpy()
        else:
            with run_custom_code("the loss fails in evaluation"):
                as_trained = outputs.float() if loss.has_tensors else outputs
                mean_loss = loss.mean(as_trained, targets).item()
            predicted = loss.task.predicted(outputs).numpy()
        scores = SCORES[loss.task.name](actual, predicted, _finite(mean_loss), names)
        scored = Scored(scores, actual, predicted)
    custom = custom_scores(metrics, loss.task, outputs, targets, names)
    main = next(iter(custom), scored.scores.main)
    added = {"metrics": custom | scored.scores.metrics, "main": main}
    return scored._replace(scores=scored.scores.model_copy(update=added))


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
    by, size = record.experiment.input, record.experiment.batch_size
    if by.name == "loader" and (by.eval_transform or by.collate or has_live_inputs(split)):
        samples = LoadedSamples(part_of(split, "test"), by, record.experiment.seed)
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
