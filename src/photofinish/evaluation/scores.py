"""Scores of predictions: of classes, labels and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import metrics as sklearn_metrics

from photofinish.data import TaskName
from photofinish.data.packed import Array
from photofinish.results.trained import ClassScores, DeviceEvaluation

_MOST_CLASSES = 1000
"""Largest number of classes with scores for each class."""


def scores_of_classes(
    actual: Array, predicted: Array, loss: float, class_names: tuple[str, ...]
) -> DeviceEvaluation:
    """Score predictions of one class for each sample."""
    accuracy = float(np.mean(actual == predicted))
    if len(class_names) > _MOST_CLASSES:  # such as a vocabulary
        return DeviceEvaluation(main="test_accuracy", test_accuracy=accuracy, test_loss=loss)
    labels = range(len(class_names))
    confusion = sklearn_metrics.confusion_matrix(actual, predicted, labels=labels)
    macro_f1, classes = _scores_of_each(actual, predicted, class_names, labels)
    return DeviceEvaluation(
        main="test_accuracy",
        test_accuracy=accuracy,
        test_loss=loss,
        macro_f1=macro_f1,
        classes=classes,
        confusion=tuple(map(tuple, confusion.tolist())),
    )


def scores_of_labels(
    actual: Array, predicted: Array, loss: float, names: tuple[str, ...]
) -> DeviceEvaluation:
    """Score several labels of 0 or 1 for each sample. Accuracy is the share of correct labels."""
    columns = None if len(names) > 1 else [1]  # scikit-learn treats one column as two classes
    macro_f1, labels = _scores_of_each(actual, predicted, names, columns)
    return DeviceEvaluation(
        main="macro_f1",  # answering no to each label is often accurate
        test_accuracy=float(np.mean(actual == predicted)),
        test_loss=loss,
        macro_f1=macro_f1,
        metrics={"all_labels_right": float((actual == predicted).all(axis=1).mean())},
        classes=labels,
    )


def _scores_of_each(
    actual: Array, predicted: Array, names: tuple[str, ...], labels: Any
) -> tuple[float, dict[str, ClassScores]]:
    """Return the mean F1 of the classes that occur, and each one's scores."""
    columns = sklearn_metrics.precision_recall_fscore_support(
        actual, predicted, labels=labels, zero_division=np.nan
    )
    of_each, columns = columns[2], np.nan_to_num(columns)
    occur = ~np.isnan(of_each)  # among targets or predictions
    scores = {}
    for name, precision, recall, f1, count in zip(names, *columns, strict=True):
        scores[name] = ClassScores(
            precision=float(precision), recall=float(recall), f1=float(f1), image_count=int(count)
        )
    return float(of_each[occur].mean()) if occur.any() else 0.0, scores


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
