"""Trainings that are slow for a reason that was put there: each is found, 20 times of 20, and the remedy cures it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeExperiment, MakeResult

from photofinish.comparing.diagnosis import Diagnosis, diagnose
from photofinish.comparing.pairs import Trained
from photofinish.machine.fingerprint import CpuHost
from photofinish.measuring.attribution import AttributionPlan, attribute
from photofinish.measuring.steady_state import SamplePlan, measure_steps
from photofinish.models.registry import build_model
from photofinish.params.experiment import Experiment
from photofinish.results.epochs import median_training_seconds, passed_seconds
from photofinish.training.batches import Batch, Normaliser, Part
from photofinish.training.clock import Clock
from photofinish.training.input_paths import ResidentBatches, make_batches
from photofinish.training.loader import LoaderBatches, _PackedImages
from photofinish.training.torch_device import CPU
from photofinish.training.trainer import Trainer

TRIES = 20
IMAGES = 1024
SHAPE = (1, 8, 8)
TINY = {"name": "linear"}
CONVOLUTIONS = {"name": "cnn", "channels": (32, 32)}
SAMPLES = SamplePlan(60, 1)
FEW_IMAGES = 2
LOADER = {"name": "loader", "workers": 0}
DELAY_SECONDS = 0.003


@dataclass(frozen=True)
class Job:
    """What a remedy may change."""

    experiment: Experiment
    host: CpuHost
    startup_seconds: float = 0.0

    def cured(self, diagnosis: Diagnosis) -> Job:
        """With its remedy's line in place; `auto` stands for all cores."""
        assert diagnosis.remedy
        key, value = diagnosis.remedy.key, diagnosis.remedy.value
        if key == "devices.cpu.threads":
            return replace(self, host=self.host.model_copy(update={"threads": self.host.cpu.usable_cores}))
        section, name, setting = key.split(".")
        assert (section, name) == ("experiments", "planted")
        settings = {**self.experiment.model_dump(), setting: {"name": value} if setting == "input" else value}
        return replace(self, experiment=Experiment.model_validate(settings))


Diagnosing = Callable[[Job], tuple[Diagnosis, ...]]


@pytest.fixture
def job(make_experiment: MakeExperiment, cpu_host: CpuHost) -> Callable[..., Job]:
    """A job on a machine with so many cores, of which one thread uses one."""

    def make(cores: int = 1, startup_seconds: float = 0.0, **settings: Any) -> Job:
        cpu = replace(cpu_host.cpu, usable_cores=cores, cgroup_cores_limit=None)
        software = replace(cpu_host.software, variables={})
        host = cpu_host.model_copy(update={"threads": 1, "cpu": cpu, "software": software})
        return Job(make_experiment(**{"epochs": 2, "model": TINY, **settings}), host, startup_seconds)

    return make


@pytest.fixture
def diagnosed(make_result: MakeResult) -> Diagnosing:
    """Train a job, measure it as after every training, only shorter, and diagnose it."""
    made_up = make_result()
    assert isinstance(made_up, Trained)
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (IMAGES, *SHAPE), dtype=np.uint8), np.arange(IMAGES) % 3
    part = Part("train", images, labels, Normaliser((0.5,), (0.25,)))
    few = Part("validation", images[:4], labels[:4], part.normalise)

    def find(job: Job) -> tuple[Diagnosis, ...]:
        # Whatever the host says: two threads wait for each other for seconds where other programs run too.
        torch.set_num_threads(1)
        experiment, clock = job.experiment, Clock(CPU)
        batches = [make_batches(experiment, each, CPU) for each in (part, few)]
        trainer = Trainer(experiment, build_model(experiment.model, SHAPE, 3, 0), batches[0], batches[1], CPU)
        trainer.warm_up()
        epochs = trainer.train(lambda _metrics, _timing: None).timings
        plan = AttributionPlan(min(5, trainer.steps_per_epoch), FEW_IMAGES, SAMPLES, tries_bf16=False)
        measured = {
            "epochs": tuple(epochs),
            "training_image_count": IMAGES,
            "images_per_second": IMAGES / median_training_seconds(epochs),
            "startup_seconds": job.startup_seconds,
            "total_seconds": job.startup_seconds + passed_seconds(epochs),
            "steady_state": measure_steps(trainer, clock, SAMPLES),
            "attribution": attribute(trainer, clock, plan, resident_fits=True),
            "host": job.host,
        }
        record = made_up.record.model_copy(update={"experiment": experiment})
        return diagnose("planted", record, made_up.timings.model_copy(update=measured))

    return find


