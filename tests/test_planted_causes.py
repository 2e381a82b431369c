"""Trainings made slow for a known reason are diagnosed, and the suggestion gains what it predicts.

Trainer and profiling are real. The clock is simulated: work moves it on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import HeldClock, MakeExperiment, MakeResult
from result_files import job_of, trained, with_record, with_timings
from torch import nn

from photofinish.answer.diagnosis import Diagnosis, diagnose
from photofinish.config.experiment import ExperimentPlan, ResidentInput
from photofinish.machine.fingerprint import CpuTarget
from photofinish.measure.attribution import measure_attribution, other_images, time_steps
from photofinish.measure.in_turns import Budget
from photofinish.measure.loader_tries import OneInput, try_block
from photofinish.models.registry import build_model
from photofinish.reporting.causes import remedy_line
from photofinish.results import TimedPart, median_training_seconds, passed_seconds
from photofinish.results.job import Job as PlainJob
from photofinish.results.measurements import LoaderTimes
from photofinish.training.batches import Batch, Batches, Normaliser, Part
from photofinish.training.input_paths import make_batches
from photofinish.training.torch_device import CPU
from photofinish.training.trainer import Trainer

IMAGES = 1024
SHAPE = (1, 8, 8)
LOADER = {"name": "loader", "workers": 0}


@dataclass(frozen=True)
class Job:
    """Job with its settings, and the durations of its parts."""

    experiment: ExperimentPlan
    host: CpuTarget
    loading_seconds: float = 0.001
    """Time of loading a batch, if there is a loader."""
    copying_seconds: float = 0.001
    """Time of copying a batch, if there is a loader."""
    step_seconds: float = 0.001
    """Constant time of a step."""
    image_seconds: float = 0.0001
    """Time per sample in a step, on one thread."""

    def cured(self, diagnosis: Diagnosis) -> Job:
        """Return the job with the remedy's line applied."""
        ((key, value),) = diagnosis.remedies[0].settings.items()
        setting = key.removeprefix("experiments.planted.")
        changed = {setting: {"name": value} if setting == "input" else value}
        settings = self.experiment.model_dump() | changed
        return replace(self, experiment=ExperimentPlan.model_validate(settings))


class TimedBatches:
    """Batches that take their time to load and to copy."""

    def __init__(
        self, batches: Batches, loads: Callable[[], None], copies: Callable[[], None]
    ) -> None:
        self._batches, self._loads, self._copies = batches, loads, copies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def train_batches(self, epoch: int, at_once: int = 1) -> Iterator[Batch]:
        return map(self.to_device, self.host_batches(epoch, at_once))

    def host_batches(self, epoch: int, at_once: int = 1) -> Iterator[Batch]:
        for batch in self._batches.host_batches(epoch, at_once):
            self._loads()
            yield batch

    def to_device(self, batch: Batch) -> Batch:
        self._copies()
        return self._batches.to_device(batch)


Measure = Callable[[Job], PlainJob]


@pytest.fixture
def job(make_experiment: MakeExperiment, cpu_host: CpuTarget) -> Callable[..., Job]:
    """A job on a machine with so many cores, of which one thread uses one."""

    def make(cores: int = 1, settings: dict[str, Any] | None = None, **times: float) -> Job:
        cpu = replace(cpu_host.cpu, usable_cores=cores, cgroup_cores_limit=None)
        software = replace(cpu_host.software, variables={})
        host = cpu_host.model_copy(update={"threads": 1, "cpu": cpu, "software": software})
        experiment = make_experiment(
            **{"epochs": 2, "batch_size": 128, "model": {"name": "linear"}, **(settings or {})}
        )
        return Job(experiment, host, **times)

    return make


@pytest.fixture
def measured(make_result: MakeResult, clock: HeldClock) -> Measure:
    """Train a job, and measure it as after every training."""
    made_up = trained(make_result)
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (IMAGES, *SHAPE), dtype=np.uint8)
    labels = np.arange(IMAGES) % 3
    part = Part("train", images, labels, Normaliser((0.5,), (0.25,)))
    few = Part("validation", images[:4], labels[:4], part.normalise)

    def measure(job: Job) -> PlainJob:
        experiment = job.experiment
        is_loader = experiment.input.name == "loader"
        batches = [make_batches(experiment, each, CPU) for each in (part, few)]
        training = TimedBatches(
            batches[0],
            lambda: clock.take(job.loading_seconds * is_loader),
            lambda: clock.take(job.copying_seconds * is_loader),
        )
        network = build_model(experiment.model, SHAPE, 3, 0)

        def computes(_module: nn.Module, inputs: tuple[torch.Tensor]) -> None:
            clock.take(job.step_seconds + job.image_seconds * len(inputs[0]) / job.host.threads)

        network.register_forward_pre_hook(computes)
        trainer = Trainer(experiment, network, training, batches[1], CPU)
        epochs = [each[1] for each in trainer.epochs()]
        parts = [
            TimedPart(
                seconds=each.training_seconds,
                steps=trainer.steps_per_epoch,
                epoch=number,
                holds="epoch",
                waiting_seconds=trainer.steps_per_epoch * job.loading_seconds * is_loader,
            )
            for number, each in enumerate(epochs)
        ]
        budget = Budget.of(10.0)
        images = other_images(trainer, 0.01, budget)
        timed = time_steps(trainer, 0.01, 1.0, images)
        timings: dict[str, Any] = {
            "epochs": tuple(epochs),
            "parts": tuple(parts),
            "epoch_steps": trainer.steps_per_epoch,
            "training_image_count": IMAGES,
            "images_per_second": IMAGES / median_training_seconds(epochs),
            "startup_seconds": 0.01,
            "total_seconds": 0.01 + passed_seconds(epochs),
            "steady_state": timed.base,
            "attribution": measure_attribution(trainer, timed, images, 0.01, budget),
            "host": job.host,
        }
        if is_loader:
            changed = {"input": ResidentInput(name="resident")}
            resident = make_batches(experiment.model_copy(update=changed), part, CPU)
            own = OneInput(experiment.input, training)
            other = OneInput(changed["input"], resident, "resident", {"input": "resident"})
            tried = try_block(trainer, own, [other], 0.06, LoaderTimes(), 9.0)
            timings["loader"] = LoaderTimes(tried_inputs=tuple(tried))
        result = with_timings(with_record(made_up, experiment=experiment), **timings)
        return job_of(replace(result, experiment="planted"))

    return measure


@pytest.mark.parametrize(
    ("planted", "cause", "line"),
    [
        (
            {"settings": {"input": LOADER}, "loading_seconds": 0.05},
            "input-bound",
            "input: resident",
        ),
        ({"settings": {"input": LOADER}, "copying_seconds": 0.05}, "copy-bound", "input: resident"),
        ({"settings": {"batch_size": 16}, "step_seconds": 0.01}, "launch-bound", "batch_size: 128"),
    ],
)
def test_a_planted_cause_is_diagnosed_and_its_suggestion_gains_what_it_predicts(
    job: Callable[..., Job], measured: Measure, planted: dict[str, Any], cause: str, line: str
) -> None:
    slow = job(**planted)
    before = measured(slow)
    found = diagnose(before)[0]
    assert (found.cause, bool(found.remedies)) == (cause, True), found
    assert line in remedy_line(found.remedies[0])
    after = measured(slow.cured(found))
    assert diagnose(after)[0].cause == "compute-bound"
    gain = before.median_epoch_seconds / after.median_epoch_seconds
    assert found.remedies[0].predicted
    assert found.remedies[0].predicted.low <= gain <= found.remedies[0].predicted.high
