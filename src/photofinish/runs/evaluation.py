"""How the trained networks do on the test images: every device's network judged on the same device, the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from photofinish.data.images import Int64Array
from photofinish.data.packed import PackedSplit
from photofinish.errors import UserError
from photofinish.files import write_summed
from photofinish.results import records
from photofinish.results.learned import load_network
from photofinish.training.batches import Normaliser
from photofinish.training.losses import Loss
from photofinish.training.torch_device import CPU

_BATCH_SIZE = 1000


@dataclass(frozen=True)
class Judged:
    """How an experiment's networks did, and what on."""

    evaluation: records.Evaluation
    actual: Int64Array
    """the class of each test image"""
    predicted: dict[records.DeviceLabel, Int64Array]
    """what each device's network takes it for"""


def evaluate(name: str, learned: dict[records.DeviceLabel, Path], split: PackedSplit) -> Judged:
    """Judge each device's network; a device that was unavailable is left out."""
    devices: dict[records.DeviceLabel, records.DeviceEvaluation] = {}
    predicted: dict[records.DeviceLabel, Int64Array] = {}
    for device, folder in learned.items():
        record = records.read_training(folder)
        if isinstance(record, records.Training):
            devices[device], predicted[device] = _evaluate_one(load_network(folder, record), record, split)
    evaluation = records.Evaluation(experiment=name, class_names=split.manifest.class_names, devices=devices)
    return Judged(evaluation, split.labels("test"), predicted)


@torch.inference_mode()
def _evaluate_one(
    network: nn.Module, record: records.Training, split: PackedSplit
) -> tuple[records.DeviceEvaluation, Int64Array]:
    """In double precision, so that the judgement adds no rounding of its own to what the devices learned."""
    if record.class_names != split.manifest.class_names or record.image_shape != split.manifest.shape:
        raise UserError(f"{split.folder} holds other data than the network was trained on: run `dvc repro`")
    network.double().eval()
    normalise = Normaliser(record.mean, record.std, len(record.image_shape))
    images, labels = split.images("test"), split.labels("test")
    starts = range(0, len(images), _BATCH_SIZE)
    parts = (torch.from_numpy(np.array(images[start : start + _BATCH_SIZE])) for start in starts)
    outputs = torch.cat([network(_double(normalise(part))) for part in parts])
    loss = Loss(record.experiment.loss, CPU).mean(outputs, torch.from_numpy(np.array(labels))).item()
    predicted: Int64Array = outputs.argmax(dim=1).numpy()
    return score(labels, predicted, loss, record.class_names), predicted


def _double(items: torch.Tensor) -> torch.Tensor:
    """But for whole numbers, which a network looks something up by."""
    return items.double() if items.is_floating_point() else items


def score(
    labels: Int64Array, predicted: Int64Array, loss: float, class_names: tuple[str, ...]
) -> records.DeviceEvaluation:
    """What is told of a network that took images of these labels for these classes."""
    count = len(class_names)
    confusion = np.bincount(labels * count + predicted, minlength=count * count).reshape(count, count)
    right, taken, counts = np.diag(confusion), confusion.sum(axis=0), confusion.sum(axis=1)
    # What divides by nothing has nothing above either, and scores 0.
    precision, recall = right / np.maximum(taken, 1), right / np.maximum(counts, 1)
    f1 = 2 * right / np.maximum(taken + counts, 1)
    return records.DeviceEvaluation(
        test_accuracy=float(np.mean(labels == predicted)),
        test_loss=loss,
        macro_f1=float(f1.mean()),
        classes={
            class_name: records.ClassScores(
                precision=float(precision[index]),
                recall=float(recall[index]),
                f1=float(f1[index]),
                image_count=int(counts[index]),
            )
            for index, class_name in enumerate(class_names)
        },
        confusion=tuple(map(tuple, confusion.tolist())),
    )


def write_evaluation(judged: Judged, folder: Path) -> None:
    """The scores, and what each network takes each test image for."""
    records.write_record(folder / records.EVALUATION, judged.evaluation)
    write_summed(folder / records.PREDICTIONS, predictions_csv(judged).encode())


def predictions_csv(judged: Judged) -> str:
    """A row for each test image, as they are stored: its class and what each device's network takes it for."""
    header = ",".join(["actual", *judged.predicted])
    rows = zip(judged.actual.tolist(), *(each.tolist() for each in judged.predicted.values()), strict=True)
    return "".join(f"{line}\n" for line in [header, *(",".join(map(str, row)) for row in rows)])
