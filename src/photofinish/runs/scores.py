"""What is told of a network by the targets of the test items and what it gives for them: of classes, labels, values."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from photofinish.data.images import Int64Array, Task
from photofinish.errors import UserError
from photofinish.own_code import users_code, with_what_it_takes
from photofinish.params.experiment import TORCHMETRICS, Metric, Metrics
from photofinish.results import records

Floats = npt.NDArray[np.floating[Any]]
_FOR_TORCHMETRICS: dict[Task, dict[str, Any]] = {
    "classes": {"task": "multiclass"},
    "labels": {"task": "multilabel"},
    "values": {},
}


def scores_of_classes(
    actual: Int64Array, predicted: Int64Array, loss: float, class_names: tuple[str, ...]
) -> records.DeviceEvaluation:
    """Of a network that took items of these classes for those."""
    count = len(class_names)
    confusion = np.bincount(actual * count + predicted, minlength=count * count).reshape(count, count)
    right, taken, counts = np.diag(confusion), confusion.sum(axis=0), confusion.sum(axis=1)
    f1, classes = _of_each(right, taken, counts, class_names)
    return records.DeviceEvaluation(
        test_accuracy=float(np.mean(actual == predicted)),
        test_loss=loss,
        macro_f1=f1,
        classes=classes,
        confusion=tuple(map(tuple, confusion.tolist())),
    )


def scores_of_labels(
    actual: Int64Array, predicted: Int64Array, loss: float, names: tuple[str, ...]
) -> records.DeviceEvaluation:
    """Of several labels an item, a column each: 1 for yes, 0 for no. The accuracy is the share of right ones."""
    right, taken, counts = (actual & predicted).sum(axis=0), predicted.sum(axis=0), actual.sum(axis=0)
    f1, labels = _of_each(right, taken, counts, names)
    return records.DeviceEvaluation(
        test_accuracy=float(np.mean(actual == predicted)),
        test_loss=loss,
        macro_f1=f1,
        metrics={"all_labels_right": float((actual == predicted).all(axis=1).mean())},
        classes=labels,
        confusion=(),
    )


def scores_of_values(actual: Floats, predicted: Floats, loss: float) -> records.DeviceEvaluation:
    """How far off values are, over all of an item's; R2 is the share of their variance that is explained."""
    errors = np.asarray(predicted, dtype=float) - actual
    squares, variance = np.mean(errors**2), np.mean((actual - actual.mean(axis=0)) ** 2)
    metrics = {
        records.MEAN_ABSOLUTE_ERROR: float(np.mean(np.abs(errors))),
        "root_mean_squared_error": float(np.sqrt(squares)),
    }
    if variance > 0:
        metrics["r2"] = float(1 - squares / variance)
    return records.DeviceEvaluation(
        test_accuracy=None, test_loss=loss, macro_f1=None, metrics=metrics, classes={}, confusion=()
    )


def further_scores(metrics: Metrics, task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """Those that the user names, by their labels; of what the network gives, one number each."""
    scores = {metric.label: _score(metric, task, outputs, targets) for metric in metrics}
    for metric in metrics:
        if not math.isfinite(score := scores[metric.label]):
            print(f"note: metric {metric.name} gives {score}, which is left out")
            del scores[metric.label]
    return scores


def _score(metric: Metric, task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> float:
    reference, arguments = metric.reference, metric.arguments
    compute = reference.load()
    if reference.module == TORCHMETRICS:
        offered = _FOR_TORCHMETRICS[task] | dict.fromkeys(("num_classes", "num_labels"), outputs.shape[-1])
        arguments = with_what_it_takes(compute, offered, arguments)
        outputs = {"classes": outputs.softmax(1), "labels": outputs.sigmoid(), "values": outputs}[task].squeeze(1)
        targets = targets.squeeze(1) if task == "values" and targets.shape[1] == 1 else targets
        targets = targets if task == "values" else targets.long()
    else:
        outputs = outputs.float()  # as in training: tensors that it holds are of single precision
    with users_code(f"metric {metric.name} fails"):
        made = compute(**arguments) if isinstance(compute, type) else partial(compute, **arguments)
        score = made(outputs, targets)
    try:
        return float(score)
    except (TypeError, ValueError, RuntimeError):
        told = f"{len(np.ravel(score))} numbers" if isinstance(score, torch.Tensor | np.ndarray) else f"{score!r:.100}"
        raise UserError(f"metric {metric.name} gives {told}: it must give one number") from None


def _of_each(
    right: Int64Array, taken: Int64Array, counts: Int64Array, names: tuple[str, ...]
) -> tuple[float, dict[str, records.ClassScores]]:
    """The mean F1, and the scores of each class or label."""
    # What divides by nothing has nothing above either, and scores 0.
    precision, recall = right / np.maximum(taken, 1), right / np.maximum(counts, 1)
    f1 = 2 * right / np.maximum(taken + counts, 1)
    scores = {
        name: records.ClassScores(
            precision=float(precision[index]),
            recall=float(recall[index]),
            f1=float(f1[index]),
            image_count=int(counts[index]),
        )
        for index, name in enumerate(names)
    }
    return float(f1.mean()), scores
