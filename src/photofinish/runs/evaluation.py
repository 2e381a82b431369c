"""Test metrics of the trained networks, all computed on the CPU."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from photofinish.config.metrics import Metrics
from photofinish.custom_code import is_reference, run_custom_code
from photofinish.data import IGNORED_CLASS
from photofinish.data.packed import PackedSplit
from photofinish.errors import UserError
from photofinish.files import write_text_atomically
from photofinish.nested import call_with, map_nested, samples_in
from photofinish.results import records
from photofinish.results.learned import load_network
from photofinish.runs.parts import has_live_inputs, part_of
from photofinish.runs.scores import (
    Array,
    custom_scores,
    scores_of_classes,
    scores_of_labels,
    scores_of_values,
)
from photofinish.training.batches import Batch, Normaliser
from photofinish.training.custom_step import CustomStep, step_with_a_loss
from photofinish.training.loading import LoadedSamples
from photofinish.training.losses import Loss, classes_of_positions
from photofinish.training.torch_device import CPU

_BATCH_SIZE = 1000


@dataclass(frozen=True)
class Judged:
    """Scores of an experiment's networks, and their predictions."""

    evaluation: records.Evaluation
    actual: Array
    """Targets of the test samples."""
    predicted: dict[records.DeviceLabel, Array]


def evaluate(
    name: str,
    learned: dict[records.DeviceLabel, Path],
    split: PackedSplit,
    metrics: Metrics = (),
) -> Judged:
    """Score the network of each device that trained."""
    devices: dict[records.DeviceLabel, records.DeviceEvaluation] = {}
    predicted: dict[records.DeviceLabel, Array] = {}
    actual: Array = np.empty(0)
    for device, folder in learned.items():
        record = records.read_training(folder)
        if isinstance(record, records.Unavailable):
            continue
        network = load_network(folder, record)
        scores, actual, predicted[device] = _score(network, record, split, metrics)
        seeds = []
        for run in records.read_seeds(folder, record.experiment):
            other = _score(load_network(folder, record, run), record, split).scores
            seeds.append(
                records.SeedScores(
                    seed=run.seed,
                    weights_sha256=run.weights_sha256,
                    test_accuracy=other.test_accuracy,
                    test_loss=other.test_loss,
                    mean_absolute_error=other.metrics.get(records.MEAN_ABSOLUTE_ERROR),
                )
            )
        facts = {"weights_sha256": record.weights_sha256, "seeds": tuple(seeds)}
        devices[device] = scores.model_copy(update=facts)
    class_names = split.manifest.class_names
    evaluation = records.Evaluation(experiment=name, class_names=class_names, devices=devices)
    return Judged(evaluation, actual, predicted)


class _Scored(NamedTuple):
    """Scores of one network, and what it predicts for which targets."""

    scores: records.DeviceEvaluation
    actual: Array
    predicted: Array


@torch.inference_mode()
def _score(
    network: nn.Module, record: records.Training, split: PackedSplit, metrics: Metrics = ()
) -> _Scored:
    """Score one network.

    Double precision adds no rounding to what the devices learned. Custom networks and losses may
    hold tensors of other precisions, so they compute as in training.
    """
    name = record.experiment.model.name
    dtype = torch.float32 if is_reference(name) else torch.float64
    network = (network if is_reference(name) else network.to(dtype)).eval()
    custom_step = step_with_a_loss(record.experiment)
    if custom_step and _predicts_nothing(network, record, split):
        return _score_by_step(network, custom_step, record, split, metrics)
    if record.task == "custom":
        return _score_by_loss(network, record, split, metrics)
    criterion = Loss(record.experiment.loss, record.task, CPU)
    has_positions = record.task == "classes" and bool(record.target_shape)
    sums: list[tuple[torch.Tensor, torch.Tensor | int]] = []
    all_outputs, all_targets, hits = [], [], []
    with run_custom_code(f"model {name} fails in evaluation"):
        for inputs, targets in _test_batches(record, split):
            outputs = call_with(network, map_nested(partial(_in_precision, dtype=dtype), inputs))
            if has_positions:  # a row for each, of which there may be too many to keep
                sums.append(criterion.sum_and_weight(outputs.float(), targets))
                outputs, targets = classes_of_positions(outputs, targets)
                counted = targets != IGNORED_CLASS
                outputs, targets = outputs[counted], targets[counted]
                hits.append(outputs.argmax(dim=1))
            if metrics or not has_positions:
                all_outputs.append(outputs)
            all_targets.append(targets)
    targets = torch.cat(all_targets)
    outputs = torch.cat(all_outputs).double() if all_outputs else torch.empty(0)
    with run_custom_code("the loss fails in evaluation"):
        if has_positions:
            totals, weights = zip(*sums, strict=True)
            loss = float(sum(totals)) / float(sum(weights))
        else:
            given = outputs.float() if criterion.has_tensors else outputs
            loss = criterion.mean(given, targets).item()
    if not math.isfinite(loss):
        raise UserError(f"the loss on the test data is {loss}: check the test part of the data")
    actual: Array = targets.numpy()
    predicted: Array = torch.cat(hits).numpy() if has_positions else outputs.numpy()
    if record.task == "values":
        scores = scores_of_values(actual, predicted, loss)
    elif record.task == "labels":
        actual, predicted = actual.astype(np.int64), (predicted > 0).astype(np.int64)
        scores = scores_of_labels(actual, predicted, loss, record.class_names)
    else:
        predicted = predicted if has_positions else predicted.argmax(axis=1)
        scores = scores_of_classes(actual, predicted, loss, record.class_names)
    custom = custom_scores(metrics, record.task, outputs, targets, record.class_names)
    added = {"metrics": custom | scores.metrics, "first_metric": next(iter(custom), None)}
    return _Scored(scores.model_copy(update=added), actual, predicted)


