"""Metrics from params.yaml, computed from a network's outputs and the targets."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import torch

from photofinish.custom.running import accepted_arguments, as_function, run_custom_code
from photofinish.data.tasks import Task, classes_of_positions, has_positions
from photofinish.errors import UserError
from photofinish.nested import map_nested

if TYPE_CHECKING:
    from collections.abc import Sequence

    from photofinish.config.losses_and_metrics import Metric, Metrics

_NOT_IN_MLFLOW = re.compile(r"[^\w./ -]")
"""Characters that are not allowed in names of MLflow's metrics."""


def rows_that_count(task: Task, outputs: Any, targets: Any) -> tuple[Any, Any]:
    """Return a row for each position that is not ignored. Other targets are not changed."""
    if not task.is_one_of_many or not has_positions(targets):
        return outputs, targets
    outputs, targets = classes_of_positions(outputs, targets)
    is_counted = targets != task.ignore_index
    return outputs[is_counted], targets[is_counted]


def joined(batches: Sequence[Any]) -> Any:
    return map_nested(lambda *parts: torch.cat(parts), *batches)


def monitored_value(metric: Metric, task: Task, outputs: Any, targets: Any) -> float | None:
    """Return the metric that early stopping follows, or None if it is not finite."""
    if isinstance(outputs, torch.Tensor):
        outputs = outputs.double()
    numbers = _custom_score(metric, task, outputs, targets)
    if len(numbers) > 1:
        raise UserError(
            f"early_stopping.monitor in params.yaml is {metric.label}, which returns "
            f"{len(numbers)} numbers: make it return one, for example with `average: macro`"
        )
    return numbers[0] if math.isfinite(numbers[0]) else None


def custom_scores(
    metrics: Metrics, task: Task, outputs: Any, targets: Any, class_names: tuple[str, ...] = ()
) -> dict[str, float]:
    """Return the finite scores of the custom metrics.

    A metric with a number for each class or label has a score for each: `f1_score cat`.
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
                print(f"note: metric {name} returned {number}, which is left out")
    return scores


def _custom_score(metric: Metric, task: Task, outputs: Any, targets: Any) -> list[float]:
    """Return a metric's only number, or its number for each class."""
    compute, arguments = metric.reference.load(), metric.arguments
    if metric.is_of_torchmetrics:
        offered: dict[str, Any] = dict.fromkeys(("num_classes", "num_labels"), outputs.shape[-1])
        if task.torchmetrics:
            offered["task"] = task.torchmetrics
        outputs, targets = task.metric_inputs(outputs, targets)
        arguments = accepted_arguments(compute, offered, arguments)
    else:
        # Tensors in a custom metric have single precision.
        outputs = map_nested(lambda part: part.float(), outputs)
    with run_custom_code(f"metric {metric.name} fails"):
        score = as_function(compute, arguments)(outputs, targets)
    try:
        numbers = torch.as_tensor(score, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.empty(0)
    if numbers.dim() > 1 or not numbers.numel():
        raise UserError(
            f"metric {metric.name} returns {score!r:.100}, but must return one number, or one for "
            f"each class or label"
        )
    return numbers.flatten().tolist()
