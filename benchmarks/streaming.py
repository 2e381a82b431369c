"""Time an image that is read from disk when it is needed, in little memory.

`python -m benchmarks.streaming` trains a linear network for two epochs with `input: loader`, on ten
thousand, a hundred thousand and a million made-up images of 28x28, each in a process that may
allocate a tenth of the largest split at most. Times are processor times.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.data import Data, Part
from photofinish.config.experiment import Experiment
from photofinish.models.registry import build_model
from photofinish.profiling.scratch import warm_up
from photofinish.training.torch_device import CPU, configure_torch
from photofinish.training.trainer import Trainer

COUNTS = (10_000, 100_000, 1_000_000)
SHAPE = (1, 28, 28)
CLASSES = 10
VALIDATION_IMAGES = 1_000
ALLOWED_BYTES = max(COUNTS) * int(np.prod(SHAPE)) // 10


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        images = Path(scratch) / "images.npy"
        for count in COUNTS:
            _make(images, count)
            subprocess.run([sys.executable, "-m", "benchmarks.streaming", str(images)], check=True)


def _make(path: Path, count: int) -> None:
    random = np.random.default_rng(0)
    images = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(count, *SHAPE))
    for start in range(0, count, 10_000):
        images[start : start + 10_000] = random.integers(
            0, 256, size=images[start : start + 10_000].shape
        )


def train(path: Path) -> None:
    configure_torch(CPU, "fp32", threads=1)
    images = np.load(path, mmap_mode="r")
    labels = np.arange(len(images), dtype=np.int64) % CLASSES
    settings = {
        "dataset": "made-up",
        "model": {"name": "linear"},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "seed": 0,
    }
    further = {"schedule": {"name": "constant"}, "input": {"name": "loader"}, "precision": "fp32"}
    experiment = Experiment.model_validate({**settings, **further, "epochs": 2, "batch_size": 128})
    few = Part(images[:VALIDATION_IMAGES], labels[:VALIDATION_IMAGES])
    data = Data(Part(images, labels), few, CLASSES, is_real=False, mean=(0.5,), std=(0.3,))
    network = build_model(experiment.model, SHAPE, CLASSES, experiment.seed)
    trainer = Trainer(experiment, network, *data.batches(experiment, CPU), CPU)
    warm_up(trainer)
    _allow_more(ALLOWED_BYTES)
    started_seconds = time.process_time()
    list(trainer.epochs())
    seconds = (time.process_time() - started_seconds) / (experiment.epochs * len(images))
    size, allowed = images.nbytes / 1e6, ALLOWED_BYTES / 1e6
    print(
        f"{len(images):,} images ({size:,.0f} MB, {allowed:.0f} MB allowed): "
        f"{seconds * 1e6:.1f} us an image",
        flush=True,
    )


def _allow_more(more_bytes: int) -> None:
    """Limit what is allocated from here on. Memory-mapped files don't count."""
    [line] = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmData")
    ]
    limit_bytes = int(line.split()[1]) * 1024 + more_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


if __name__ == "__main__":
    if sys.argv[1:]:
        train(Path(sys.argv[1]))
    else:
        main()
