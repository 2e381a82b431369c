"""Scores of predictions: of classes, labels and values, and by the metrics of params.yaml."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn import metrics as sklearn_metrics

from photofinish.config.metrics import TORCHMETRICS, Metric, Metrics
from photofinish.custom.running import accepted_arguments, as_function, run_custom_code
from photofinish.data import TaskName
from photofinish.data.tasks import Task
from photofinish.errors import UserError
from photofinish.nested import map_nested
from photofinish.results import records

_NOT_IN_MLFLOW = re.compile(r"[^\w./ -]")
"""Characters that no name of MLflow's metrics may have."""
_MOST_CLASSES = 1000
"""Number of classes up to which each has scores."""
Array = npt.NDArray[Any]


def scores_of_classes(
    actual: Array, predicted: Array, loss: float, class_names: tuple[str, ...]
) -> records.DeviceEvaluation:
    """Score predictions of one class for each sample."""
    accuracy = float(np.mean(actual == predicted))
    if len(class_names) > _MOST_CLASSES:  # a vocabulary
        return records.DeviceEvaluation(
            test_accuracy=accuracy, test_loss=loss, macro_f1=None, classes={}, confusion=()
        )
    labels = range(len(class_names))
    confusion = sklearn_metrics.confusion_matrix(actual, predicted, labels=labels)
    macro_f1, classes = _scores_of_each(actual, predicted, class_names, labels)
    return records.DeviceEvaluation(
        test_accuracy=accuracy,
        test_loss=loss,
        macro_f1=macro_f1,
        classes=classes,
        confusion=tuple(map(tuple, confusion.tolist())),
    )


def scores_of_labels(
    actual: Array, predicted: Array, loss: float, names: tuple[str, ...]
) -> records.DeviceEvaluation:
    """Score several labels of 0 or 1 for each sample. The accuracy is the share of right labels."""
    columns = None if len(names) > 1 else [1]  # scikit-learn takes one column for two classes
    macro_f1, labels = _scores_of_each(actual, predicted, names, columns)
    return records.DeviceEvaluation(
        test_accuracy=float(np.mean(actual == predicted)),
        test_loss=loss,
        macro_f1=macro_f1,
        metrics={"all_labels_right": float((actual == predicted).all(axis=1).mean())},
        classes=labels,
        confusion=(),
    )


def _scores_of_each(
    actual: Array, predicted: Array, names: tuple[str, ...], labels: Any
) -> tuple[float, dict[str, records.ClassScores]]:
    """Return the mean F1, and the scores of each class. One that is never predicted scores 0."""
    columns = sklearn_metrics.precision_recall_fscore_support(
        actual, predicted, labels=labels, zero_division=0
    )
    scores = {}
    for name, precision, recall, f1, count in zip(names, *columns, strict=True):
        scores[name] = records.ClassScores(
            precision=float(precision), recall=float(recall), f1=float(f1), image_count=int(count)
        )
    return float(np.mean(columns[2])), scores


def scores_of_values(
    actual: Array, predicted: Array, loss: float, _names: tuple[str, ...] = ()
) -> records.DeviceEvaluation:
    """Score values by their errors. R2 is the explained share of their variance."""
    actual, predicted = actual.astype(float), predicted.astype(float)
    metrics = {
        records.MEAN_ABSOLUTE_ERROR: float(sklearn_metrics.mean_absolute_error(actual, predicted)),
        "root_mean_squared_error": float(np.sqrt(np.mean((predicted - actual) ** 2))),
    }
    if np.ptp(actual, axis=0).any():  # constant values have no variance
        weighting = "variance_weighted"
        metrics["r2"] = float(sklearn_metrics.r2_score(actual, predicted, multioutput=weighting))
    return records.DeviceEvaluation(
        test_accuracy=None,
        test_loss=loss,
        macro_f1=None,
        metrics=metrics,
        classes={},
        confusion=(),
    )


SCORES: dict[
    TaskName, Callable[[Array, Array, float, tuple[str, ...]], records.DeviceEvaluation]
] = {
    "classes": scores_of_classes,
    "labels": scores_of_labels,
    "values": scores_of_values,
}
"""Scores of actual and predicted targets, with the loss and the names, for each task."""


def custom_scores(
    metrics: Metrics,
    task: Task,
    outputs: Any,
    targets: Any,
    class_names: tuple[str, ...] = (),
) -> dict[str, float]:
    """Return the custom metrics, without those that are not finite.

    One that gives a number for each class or label has as many scores: `f1_score cat`.
    """
    scores = {}
    for metric in metrics:
        numbers = _custom_score(metric, task, outputs, targets)
        names = [metric.label]
        if len(numbers) > 1:
            each = class_names if len(class_names) == len(numbers) else range(len(numbers))
            names = [_NOT_IN_MLFLOW.sub("-", f"{metric.label} {name}") for name in each]
        for name, number in zip(names, numbers, strict=True):
            if math.isfinite(number):
                scores[name] = number
            else:
                print(f"note: metric {name} gives {number}, which is left out")
    return scores


def _custom_score(metric: Metric, task: Task, outputs: Any, targets: Any) -> list[float]:
    """Return the one number that a metric gives, or a number for each class."""
    compute, arguments = metric.reference.load(), metric.arguments
    if metric.reference.module == TORCHMETRICS:
        offered: dict[str, Any] = dict.fromkeys(("num_classes", "num_labels"), outputs.shape[-1])
        if task.torchmetrics:
            offered["task"] = task.torchmetrics
        outputs, targets = task.metric_inputs(outputs, targets)
        arguments = accepted_arguments(compute, offered, arguments)
    else:
        # Tensors of a custom metric have single precision.
        outputs = map_nested(lambda part: part.float(), outputs)
    with run_custom_code(f"metric {metric.name} fails"):
        score = as_function(compute, arguments)(outputs, targets)
    try:
        numbers = torch.as_tensor(score, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.empty(0)
    if numbers.dim() > 1 or not numbers.numel():
        raise UserError(
            f"metric {metric.name} gives {score!r:.100}: it must give one number, or one for each "
            f"class or label"
        )
    return numbers.flatten().tolist()
