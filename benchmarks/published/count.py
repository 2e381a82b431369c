"""Count what a step of each published network computes and keeps, with timm's networks (minutes).

Writes networks.csv, and products.csv with each product's values, as a constant and per sample.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import timm
import torch
from torch.nn.functional import cross_entropy

from benchmarks.published import FOLDER, rows
from photofinish.profiling.counting import count_step
from photofinish.profiling.step_count import StepCount

_CLASSES = 1000


def main() -> None:
    """Count each network and sample size of training.csv once."""
    networks, products = [], []
    for model, side in dict.fromkeys(
        (row["model"], int(row["image_size"])) for row in rows("training.csv")
    ):
        name = {"model": model, "image_size": side}
        counted = _step(model, side, 2, "cpu")  # without values, storages can't be distinguished
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
        networks.append(name | {"images": 2, "parameter_bytes": parameter_bytes} | step)
        shapes = Counter(
            tuple(each.items())
            for each in _by_image(*(_step(model, side, images, "meta") for images in (2, 4)))
        )
        products += [name | {"count": count} | dict(shape) for shape, count in shapes.items()]
        print(networks[-1], flush=True)
    for file_name, table in {"networks.csv": networks, "products.csv": products}.items():
        with (FOLDER / file_name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, table[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)


def _step(model: str, side: int, images: int, device: str) -> StepCount:
    with torch.device(device):
        network = timm.create_model(model, num_classes=_CLASSES).train()
        batch = torch.zeros(images, 3, side, side), torch.zeros(images, dtype=torch.int64)
        return count_step(network, partial(_loss, network, *batch))


def _loss(network: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(network(images), labels)


def _by_image(two: StepCount, four: StepCount) -> Iterator[dict[str, Any]]:
    for small, large in zip(two.products, four.products, strict=True):
        row = {"least_flops": large.least_flops // 4}
        for name in ("read_values", "written_values"):
            of_two, of_four = getattr(small, name), getattr(large, name)
            row |= {name: 2 * of_two - of_four, f"{name}_an_image": (of_four - of_two) // 2}
        yield row


if __name__ == "__main__":
    main()
