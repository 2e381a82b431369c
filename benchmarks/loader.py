"""Plant slow loaders, follow what is suggested, and count the gains within their predictions.

`python -m benchmarks.loader` takes some minutes on two cores. `--only` names some of the cases.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import default_collate

from photofinish.answer.remedies import Gain, Remedy, loader_remedies
from photofinish.answer.step_costs import StepCosts
from photofinish.config.base import spelled_out
from photofinish.config.experiment import Experiment
from photofinish.inside.stopwatch import COLLATING, DECODING, READING
from photofinish.machine.host import allowed_cores, cpu_facts
from photofinish.measure.attribution import RESIDENT
from photofinish.measure.loader_times import measure
from photofinish.measure.loader_tries import try_inputs
from photofinish.measure.loader_workers import Budget
from photofinish.nested import map_nested
from photofinish.results.measurements import LoaderTimes
from photofinish.training.batches import Normaliser, Part
from photofinish.training.input_paths import LoaderBatches, make_batches
from photofinish.training.torch_device import CPU
from photofinish.training.trainer import Trainer

TIMES = 10
_SECONDS, _LEAST_EPOCHS = 0.6, 5
"""Duration of a training: at least so long, and so many epochs."""
_SLOW_SECONDS, _STEP_SECONDS = 0.002, 0.001
_JPEG = io.BytesIO()
Image.effect_noise((640, 480), 50).convert("RGB").save(_JPEG, "JPEG")


def burn(item: Any, seconds: float = _SLOW_SECONDS) -> Any:
    end_seconds = time.thread_time() + seconds
    while time.thread_time() < end_seconds:
        pass
    return item


def slow_collate(samples: list[Any]) -> Any:
    for sample in samples:
        burn(sample)
    return default_collate(samples)


def noise(_row: int) -> Any:
    return torch.rand(1, 8, 8)


def constant(row: int) -> Any:
    return torch.full((1, 8, 8), float(row))


def from_slow_disk(_row: int) -> Any:
    time.sleep(_SLOW_SECONDS)
    return torch.rand(1, 8, 8)


def from_jpeg(_row: int) -> Any:
    return np.asarray(Image.open(io.BytesIO(_JPEG.getvalue())))[None, :8, :8, 0]


@dataclass
class Items:
    """Data set with a planted cost."""

    read: Callable[[int], Any]
    transform: Callable[[Any], Any] | None = None
    count: int = 64

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> tuple[Any, int]:
        item = self.read(row)
        return self.transform(item) if self.transform else item, row % 2


class Read:
    """Samples of a data set, as a training reads them in each epoch."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, row: int) -> tuple[Any, Any]:
        item, target = self.dataset[row]
        return map_nested(np.asarray, item), np.int64(target)


class Network(nn.Module):
    """Network whose step takes a known time."""

    def __init__(self, step_seconds: float) -> None:
        super().__init__()
        self.linear, self._step_seconds = nn.Linear(1, 2), step_seconds

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.linear(images.flatten(1)[:, :1])
        burn(output, self._step_seconds)
        return output


@dataclass(frozen=True)
class Case:
    dataset: Any
    slowest: tuple[str, ...]
    """Parts, one of which must be the longest. Any may be, if empty."""
    by: str | None
    """Change that must be suggested, or None if nothing must be."""
    input: dict[str, Any] = field(default_factory=dict)
    start_method: str = "fork"
    step_seconds: float = _STEP_SECONDS
    budget_seconds: float = 4.0
    """Time for measuring the loader, as after a training of 40 s."""


CASES = {
    "a transform that burns": Case(Items(constant, burn), ("burn",), "resident once"),
    "a slow collate": Case(
        Items(noise), (COLLATING,), "tried workers", {"collate": "benchmarks.loader:slow_collate"}
    ),
    "large JPEGs": Case(Items(from_jpeg), (DECODING,), "resident once"),
    "a slow disk": Case(Items(from_slow_disk), (READING,), "tried workers"),
    "spawned workers": Case(
        Items(noise, count=40), (), "tried workers", {"workers": 1}, "spawn", budget_seconds=10.0
    ),
    "a loader that is fine": Case(Items(constant), (), None, step_seconds=0.02),
}


class Outcome(NamedTuple):
    is_found: bool
    """True if the planted part is the longest."""
    predicted: Gain | None
    gain: float | None

    @property
    def is_held(self) -> bool:
        if self.predicted is None or self.gain is None:
            return False
        return self.predicted.low <= self.gain <= self.predicted.high


