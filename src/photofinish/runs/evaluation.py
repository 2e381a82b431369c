"""How the trained networks do on the test images: every device's network judged on the same device, the CPU.

`python -m photofinish.runs.evaluation` tries an experiment's metrics before its training.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from photofinish.data import Task
from photofinish.data.packed import PackedSplit
from photofinish.errors import UserError, run_stage
from photofinish.files import write_summed
from photofinish.own_code import is_reference, users_code, with_what_it_takes
from photofinish.params.base import read_plan
from photofinish.params.experiment import TORCHMETRICS, Metric, Metrics, MetricsPlan
from photofinish.results import records
from photofinish.results.learned import load_network
from photofinish.training.batches import Normaliser
from photofinish.training.optimisation import Loss
from photofinish.training.torch_device import CPU

_BATCH_SIZE = 1000
_MOST_TRIED_ITEMS = 1000
Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]
_FOR_TORCHMETRICS: dict[Task, dict[str, Any]] = {
    "classes": {"task": "multiclass"},
    "labels": {"task": "multilabel"},
    "values": {},
}


@dataclass(frozen=True)
class Judged:
    """How an experiment's networks did, and what on."""

    evaluation: records.Evaluation
    actual: npt.NDArray[Any]
    """what each test item is: its class, its values or its labels"""
    predicted: dict[records.DeviceLabel, npt.NDArray[Any]]
    """what each device's network takes it for"""


def evaluate(name: str, learned: dict[records.DeviceLabel, Path], split: PackedSplit, metrics: Metrics = ()) -> Judged:
    """Judge each device's network, by further metrics too; a device that was unavailable is left out."""
    devices: dict[records.DeviceLabel, records.DeviceEvaluation] = {}
    predicted: dict[records.DeviceLabel, npt.NDArray[Any]] = {}
    for device, folder in learned.items():
        record = records.read_training(folder)
        if isinstance(record, records.Training):
            scores, predicted[device] = _evaluate_one(load_network(folder, record), record, split, metrics)
            seeds = tuple(
                _seed_scores(run, *_evaluate_one(load_network(folder, record, run), record, split))
                for run in records.read_seeds(folder, record.experiment)
            )
            devices[device] = scores.model_copy(update={"weights_sha256": record.weights_sha256, "seeds": seeds})
    evaluation = records.Evaluation(experiment=name, class_names=split.manifest.class_names, devices=devices)
    return Judged(evaluation, split.labels("test"), predicted)


@torch.inference_mode()
def _evaluate_one(
    network: nn.Module, record: records.Training, split: PackedSplit, metrics: Metrics = ()
) -> tuple[records.DeviceEvaluation, npt.NDArray[Any]]:
    """In double precision, so that the judgement adds no rounding of its own to what the devices learned; but for
    one's own network or loss, whose tensors may have precisions of their own."""
    if record.class_names != split.manifest.class_names or record.image_shape != split.manifest.shape:
        raise UserError(f"{split.folder} holds other data than the network was trained on: run `dvc repro`")
    is_own = is_reference(record.experiment.model.name)
    dtype = torch.float32 if is_own else torch.float64
    network = (network if is_own else network.to(dtype)).eval()
    normalise = Normaliser(record.mean, record.std, len(record.image_shape))
    images = split.images("test")
    targets: npt.NDArray[Any] = np.array(split.labels("test"))
    starts = range(0, len(images), _BATCH_SIZE)
    parts = (torch.from_numpy(np.array(images[start : start + _BATCH_SIZE])) for start in starts)
    with users_code(f"model {record.experiment.model.name} fails in evaluation"):
        # Whole numbers stay: a network looks something up by them.
        parts = (part.to(dtype) if part.is_floating_point() else part for part in map(normalise, parts))
        outputs = torch.cat([network(part) for part in parts]).double()
    criterion = Loss(record.experiment.loss, record.task, CPU)
    with users_code("the loss fails in evaluation"):
        loss = criterion.mean(outputs.float() if criterion.has_tensors else outputs, torch.from_numpy(targets)).item()
    if not math.isfinite(loss):
        raise UserError(
            f"the loss on the test data is {loss}, though that on the validation data was finite: look at which of the "
            f"test data the network or the loss gives no finite number for"
        )
    further = further_scores(metrics, record.task, outputs, torch.from_numpy(targets))
    predicted: npt.NDArray[Any] = outputs.numpy()
    if record.task == "values":
        scores = scores_of_values(targets, predicted, loss)
    elif record.task == "labels":
        predicted = (predicted > 0).astype(np.int64)
        scores = scores_of_labels(targets.astype(np.int64), predicted, loss, record.class_names)
    else:
        predicted = predicted.argmax(axis=1)
        scores = scores_of_classes(targets, predicted, loss, record.class_names)
    return scores.model_copy(update={"metrics": further | scores.metrics}), predicted


