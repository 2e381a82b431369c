"""Count what a step of each published network computes and keeps, with timm's networks (minutes).

Writes networks.csv.
"""

from __future__ import annotations

import csv
from functools import partial

import timm
import torch
from torch.nn.functional import cross_entropy

from benchmarks.published import FOLDER, rows
from photofinish.inside.counting import count_step

_CLASSES, _IMAGES = 1000, 2
_COUNTS = "flops", "kernels", "convolutions", "saved_tensor_bytes"


def main() -> None:
    """Count each network and sample size of training.csv once."""
    networks = []
    for model, side in dict.fromkeys(
        (row["model"], int(row["image_size"])) for row in rows("training.csv")
    ):
        network = timm.create_model(model, num_classes=_CLASSES).train()
        counted = count_step(network, partial(_loss, network, side))
        name = {"model": model, "image_size": side, "images": _IMAGES}
        networks.append(name | {count: counted[count] for count in _COUNTS})
        print(networks[-1], flush=True)
    with (FOLDER / "networks.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, networks[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(networks)


def _loss(network: torch.nn.Module, side: int) -> torch.Tensor:
    labels = torch.zeros(_IMAGES, dtype=torch.int64)
    return cross_entropy(network(torch.zeros(_IMAGES, 3, side, side)), labels)


if __name__ == "__main__":
    main()
