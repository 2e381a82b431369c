"""Follow what is suggested, and count the gains within their predictions.

`python -m benchmarks.suggestions` takes about ten minutes on two cores. It plants slow loaders and
steps that mostly wait for Python, trains with and without what is suggested, in turns, and tries
the same job against itself, where nothing should be suggested. `--only` names some of the cases.
"""

from __future__ import annotations

import argparse
import io
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from scipy.special import stdtrit
from torch import nn
from torch.utils.data import default_collate

from photofinish.answer.diagnosis import Gain, Remedy, larger_batch, loader_remedies, step_speedup
from photofinish.config.base import spelled_out
from photofinish.config.experiment import Experiment
from photofinish.machine.host import allowed_cores, cpu_facts
from photofinish.measure.in_turns import Budget, Way, scratch_steps, turns
from photofinish.measure.loader_times import measure
from photofinish.measure.loader_tries import RESIDENT, OneInput, try_block, try_inputs
from photofinish.nested import map_nested
from photofinish.results.measurements import InTurns, LoaderTimes
from photofinish.training.batches import Normaliser, Part
from photofinish.training.input_paths import LoaderBatches, make_batches
from photofinish.training.torch_device import CPU
from photofinish.training.trainer import Trainer

TIMES, SAME_TIMES = 5, 40
_SECONDS, _LEAST_EPOCHS, _TURNS = 0.6, 3, 4
"""Duration of a training, at least so long and so many epochs, and number of turns of both."""
_LARGER = 8
"""Factor of the larger batch."""
_SLOW_SECONDS, _STEP_SECONDS = 0.002, 0.001
_SLOW_COLLATE = "benchmarks.suggestions:slow_collate"
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
    by: str | None
    """Change that must be suggested, or None if nothing must be."""
    input: dict[str, Any] = field(default_factory=dict)
    start_method: str = "fork"
    step_seconds: float = _STEP_SECONDS
    budget_seconds: float = 4.0
    """Time for measuring the loader, as after a training of 40 s."""
    batch_size: int = 8
    is_packed: bool = False
    """True if `split` packed the samples."""


CASES = {
    "a transform that burns": Case(Items(constant, burn), "resident once"),
    "a slow collate": Case(Items(noise), "workers", {"collate": _SLOW_COLLATE}),
    "large JPEGs": Case(Items(from_jpeg), "resident once"),
    "a slow disk": Case(Items(from_slow_disk), "workers"),
    "spawned workers": Case(
        Items(noise, count=40), "workers", {"workers": 1}, "spawn", budget_seconds=10.0
    ),
    "a slow file, then a flip": Case(
        Items(constant, burn), "decode once", {"transform": {"name": "RandomHorizontalFlip"}}
    ),
    "a blur of each sample": Case(
        Items(noise),
        "batch transform",
        {"transform": {"name": "GaussianBlur", "kernel_size": 9}},
    ),
    "a loader that is fine": Case(Items(constant), None, step_seconds=0.02),
    "half a burning transform": Case(
        Items(constant, partial(burn, seconds=0.0005)), "resident once", step_seconds=0.004
    ),
    "noise through workers": Case(
        Items(noise, burn, count=96),
        "workers",
        {"workers": 1, "persistent_workers": True},
        budget_seconds=2.0,
    ),
    "packed samples": Case(
        Items(constant, count=640), "resident", step_seconds=0.0002, is_packed=True
    ),
    "a small batch": Case(
        Items(constant, count=640),
        "batch size",
        RESIDENT.model_dump(),
        step_seconds=0.0,
        is_packed=True,
    ),
    "a smaller batch": Case(
        Items(constant, count=320),
        "batch size",
        RESIDENT.model_dump(),
        step_seconds=0.002,
        batch_size=2,
        is_packed=True,
    ),
}
SAME = {
    "packed samples": (10, 50),
    "a small batch": (10, 20),
    "a loader that is fine": (3, 1),
    "noise through workers": (3, 1),
}
"""Jobs against themselves, with the number of turns, and of steps in a sample."""