def _seed_scores(
    run: records.SeedRun, scores: records.DeviceEvaluation, _predicted: npt.NDArray[Any]
) -> records.SeedScores:
    return records.SeedScores(
        seed=run.seed,
        weights_sha256=run.weights_sha256,
        test_accuracy=scores.test_accuracy,
        test_loss=scores.test_loss,
        mean_absolute_error=scores.metrics.get(records.MEAN_ABSOLUTE_ERROR),
    )


def write_evaluation(judged: Judged, folder: Path) -> None:
    """The scores, and what each network takes each test item for."""
    records.write_record(folder / records.EVALUATION, judged.evaluation)
    write_summed(folder / records.PREDICTIONS, predictions_csv(judged).encode())


def predictions_csv(judged: Judged) -> str:
    """A row for each test item, as they are stored, what it is and what each device's network takes it for; of several
    values or labels an item has a row each."""
    actual = judged.actual
    if actual.ndim == 2 and all(each.dtype == np.int64 for each in judged.predicted.values()):
        actual = actual.astype(np.int64)
    header = ",".join(["actual", *judged.predicted])
    columns = (each.ravel().tolist() for each in (actual, *judged.predicted.values()))
    rows = zip(*columns, strict=True)
    return "".join(f"{line}\n" for line in [header, *(",".join(map(repr, row)) for row in rows)])


def scores_of_classes(
    actual: Integers, predicted: Integers, loss: float, class_names: tuple[str, ...]
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
    actual: Integers, predicted: Integers, loss: float, names: tuple[str, ...]
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
    squares = np.mean(errors**2)
    metrics = {
        records.MEAN_ABSOLUTE_ERROR: float(np.mean(np.abs(errors))),
        "root_mean_squared_error": float(np.sqrt(squares)),
    }
    if np.ptp(actual, axis=0).any():  # else there is nothing to explain, but for what a mean is rounded by
        metrics["r2"] = float(1 - squares / np.var(actual, axis=0, dtype=float).mean())
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
    right: Integers, taken: Integers, counts: Integers, names: tuple[str, ...]
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


def try_metrics(metrics: Metrics, split: PackedSplit) -> None:
    """Each must make a number of targets as they are and of outputs as they may be; those of the validation part, and
    made-up ones."""
    targets, task = torch.from_numpy(split.labels("validation")), split.manifest.task
    targets = targets[:: -(-len(targets) // _MOST_TRIED_ITEMS)]
    outputs = targets.roll(1, dims=0)
    if task != "values":
        generator = torch.Generator().manual_seed(0)
        outputs = torch.randn(len(targets), len(split.manifest.class_names), generator=generator)
    further_scores(metrics, task, outputs.double(), targets)


def main() -> None:
    """Try the metrics of a plan."""
    parser = argparse.ArgumentParser(
        prog="python -m photofinish.runs.evaluation", description="try an experiment's metrics"
    )
    parser.add_argument("plan", type=Path, help="of an experiment's metrics, a JSON file")
    parser.add_argument("data", type=Path, help="the folder of the packed split")
    args = parser.parse_args()
    try_metrics(read_plan(args.plan, MetricsPlan).metrics, PackedSplit(args.data))


if __name__ == "__main__":
    run_stage(main)
