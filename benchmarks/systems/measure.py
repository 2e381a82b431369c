"""One job on one device: an epoch's time, from whole epochs or from steps, and the accuracy."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import torch

from benchmarks.probe.trainers import LOADER, how, trainer
from benchmarks.systems.images import Images
from benchmarks.systems.jobs import Job
from photofinish.training.torch_device import device_name
from photofinish.training.trainer import Trainer

_LEAST_STEPS, _TRIED_STEPS = 3, 8


@dataclass(frozen=True)
class Measured:
    """Epochs of a job on a device."""

    system: str
    job: str
    device: str
    """Kind of device, such as cpu."""
    device_name: str
    epoch_seconds: float
    """Median of the training passes but the first, or extrapolated from some steps."""
    lowest_seconds: float
    highest_seconds: float
    epochs: int
    """Number of whole epochs, 0 if only steps were timed."""
    planned_epochs: int
    steps: int
    test_accuracy: float | None
    is_real: bool
    how: str
    """Way in which steps were launched, and the reason."""
    load: float
    """Load average of the machine at the end."""


def measure(job: Job, images: Images, device: torch.device, seconds: float) -> Measured:
    """Train for about `seconds`, at most the planned epochs."""
    built = trainer(images, device, **_spelled_out(job.settings))
    built.prepare()
    began_seconds = time.monotonic()
    estimated_seconds = _few_steps_seconds(built) * built.steps_per_epoch
    if 2 * estimated_seconds > seconds:
        steps, part_seconds = _some_steps(built, began_seconds + seconds)
        epoch_seconds = [part_seconds * built.steps_per_epoch / steps]
        epochs = 0
    else:
        for _metrics, timing in built.epochs():
            left_seconds = began_seconds + seconds - time.monotonic()
            if built.progress.epochs_done > 1 and timing.training_seconds > left_seconds:
                break
        epoch_seconds = [timing.training_seconds for timing in built.progress.timings]
        epochs, steps = len(epoch_seconds), built.steps_done
    later = epoch_seconds[1:] or epoch_seconds
    return Measured(
        job.system,
        job.name,
        device.type,
        device_name(device),
        statistics.median(later),
        min(later),
        max(later),
        epochs,
        job.settings["epochs"],
        steps,
        _test_accuracy(built, images) if epochs else None,
        images.is_real,
        how(built),
        os.getloadavg()[0],
    )


def _spelled_out(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings with the defaults that pydantic fills in elsewhere."""
    spelled = {"cuda_graphs": "auto", **settings}
    spelled["model"] = {"init": "default"} | settings["model"]
    if given := settings.get("input"):
        prefetched = {"prefetch_factor": 2} if given["workers"] else {}
        spelled["input"] = LOADER | prefetched | given
    if flips := settings.get("augmentation"):
        spelled["augmentation"] = {"crop_padding": 0} | flips
    return spelled


def _few_steps_seconds(built: Trainer) -> float:
    """Return the median time of some steps of a scratch copy, each with its batch."""
    times = [built.clock.now_seconds()]
    with built.scratch_copy() as state:
        for number, batch in enumerate(islice(built.training.train_batches(0), _TRIED_STEPS)):
            built.step(state, number, batch)
            times.append(built.clock.now_seconds())
    steps = [after - before for before, after in pairwise(times)]
    return statistics.median(steps[1:] or steps)  # the first starts the loader


def _some_steps(built: Trainer, until_seconds: float) -> tuple[int, float]:
    """Return the number of steps until then, and their time."""
    built.state.network.train()
    steps, began_seconds = 0, built.clock.now_seconds()
    for batch in built.train_batches(0):
        steps += built.steps(built.state, steps, batch).numel()
        if steps >= _LEAST_STEPS and time.monotonic() > until_seconds:
            break
    return steps, built.clock.now_seconds() - began_seconds


def _test_accuracy(built: Trainer, images: Images) -> float:
    batches = images.test_batches(built.experiment, built.device)
    sums = built.validator.evaluate(built.state, batches.eval_batches())
    return sums.correct / sums.predicted
