"""The loop of PyTorch's tutorials: a Dataset, a DataLoader, losses read at every step.

Only the order of the images is set, to be the other sides'.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision import transforms

from benchmarks.data import Part
from benchmarks.timing import NowSeconds
from benchmarks.workloads import Workload

Item = tuple[torch.Tensor, int]


class ArrayImages(Dataset[Item]):
    """Images like torchvision's MNIST: an array in memory. Each first becomes a PIL image."""

    def __init__(self, part: Part, transform: transforms.Compose) -> None:
        self.images, self.labels, self.transform = part.images, part.labels.tolist(), transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Item:
        image = self.images[index]
        picture = Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
        return self.transform(picture), self.labels[index]


class CsvImages(Dataset[Item]):
    """Images as in PyTorch's tutorial on custom data sets: a CSV of files."""

    def __init__(self, part: Part, transform: transforms.Compose) -> None:
        assert part.csv_file is not None
        with part.csv_file.open(encoding="utf-8", newline="") as text:
            self.rows = [(row["path"], int(row["label"])) for row in csv.DictReader(text)]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Item:
        path, label = self.rows[index]
        return self.transform(Image.open(path).convert("RGB")), label


class SetOrder(Sampler[int]):
    def __init__(self, workload: Workload) -> None:
        self.workload, self.epoch = workload, 0

    def __len__(self) -> int:
        return len(self.workload.data.train.labels)

    def __iter__(self) -> Iterator[int]:
        order = self.workload.order(self.epoch).tolist()
        self.epoch += 1
        return iter(order)


def loaders(workload: Workload) -> tuple[DataLoader[Item], DataLoader[Item]]:
    data = workload.data
    steps = [transforms.ToTensor(), transforms.Normalize(data.mean, data.std)]
    if data.train.csv_file:
        steps.insert(0, transforms.Resize(data.train.images.shape[2:]))
    kind = CsvImages if data.train.csv_file else ArrayImages
    training, validation = (
        kind(part, transforms.Compose(steps)) for part in (data.train, data.validation)
    )
    return (
        DataLoader(training, batch_size=workload.batch_size, sampler=SetOrder(workload)),
        DataLoader(validation, batch_size=workload.batch_size),
    )


def run(workload: Workload, now_seconds: NowSeconds) -> tuple[list[float], nn.Module]:
    training, validation = loaders(workload)
    model, loss_function = workload.network(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=workload.learning_rate, momentum=workload.momentum
    )
    seconds = []
    for _ in range(workload.epochs):
        started_seconds = now_seconds()
        train(model, training, loss_function, optimizer)
        validate(model, validation, loss_function)
        seconds.append(now_seconds() - started_seconds)
    return seconds, model


def train(
    model: nn.Module,
    loader: DataLoader[Item],
    loss_function: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> float:
    model.train()
    running_loss = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = loss_function(model(images), labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    return running_loss / len(loader)


def validate(
    model: nn.Module, loader: DataLoader[Item], loss_function: nn.Module
) -> tuple[float, float]:
    model.eval()
    loss, correct, total = 0.0, 0, 0
    with torch.no_grad():
        for images, labels in loader:
            outputs = model(images)
            loss += loss_function(outputs, labels).item()
            correct += (outputs.argmax(1) == labels).sum().item()
            total += len(labels)
    return loss / len(loader), correct / total
