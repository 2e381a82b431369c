"""How the trained networks do on the test images: every device's network judged on the same device, the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from photofinish.data.packed import PackedSplit
from photofinish.errors import UserError
from photofinish.files import write_summed
from photofinish.own_code import is_reference, users_code
from photofinish.params.experiment import Metrics
from photofinish.results import records
from photofinish.results.learned import load_network
from photofinish.runs.scores import further_scores, scores_of_classes, scores_of_labels, scores_of_values
from photofinish.training.batches import Normaliser
from photofinish.training.losses import Loss
from photofinish.training.torch_device import CPU

_BATCH_SIZE = 1000


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
                _seed_scores(run.seed, *_evaluate_one(load_network(folder, record, run), record, split))
                for run in records.read_seeds(folder, record.experiment)
            )
            devices[device] = scores.model_copy(update={"seeds": seeds})
    evaluation = records.Evaluation(experiment=name, class_names=split.manifest.class_names, devices=devices)
    return Judged(evaluation, split.labels("test"), predicted)


@torch.inference_mode()
def _evaluate_one(
    network: nn.Module, record: records.Training, split: PackedSplit, metrics: Metrics = ()
) -> tuple[records.DeviceEvaluation, npt.NDArray[Any]]:
    """In double precision, so that the judgement adds no rounding of its own to what the devices learned; but for
    one's own network or loss, which may have tensors of single precision itself."""
    if record.class_names != split.manifest.class_names or record.image_shape != split.manifest.shape:
        raise UserError(f"{split.folder} holds other data than the network was trained on: run `dvc repro`")
    dtype = torch.float32 if is_reference(record.experiment.model.name) else torch.float64
    network.to(dtype).eval()
    normalise = Normaliser(record.mean, record.std, len(record.image_shape))
    images = split.images("test")
    targets: npt.NDArray[Any] = np.array(split.labels("test"))
    starts = range(0, len(images), _BATCH_SIZE)
    parts = (torch.from_numpy(np.array(images[start : start + _BATCH_SIZE])) for start in starts)
    with users_code(f"model {record.experiment.model.name} fails in evaluation"):
        outputs = torch.cat([network(_as(dtype, normalise(part))) for part in parts]).double()
    criterion = Loss(record.experiment.loss, record.task, CPU)
    with users_code("the loss fails in evaluation"):
        loss = criterion.mean(outputs.float() if criterion.has_tensors else outputs, torch.from_numpy(targets)).item()
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


def _seed_scores(seed: int, scores: records.DeviceEvaluation, _predicted: npt.NDArray[Any]) -> records.SeedScores:
    return records.SeedScores(
        seed=seed,
        test_accuracy=scores.test_accuracy,
        test_loss=scores.test_loss,
        mean_absolute_error=scores.metrics.get(records.MEAN_ABSOLUTE_ERROR),
    )


def _as(dtype: torch.dtype, items: torch.Tensor) -> torch.Tensor:
    """But for whole numbers, which a network looks something up by."""
    return items.to(dtype) if items.is_floating_point() else items


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