@pytest.fixture
def processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what computes and never sleeps, on one thread: what other programs do meanwhile is not counted."""
    monkeypatch.setattr(Clock, "now_seconds", lambda _clock: time.process_time())


@pytest.fixture
def slow_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    load = _PackedImages.collate

    def slowly(self: _PackedImages, images: list[Batch]) -> Batch:
        time.sleep(DELAY_SECONDS)
        return load(self, images)

    monkeypatch.setattr(_PackedImages, "collate", slowly)


@pytest.mark.usefixtures("slow_loader")
def test_a_slow_loader(job: Callable[..., Job], diagnosed: Diagnosing) -> None:
    assert_cured(job(input=LOADER, batch_size=128), "input-bound", "experiments.planted.input: resident", diagnosed)


def test_a_slow_copy(
    job: Callable[..., Job],
    diagnosed: Diagnosing,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Simulated, so that it is found where there is no GPU."""
    place = LoaderBatches.placed

    def slowly(self: LoaderBatches, batch: Batch) -> Batch:
        time.sleep(3 * DELAY_SECONDS)  # longer than it takes to load them
        return place(self, batch)

    monkeypatch.setattr(LoaderBatches, "placed", slowly)
    assert_cured(
        job(input=LOADER, batch_size=128, epochs=1), "copy-bound", "experiments.planted.input: resident", diagnosed
    )


@pytest.mark.usefixtures("processor_time")
def test_many_tiny_steps(job: Callable[..., Job], diagnosed: Diagnosing) -> None:
    # By the line, 12 images are a fifth of their step, and 16 times as many four fifths.
    tiny = job(model=CONVOLUTIONS, batch_size=12, epochs=1)
    assert_cured(tiny, "launch-bound", "experiments.planted.batch_size: ", diagnosed)


@pytest.mark.usefixtures("processor_time")
def test_one_thread_where_there_are_more_cores(job: Callable[..., Job], diagnosed: Diagnosing) -> None:
    one = job(cores=2, model=CONVOLUTIONS, batch_size=128, epochs=5)
    assert_cured(one, "CPU held back", "devices.cpu.threads: auto", diagnosed)


def test_a_long_start_up(job: Callable[..., Job], diagnosed: Diagnosing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs that sleep take much the same whatever else runs here."""
    gather = ResidentBatches.shuffled

    def slowly(self: ResidentBatches, epoch: int) -> Iterator[Batch]:
        time.sleep(DELAY_SECONDS)
        return gather(self, epoch)

    monkeypatch.setattr(ResidentBatches, "shuffled", slowly)
    long = job(batch_size=1024, epochs=3, startup_seconds=0.05)
    assert_cured(long, "start-up-bound", "experiments.planted.epochs: ", diagnosed)


@pytest.mark.usefixtures("processor_time")
def test_arithmetic_on_all_cores_is_what_a_device_is_for(job: Callable[..., Job], diagnosed: Diagnosing) -> None:
    found = [diagnosed(job(model=CONVOLUTIONS, batch_size=128, epochs=1))[0] for _ in range(TRIES)]
    assert [each.cause for each in found] == ["compute-bound"] * TRIES
    assert found[0].remedy is None
    assert "the device is used well" in found[0].advice


def assert_cured(job: Job, cause: str, line: str, diagnosed: Diagnosing) -> None:
    for number in range(TRIES):
        before = diagnosed(job)[0]
        assert before.cause == cause, f"try {number + 1}: {before}"
        assert before.remedy
        assert before.remedy.line.startswith(line)
        after = diagnosed(job.cured(before))[0]
        assert after.cause != cause, f"try {number + 1}: {before}\n{after}"