class Outcome(NamedTuple):
    predicted: Gain | None = None
    gain: float | None = None
    is_slower: bool = False
    """True if the job became slower by more than its noise."""

    @property
    def is_held(self) -> bool:
        if self.predicted is None or self.gain is None:
            return False
        return self.predicted.low <= self.gain <= self.predicted.high


def main() -> None:
    every = [*CASES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suggestions", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=every, default=every)
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--same-times", type=int, default=SAME_TIMES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'planted':26} suggested held slower  predicted   gain (medians)")
    for name in options.only:
        _print(name, [_try(CASES[name]) for _ in range(options.times)])
    for name, counts in SAME.items():
        if options.same_times and name in options.only:
            suggested = sum(
                _suggests_the_same(CASES[name], *counts) for _ in range(options.same_times)
            )
            print(f"{name}, against itself: suggested in {suggested} of {options.same_times}")


def _print(name: str, outcomes: Sequence[Outcome]) -> None:
    suggested = [outcome for outcome in outcomes if outcome.predicted and outcome.gain]
    held = sum(outcome.is_held for outcome in suggested)
    slower = sum(outcome.is_slower for outcome in suggested)
    line = f"{name:26} {len(suggested):9} {held:4} {slower:6}"
    if suggested:
        low, high, gain = np.median(
            [(*each.predicted, each.gain) for each in suggested if each.predicted], axis=0
        )
        line += f"  {low:.2f} to {high:.2f}  {gain:.2f}"
    print(line, flush=True)


def _try(case: Case) -> Outcome:
    """Train, measure, and train with and without what is suggested, in turns."""
    given = {"name": "loader", **case.input}
    multiprocessing.set_start_method(case.start_method, force=True)
    try:
        trainer = _built(case, given, _part(case), case.batch_size)
        _train(trainer)
        found = LoaderTimes()
        if isinstance(trainer.training, LoaderBatches):
            found = _measured_loader(case, trainer)
        remedy = _suggested(trainer, found, case.by)
        if remedy is None:
            return Outcome()
        pair = trainer, _built(case, *_followed(case, given, remedy), remedy)
        turns = [[_train(each) for each in pair] for _ in range(_TURNS)]
    finally:
        multiprocessing.set_start_method("fork", force=True)
    logs = [math.log(own_seconds / other_seconds) for own_seconds, other_seconds in turns]
    gain = math.exp(statistics.fmean(logs))
    noise = stdtrit(_TURNS - 1, 0.95) * statistics.stdev(logs) / math.sqrt(_TURNS)
    return Outcome(remedy.predicted, gain, math.log(gain) < -noise)


def _suggests_the_same(case: Case, most_turns: int, steps: int) -> bool:
    """Return True if a job's steps, or its loader's batches, seem faster than themselves."""
    trainer = _built(case, {"name": "loader", **case.input}, _part(case), case.batch_size)
    batches = trainer.training
    if isinstance(batches, LoaderBatches) and not case.is_packed:
        own, same = (
            OneInput(batches.settings, batches.with_settings(batches.settings), by)
            for by in (None, "decode once")
        )
        _train(trainer)
        step_seconds = statistics.fmean(_epoch_seconds(trainer)) / trainer.steps_per_epoch
        loading = LoaderTimes(whole_seconds=step_seconds)
        (tried,) = try_block(trainer, own, [same], step_seconds, loading, case.budget_seconds)
        return is_faster(tried.turns)
    both = (scratch_steps(trainer, at_once=steps) for _ in range(2))
    with next(both) as (own_steps,), next(both) as (same_steps,):
        others = [Way(same_steps, steps)]
        base, (changed,) = turns(trainer, Way(own_steps, steps), others, math.inf, most_turns)
    return is_faster(InTurns(base=base, changed=changed))


def is_faster(turns: InTurns) -> bool:
    speedup = step_speedup(turns)
    return speedup is not None and speedup[0] > 1


_NORMALISE = Normaliser((0.5,), (0.25,))


def _part(case: Case) -> Part:
    rows, read = range(len(case.dataset)), Read(case.dataset)
    targets = np.array(rows) % 2
    if not case.is_packed:
        return Part("train", None, targets, _NORMALISE, read)
    images = np.stack([read(row)[0] for row in rows])
    return Part("train", images, targets, _NORMALISE)


