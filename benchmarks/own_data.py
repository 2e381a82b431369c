"""Compare training on a custom data set with a built-in one: `python -m benchmarks.own_data`.

LeNet trains on the same images from both, by turns, and must come to the same weights. Times are
processor times on one thread. A ratio of 1 means that a custom data set costs nothing once it is
packed.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from benchmarks.data import Data, Part
from benchmarks.timing import spread
from photofinish.config.datasets import CustomDataset, DatasetPlan
from photofinish.config.experiment import Experiment
from photofinish.data.packed import PackedSplit
from photofinish.data.sources import download
from photofinish.data.split import read_raw, split
from photofinish.models.registry import build_model
from photofinish.profiling.scratch import warm_up
from photofinish.source_code import custom_code_hashes
from photofinish.training.torch_device import CPU, configure_torch
from photofinish.training.trainer import Trainer

ROUNDS = 7
EPOCHS = 3
MOST = 1.05
SIZES = {"validation": 1000, "test": 1000}
OURS = {"source": "synthetic", "images": 7000, "shape": [1, 28, 28], "classes": 10, **SIZES}
THEIRS = {"source": "./scans.py:Scans", "folder": "ours"}
SCANS = """
import numpy as np, torch

class Scans:
    def __init__(self, folder, part):
        self.images = np.load(f"{folder}/{part}-images.npy")
        self.labels = np.load(f"{folder}/{part}-labels.npy")
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, index):
        return torch.from_numpy(self.images[index]), self.labels[index]
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # where users' files are looked for
        Path("scans.py").write_text(SCANS, encoding="utf-8")
        ours, theirs = _packed("ours", OURS), _packed("theirs", THEIRS)
        configure_torch(CPU, "fp32", threads=1)
        for source in ("resident", "loader"):
            ratios, network = [], _train(ours, source)[1]  # the first of all takes longer
            for turn in range(ROUNDS):
                sides = [ours, theirs][:: -1 if turn % 2 else 1]
                seconds = {side: _train(side, source) for side in sides}
                assert all(
                    torch.equal(tensor, network[name])
                    for _, own in seconds.values()
                    for name, tensor in own.items()
                )
                ratios.append(seconds[theirs][0] / seconds[ours][0])
            ratio = spread(ratios)
            reached = "reached" if ratio.median <= MOST else "NOT reached"
            print(
                f"input {source}: an epoch takes {ratio.median:.3f}x "
                f"({ratio.lowest:.3f} to {ratio.highest:.3f}) of "
                f"what it takes with the built-in source, at most {MOST}x: {reached}",
                flush=True,
            )


def _packed(name: str, settings: Mapping[str, object]) -> PackedSplit:
    plan = DatasetPlan.model_validate_json(
        json.dumps({"name": name, "dataset": settings, "local_files": None})
    )
    if isinstance(plan.dataset, CustomDataset):
        plan = plan.model_copy(update={"custom_code": custom_code_hashes([plan.dataset.reference])})
    download(plan, Path(f"raw-{name}"))
    split(plan, read_raw(plan, Path(f"raw-{name}")), Path(name))
    return PackedSplit(Path(name))


def _train(packed: PackedSplit, source: str) -> tuple[float, dict[str, torch.Tensor]]:
    """The seconds of an epoch, with its validation, and the weights."""
    settings = {
        "dataset": "made-up",
        "model": {"name": "lenet"},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "seed": 0,
    }
    further = {"input": {"name": source}, "precision": "fp32", "epochs": EPOCHS, "batch_size": 1000}
    experiment = Experiment.model_validate({**settings, **further})
    manifest, classes = packed.manifest, len(packed.manifest.class_names)
    train, validation = (
        Part(packed.images(part), packed.labels(part)) for part in ("train", "validation")
    )
    data = Data(train, validation, classes, is_real=False, mean=manifest.mean, std=manifest.std)
    network = build_model(experiment.model, manifest.shape, classes, experiment.seed)
    trainer = Trainer(experiment, network, *data.batches(experiment, CPU), CPU)
    warm_up(trainer)
    started_seconds = time.process_time()
    list(trainer.epochs())
    return (time.process_time() - started_seconds) / EPOCHS, network.state_dict()


if __name__ == "__main__":
    main()
