"""Scores of predictions: of classes, labels and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import metrics as sklearn_metrics

from photofinish.data import TaskName
from photofinish.data.packed import Array
from photofinish.results.trained import DeviceEvaluation

_MOST_CLASSES = 1000
"""Largest number of classes with a confusion matrix."""


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
