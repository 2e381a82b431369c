"""Count what a step of each published network computes and keeps: writes networks.csv (a minute)."""

from __future__ import annotations

import csv
from functools import partial

import timm
import torch
from torch.nn.functional import cross_entropy

from benchmarks.published import FOLDER, rows
from photofinish.measuring.operations import count_step

_IMAGES, _CLASSES = 2, 1000


def main() -> None:
    """Of each network and size of images in training.csv, once."""
    wanted = dict.fromkeys((row["model"], int(row["image_size"])) for row in rows("training.csv"))
    counted = []
    for model, side in wanted:
        network = timm.create_model(model, num_classes=_CLASSES).train()
        images, labels = torch.zeros(_IMAGES, 3, side, side), torch.zeros(_IMAGES, dtype=torch.int64)
        step = count_step(network, partial(_loss, network, images, labels))
        parameter_bytes = sum(each.nbytes for each in network.parameters())
        row = {"model": model, "image_size": side, "images": _IMAGES, "parameter_bytes": parameter_bytes}
        counted.append(row | step._asdict())
        print(counted[-1], flush=True)
    with (FOLDER / "networks.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, counted[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(counted)


def _loss(network: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(network(images), labels)


if __name__ == "__main__":
    main()