def _built(
    case: Case, given: dict[str, Any], part: Part, batch_size: int, remedy: Remedy | None = None
) -> Trainer:
    followed = remedy.settings if remedy else {}
    settings = {
        "dataset": "planted", "model": {"name": "linear"}, "optimizer": {"name": "sgd", "lr": 0.01},
        "schedule": {"name": "constant"}, "input": given, "precision": "fp32", "epochs": 100_000,
        "batch_size": batch_size, "seed": 0,
        "batch_transform": followed.get("experiments.planted.batch_transform"),
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
    trainer.prepare()
    return trainer


def _train(trainer: Trainer) -> float:
    """Train some further epochs. Return their mean time."""
    began_seconds, epoch_seconds = time.perf_counter(), list[float]()
    for _, timing in trainer.epochs():
        epoch_seconds.append(timing.training_seconds)
        is_long = time.perf_counter() - began_seconds > _SECONDS
        if is_long and len(epoch_seconds) >= _LEAST_EPOCHS:
            break
    return statistics.fmean(epoch_seconds)


def _measured_loader(case: Case, trainer: Trainer) -> LoaderTimes:
    batches = trainer.training
    assert isinstance(batches, LoaderBatches)
    budget = Budget.of(math.inf, case.budget_seconds / 0.3)  # the share of a loader
    ends_seconds = time.perf_counter() + case.budget_seconds
    found = measure(batches, budget, ends_seconds, allowed_cores(cpu_facts()))
    resident = None
    if batches.dataset.part.read is None:
        few = trainer.experiment.model_copy(update={"input": RESIDENT})
        resident = make_batches(few, batches.dataset.part, CPU)
    epoch_seconds = statistics.fmean(_epoch_seconds(trainer))
    tried = try_inputs(trainer, found, epoch_seconds, budget, ends_seconds, resident)
    return found.model_copy(update={"tried_inputs": tried})


def _epoch_seconds(trainer: Trainer) -> list[float]:
    return [each.training_seconds for each in trainer.progress.timings]


def _suggested(trainer: Trainer, found: LoaderTimes, by: str | None) -> Remedy | None:
    """Return the suggested change, or any if `by` is None."""
    epochs, size = _epoch_seconds(trainer), trainer.training.batch_size
    with scratch_steps(trainer, _LARGER * size, at_once=5) as (own_steps, other_steps):
        others = [Way(other_steps, 5)]
        same, (other,) = turns(trainer, Way(own_steps, 5), others, math.inf, 10)
    given = trainer.experiment.input.model_dump()
    workers = {key: given.get(key) for key in ("workers", "persistent_workers")}
    settings: Any = SimpleNamespace(batch_size=size, dataset="planted", **workers)
    job: Any = SimpleNamespace(
        name="planted",
        settings=settings,
        loader=found,
        epochs=trainer.experiment.epochs,
        startup_seconds=0.0,
        once_seconds=0.0,
        passes_seconds=sum(epochs),
        steady_state=same,
        samples=trainer.training.image_count,
    )
    low, high = np.quantile(epochs, [0.1, 0.9]) / trainer.steps_per_epoch
    costs: Any = SimpleNamespace(
        settings=settings,
        attribution=SimpleNamespace(other_batch=other, other_batch_images=_LARGER * size),
        input_seconds=0.0,
        step_alone_seconds=same.median_seconds,
        epoch_share_spread=(low, high),
    )
    remedies = loader_remedies(job)
    if by == "batch size":
        remedy = larger_batch(job, costs)
        remedies = [remedy] if remedy.is_worth_it(job) else []
    return next((remedy for remedy in remedies if by in (None, remedy.by)), None)


def _followed(case: Case, given: Any, remedy: Remedy) -> tuple[dict[str, Any], Part, int]:
    """Return the input, the samples and the batch size of a training that follows a suggestion."""
    settings = {key.split(".")[-1]: value for key, value in remedy.settings.items()}
    part = _part(replace(case, is_packed=True) if "decode" in settings else case)
    batch_size = settings.get("batch_size", case.batch_size)
    return spelled_out(settings.get("input", given)), part, batch_size


if __name__ == "__main__":
    main()