def main() -> None:
    every = [*CASES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loader", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=every, default=every)
    parser.add_argument("--times", type=int, default=TIMES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'planted':26} found suggested held  predicted   gain (medians)")
    for name in options.only:
        _print(name, [_try(CASES[name]) for _ in range(options.times)])


def _print(name: str, outcomes: Sequence[Outcome]) -> None:
    found = sum(outcome.is_found for outcome in outcomes)
    suggested = [outcome for outcome in outcomes if outcome.predicted and outcome.gain]
    held = sum(outcome.is_held for outcome in suggested)
    line = f"{name:26} {found:5} {len(suggested):9} {held:4}"
    if suggested:
        low, high, gain = np.median(
            [(*each.predicted, each.gain) for each in suggested if each.predicted], axis=0
        )
        line += f"  {low:.2f} to {high:.2f}  {gain:.2f}"
    print(line, flush=True)


def _try(case: Case) -> Outcome:
    """Train, measure the loader, follow the suggestion, and train again."""
    given = {"name": "loader", **case.input}
    multiprocessing.set_start_method(case.start_method, force=True)
    part = Part("train", None, np.arange(len(case.dataset)) % 2, _NORMALISE, Read(case.dataset))
    trainer = _train(case, given, part)
    assert isinstance(trainer.training, LoaderBatches)
    budget = Budget(case.budget_seconds)
    found = measure(trainer.training, budget, allowed_cores(cpu_facts()))
    tried = try_inputs(trainer, found, budget, _epoch_seconds(trainer))
    remedy = _suggested(trainer, found.model_copy(update={"tried_inputs": tried}), case.by)
    is_found = not case.slowest or next(iter(found.explained), "") in case.slowest
    if remedy is None:
        return Outcome(is_found, None, None)
    after = _train(case, *_followed(case, given, part, remedy))
    multiprocessing.set_start_method("fork", force=True)
    return Outcome(is_found, remedy.predicted, _epoch_seconds(trainer) / _epoch_seconds(after))


_NORMALISE = Normaliser((0.5,), (0.25,))


def _train(case: Case, given: dict[str, Any], part: Part) -> Trainer:
    settings = {
        "dataset": "planted", "model": {"name": "linear"}, "optimizer": {"name": "sgd", "lr": 0.01},
        "schedule": {"name": "constant"}, "input": given, "precision": "fp32", "epochs": 100_000,
        "batch_size": 8, "seed": 0,
    }  # fmt: skip
    experiment = Experiment.model_validate(settings)
    few = experiment.model_copy(update={"input": RESIDENT})
    validation = Part("validation", np.zeros((2, 1, 8, 8), np.uint8), np.arange(2), _NORMALISE)
    trainer = Trainer(
        experiment,
        Network(case.step_seconds),
        make_batches(experiment, part, CPU),
        make_batches(few, validation, CPU),
        CPU,
    )
    began_seconds = time.perf_counter()
    for _ in trainer.epochs():
        is_long = time.perf_counter() - began_seconds > _SECONDS
        if is_long and len(trainer.progress.timings) >= _LEAST_EPOCHS:
            break
    return trainer


def _epoch_seconds(trainer: Trainer) -> float:
    return statistics.median(each.training_seconds for each in trainer.progress.timings)


def _suggested(trainer: Trainer, found: LoaderTimes, by: str | None) -> Remedy | None:
    """Return the suggested change, or any if `by` is None."""
    epochs = [each.training_seconds for each in trainer.progress.timings]
    timings: Any = SimpleNamespace(
        loader=found,
        epoch_seconds=epochs,
        planned_epochs=trainer.experiment.epochs if trainer else len(epochs),
        median_epoch_seconds=statistics.median(epochs),
        training_image_count=trainer.training.image_count,
    )
    nothing: Any = None
    costs = StepCosts(trainer.experiment, timings, nothing)
    record = SimpleNamespace(experiment=trainer.experiment)
    run: Any = SimpleNamespace(experiment="planted", record=record, timings=timings)
    remedies = loader_remedies(run, costs)
    return next((remedy for remedy in remedies if by in (None, remedy.by)), None)


def _followed(case: Case, given: Any, part: Part, remedy: Remedy) -> tuple[dict[str, Any], Part]:
    """Return the input and the samples of a training that follows a suggestion."""
    settings = {key.split(".")[-1]: value for key, value in remedy.settings.items()}
    if "decode" in settings:
        read = Read(case.dataset)
        images, labels = zip(*(read(row) for row in range(len(case.dataset))), strict=True)
        part = replace(part, images=np.stack(images), labels=np.stack(labels), read=None)
    return spelled_out(settings.get("input", given)), part


if __name__ == "__main__":
    main()