def _test_batches(record: records.Training, split: PackedSplit) -> Iterator[Batch]:
    """Yield the test samples, normalised."""
    given, size = record.experiment.input, record.experiment.batch_size
    if given.name == "loader" and (given.eval_transform or given.collate or has_live_inputs(split)):
        part = part_of(split, "test")
        samples = LoadedSamples(part, given, record.experiment.seed)
        for start in range(0, len(samples), size):
            keys = [(row, None, None) for row in range(start, min(start + size, len(samples)))]
            yield samples.collate([samples[key] for key in keys])
        return
    normalise = Normaliser(record.mean, record.std, len(record.image_shape))
    inputs, targets = split.images("test"), split.labels("test")
    size = size if record.target_shape else _BATCH_SIZE
    for start in range(0, samples_in(targets), size):
        read = partial(_read, slice(start, start + size))
        yield map_nested(normalise, map_nested(read, inputs)), map_nested(read, targets)


def _read(rows: slice, column: Array) -> torch.Tensor:
    return torch.from_numpy(np.array(column[rows]))


def _in_precision(batch: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert floats. Whole numbers stay: a network looks something up by them."""
    return batch.to(dtype) if batch.is_floating_point() else batch


def _score_by_loss(
    network: nn.Module, record: records.Training, split: PackedSplit, metrics: Metrics
) -> _Scored:
    """Score outputs that only a custom loss and custom metrics can judge."""
    criterion = Loss(record.experiment.loss, record.task, CPU)
    network, all_outputs, all_targets = network.float(), [], []
    loss_sum, weight_sum = 0.0, 0.0
    with run_custom_code(f"model {record.experiment.model.name} fails in evaluation"):
        for inputs, targets in _test_batches(record, split):
            outputs = call_with(network, inputs)
            total, weight = criterion.sum_and_weight(outputs, targets)
            loss_sum, weight_sum = loss_sum + float(total), weight_sum + float(weight)
            if metrics:
                all_outputs.append(outputs)
                all_targets.append(targets)
    scores: dict[str, float] = {}
    if metrics:
        outputs, targets = (map_nested(_joined, *parts) for parts in (all_outputs, all_targets))
        scores = custom_scores(metrics, record.task, outputs, targets, record.class_names)
    return _without_predictions(loss_sum / weight_sum, scores)


def _joined(*parts: torch.Tensor) -> torch.Tensor:
    if len({part.shape[1:] for part in parts}) > 1:
        raise UserError(
            "metrics in params.yaml need outputs and targets of one shape in all batches"
        )
    return torch.cat(parts)


def _predicts_nothing(network: nn.Module, record: records.Training, split: PackedSplit) -> bool:
    """Return True for networks whose outputs only their custom step can judge."""
    if type(network).forward is nn.Module.forward:
        return True
    inputs, targets = next(_test_batches(record, split))
    dtype = next((weight.dtype for weight in network.parameters()), torch.float32)
    with run_custom_code(f"model {record.experiment.model.name} fails in evaluation"):
        outputs = call_with(network, map_nested(partial(_in_precision, dtype=dtype), inputs))
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return True
    counts = (len(targets), len(record.class_names))
    return tuple(outputs.shape) != counts and not (record.target_shape and outputs.dim() > 2)


def _score_by_step(
    network: nn.Module,
    step: CustomStep,
    record: records.Training,
    split: PackedSplit,
    metrics: Metrics,
) -> _Scored:
    """Score a network that a custom step trained: by that step's loss. It has no predictions."""
    if metrics:
        raise UserError(
            "metrics in params.yaml need a network's outputs, and a custom step has none"
        )
    network, loss_sum, count = network.float(), 0.0, 0
    for batch in _test_batches(record, split):
        samples = samples_in(batch[1])
        loss_sum += float(step(network, batch)) * samples
        count += samples
    return _without_predictions(loss_sum / count, {})


def _without_predictions(loss: float, metrics: dict[str, float]) -> _Scored:
    """Return scores of a network whose outputs have no meaning known here."""
    if not math.isfinite(loss):
        raise UserError(f"the loss on the test data is {loss}: check the test part of the data")
    scores = records.DeviceEvaluation(
        test_accuracy=None,
        test_loss=loss,
        macro_f1=None,
        metrics=metrics,
        first_metric=next(iter(metrics), None),
        classes={},
        confusion=(),
    )
    return _Scored(scores, np.empty(0), np.empty(0))


def write_evaluation(judged: Judged, folder: Path) -> None:
    """Write the scores, and a CSV with a row for each target: its value and each prediction."""
    records.write_record(folder / records.EVALUATION, judged.evaluation)
    actual = judged.actual
    if not all(map(len, judged.predicted.values())):
        actual = np.empty(0)  # a custom step predicts nothing
    columns = [array.ravel().tolist() for array in (actual, *judged.predicted.values())]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["actual", *judged.predicted])
    writer.writerows(zip(*columns, strict=True))
    write_text_atomically(folder / records.PREDICTIONS, text.getvalue())
