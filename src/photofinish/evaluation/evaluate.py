"""Evaluation of each device's networks on the test samples: of classes, labels and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn import metrics as sklearn_metrics
from torch import nn

from photofinish.config.losses_and_metrics import Metrics
from photofinish.custom.reference import is_reference
from photofinish.custom.running import run_custom_code
from photofinish.data import TaskName
from photofinish.data.packed import Array, PackedSplit
from photofinish.data.tasks import TASKS
from photofinish.errors import UserError
from photofinish.files import to_csv, write_text_atomically
from photofinish.models.custom import generators_seeded
from photofinish.nested import call_with, map_nested, samples_in
from photofinish.results.learned import load_network
from photofinish.results.records import (
    EVALUATION,
    PREDICTIONS,
    Evaluation,
    TrainingRecord,
    Unavailable,
    read_seeds,
    read_training,
    write_record,
)
from photofinish.results.trained import DeviceEvaluation, DeviceLabel, NetworkScores, SeedScores
from photofinish.training.batches import Batch, Normaliser, has_live_inputs, part_of
from photofinish.training.input_paths import validation_batch_size
from photofinish.training.loading import LoadedSamples
from photofinish.training.losses import CustomStep, Loss, step_with_a_loss
from photofinish.training.output_metrics import custom_scores, joined, rows_that_count
from photofinish.training.torch_device import CPU

_MOST_CLASSES = 1000
"""Largest number of classes with a confusion matrix."""


_MOST_SAMPLES = 1000
"""Largest batch, as double precision takes twice the memory of validation."""


def scores_of_classes(
    actual: Array, predicted: Array, loss: float, class_names: tuple[str, ...]
) -> DeviceEvaluation:
    accuracy = float(np.mean(actual == predicted))
    if len(class_names) > _MOST_CLASSES:  # such as a vocabulary
        return DeviceEvaluation(main="test_accuracy", test_accuracy=accuracy, test_loss=loss)
    labels = range(len(class_names))
    confusion = sklearn_metrics.confusion_matrix(actual, predicted, labels=labels)
    return DeviceEvaluation(
        main="test_accuracy",
        test_accuracy=accuracy,
        test_loss=loss,
        macro_f1=_macro_f1(actual, predicted, labels),
        confusion=tuple(map(tuple, confusion.tolist())),
    )


def scores_of_labels(
    actual: Array, predicted: Array, loss: float, names: tuple[str, ...]
) -> DeviceEvaluation:
    """Score several labels of 0 or 1 a sample. Accuracy is the share of correct ones."""
    columns = None if len(names) > 1 else [1]  # scikit-learn treats one column as two classes
    return DeviceEvaluation(
        main="macro_f1",  # answering no to each label is often accurate
        test_accuracy=float(np.mean(actual == predicted)),
        test_loss=loss,
        macro_f1=_macro_f1(actual, predicted, columns),
        metrics={"all_labels_right": float((actual == predicted).all(axis=1).mean())},
    )


def _macro_f1(actual: Array, predicted: Array, labels: Any) -> float:
    """Return the mean F1 of the classes that occur among targets or predictions."""
    mean = sklearn_metrics.f1_score(
        actual, predicted, labels=labels, average="macro", zero_division=np.nan
    )
    return float(np.nan_to_num(mean))


def scores_of_values(
    actual: Array, predicted: Array, loss: float, _names: tuple[str, ...] = ()
) -> DeviceEvaluation:
    """Score values by their errors. R2 is the share of the variance that is explained."""
    actual, predicted = actual.astype(float), predicted.astype(float)
    metrics = {
        "mean_absolute_error": float(sklearn_metrics.mean_absolute_error(actual, predicted)),
        "root_mean_squared_error": float(np.sqrt(np.mean((predicted - actual) ** 2))),
    }
    if np.ptp(actual, axis=0).any():  # constant values have no variance
        weighting = "variance_weighted"
        metrics["r2"] = float(sklearn_metrics.r2_score(actual, predicted, multioutput=weighting))
    return DeviceEvaluation(main="mean_absolute_error", test_loss=loss, metrics=metrics)


SCORES: dict[TaskName, Callable[[Array, Array, float, tuple[str, ...]], DeviceEvaluation]] = {
    "classes": scores_of_classes,
    "labels": scores_of_labels,
    "values": scores_of_values,
}
"""Function for each task that scores actual and predicted targets."""


class Scored(NamedTuple):
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


@dataclass(frozen=True)
class Judged:
    evaluation: Evaluation
    actual: Array
    predicted: dict[DeviceLabel, Array]


def evaluate(
    name: str, learned: dict[DeviceLabel, Path], split: PackedSplit, metrics: Metrics = ()
) -> Judged:
    devices: dict[DeviceLabel, DeviceEvaluation] = {}
    predicted: dict[DeviceLabel, Array] = {}
    actual: Array = np.empty(0)
    for device, folder in learned.items():
        record = read_training(folder)
        if isinstance(record, Unavailable):
            continue
        network = load_network(folder, record)
        scores, actual, predicted[device] = score(network, record, split, metrics)
        seeds = []
        for run in read_seeds(folder, record.experiment):
            of_seed = score(load_network(folder, record, run), record, split, metrics).scores
            shared = of_seed.model_dump(include=set(NetworkScores.model_fields))
            shared |= {"seed": run.seed, "weights_sha256": run.weights_sha256}
            seeds.append(SeedScores.model_validate(shared))
        facts = {"weights_sha256": record.weights_sha256, "seeds": tuple(seeds)}
        devices[device] = scores.model_copy(update=facts)
    devices = _with_one_main_score(devices)
    class_names = split.manifest.class_names
    evaluation = Evaluation(experiment=name, class_names=class_names, devices=devices)
    return Judged(evaluation, actual, predicted)


def _with_one_main_score(
    devices: dict[DeviceLabel, DeviceEvaluation],
) -> dict[DeviceLabel, DeviceEvaluation]:
    """Return the scores with a main one that all networks have."""
    networks = [network for scores in devices.values() for network in (scores, *scores.seeds)]
    mains = [*dict.fromkeys(network.main for network in networks), "test_loss"]
    main = next(main for main in mains if all(main in network.values for network in networks))
    update = {"main": main}
    changed = {}
    for device, scores in devices.items():
        seeds = tuple(seed.model_copy(update=update) for seed in scores.seeds)
        changed[device] = scores.model_copy(update=update | {"seeds": seeds})
    return changed


def write_evaluation(judged: Judged, folder: Path) -> None:
    write_record(folder / EVALUATION, judged.evaluation)
    actual = judged.actual
    if not all(map(len, judged.predicted.values())):
        actual = np.empty(0)  # a custom step predicts nothing
    columns = [array.ravel().tolist() for array in (actual, *judged.predicted.values())]
    text = to_csv(["actual", *judged.predicted], zip(*columns, strict=True))
    write_text_atomically(folder / PREDICTIONS, text)
