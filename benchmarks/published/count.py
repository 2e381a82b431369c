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
from photofinish.inside.counting import StepCount, count_step

_CLASSES, _IMAGES = 1000, 2


def main() -> None:
    """Count each network and sample size of training.csv once."""
    networks = []
    for model, side in dict.fromkeys(
        (row["model"], int(row["image_size"])) for row in rows("training.csv")
    ):
        name = {"model": model, "image_size": side}
        counted = _step(model, side)
        parameter_bytes = sum(
            each.nbytes for each in timm.create_model(model, num_classes=_CLASSES).parameters()
        )
        step = {
            "flops": counted.flops,
            "kernels": counted.kernels,
            "convolutions": counted.convolutions,
            "kept_values": counted.saved_activations,
            "all_kept_bytes": counted.saved_tensor_bytes,
        }
        networks.append(name | {"images": _IMAGES, "parameter_bytes": parameter_bytes} | step)
        print(networks[-1], flush=True)
    with (FOLDER / "networks.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, networks[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(networks)


def _step(model: str, side: int) -> StepCount:
    network = timm.create_model(model, num_classes=_CLASSES).train()
    batch = torch.zeros(_IMAGES, 3, side, side), torch.zeros(_IMAGES, dtype=torch.int64)
    return count_step(network, partial(_loss, network, *batch))


def _loss(network: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(network(images), labels)


if __name__ == "__main__":
    main()
