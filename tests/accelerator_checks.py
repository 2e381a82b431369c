"""Checks of the trainer on a simulated accelerator, run by test_accelerator_rehearsal.py.

The accelerator computes on the CPU, so it must learn the same bits as the CPU. It counts how often
the host waits, reads values back or copies to the device, which would slow a real one down.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import recipe
import recorded_jobs
import torch
from conftest import MakeRun, assert_same_run, digits_plan, learnable_images
from recorder import OperationRecorder
from rehearsal_device import Counts, counts, most_held_bytes
from torch import nn
from torch.optim import SGD
from torchvision import models
from torchvision.models.resnet import BasicBlock

from photofinish.data.packed import PackedSplit
from photofinish.data.split import split
from photofinish.inside.script_step import ScriptStep
from photofinish.measure.attribution import profile
from photofinish.measure.first_step import first_batch, first_step
from photofinish.measure.in_turns import Budget, scratch_steps
from photofinish.results.learned import weights_of
from photofinish.results.trained import FirstStep
from photofinish.runs.setup import Setup
from photofinish.runs.training import check_repeat
from photofinish.training import graphs
from photofinish.training.torch_device import CPU, accelerator, configure_torch
from photofinish.training.trainer import Trainer
from photofinish.training.world import World

Make = Callable[..., Setup]
CNN = {"name": "cnn", "channels": (4,), "hidden": (8,)}
ADAM, ADAMW = ({"name": name, "lr": 2**-7} for name in ("adam", "adamw"))
"""Optimizers with a learning rate that is exact in float32 and float64."""
NESTEROV = {"name": "sgd", "lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}
ONE_CYCLE = {"name": "one_cycle", "max_lr": 0.2}
ON_PLATEAU = {"name": "reduce_on_plateau", "patience": 0}
AHEAD = {"pin_memory": True, "non_blocking": True, "persistent_workers": True}
LOADER = {"name": "loader", "workers": 1, **AHEAD}
AUGMENTED = {"model": CNN, "augmentation": {"flip": 0.5, "crop_padding": 2}}
VARIANTS: dict[str, dict[str, Any]] = {
    "cnn, Nesterov, one cycle, augmented": AUGMENTED
    | {"optimizer": NESTEROV, "schedule": ONE_CYCLE},
    "loader with a worker, AdamW, augmented": AUGMENTED | {"input": LOADER, "optimizer": ADAMW},
    "bf16": {"precision": "bf16", "model": CNN},
    "fp16, on plateau": {"precision": "fp16", "schedule": ON_PLATEAU, "optimizer": ADAM},
}
variants = pytest.mark.parametrize("settings", VARIANTS.values(), ids=list(VARIANTS))
OWN = f"{Path(recipe.__file__)}:"
GAN = {
    "model": {"name": f"{OWN}Gan"},
    "optimizer": {"name": f"{OWN}two_optimizers", "lr": 0.001},
    "step": {"name": f"{OWN}gan_step"},
    "validation_step": {"name": f"{OWN}gan_loss"},
}


@pytest.fixture(scope="module")
def small_split(tmp_path_factory: pytest.TempPathFactory) -> PackedSplit:
    folder = tmp_path_factory.mktemp("split")
    split(digits_plan(), learnable_images(count=150, side=16), folder)
    return PackedSplit(folder)


@pytest.fixture(autouse=True)
def awake_after_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the least duration of a warm-up, because the simulated device never sleeps."""
    monkeypatch.setattr("photofinish.training.trainer.WARM_UP_SECONDS", 0.0)


@pytest.fixture
def device() -> Iterator[torch.device]:
    yield accelerator("auto")
    torch.accelerator.set_device_index(0)


@pytest.fixture
def make_job(make_run: MakeRun, small_split: PackedSplit, device: torch.device) -> Iterator[Make]:
    """Make a job on the accelerator, or on another device: `make_job(CPU, epochs=2)`."""

    def make(on: torch.device = device, data: PackedSplit = small_split, **settings: Any) -> Setup:
        run = make_run(data.folder, **settings)
        configure_torch(on, run.experiment.precision, threads=1)
        return Setup(run, World(on))

    yield make
    torch.set_deterministic_debug_mode("default")


def trained(job: Setup) -> Trainer:
    return recorded_jobs.trained(job.new_trainer())


def counted(act: Callable[[], object]) -> Counts:
    before = counts()
    act()
    return counts() - before


def devices_of(network: nn.Module) -> set[torch.device]:
    return {tensor.device for tensor in network.state_dict().values()}


# -- the same as on the CPU ----------


class FusedSgd(SGD):
    def __init__(self, parameters: Iterable[nn.Parameter], **settings: Any) -> None:
        super().__init__(parameters, **{**settings, "foreach": False, "fused": True})


@variants
def test_it_learns_the_same_bits_as_the_cpu(
    make_job: Make,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    before = counts()
    there = trained(make_job(**settings))
    assert (counts() - before).operations > 100
    assert devices_of(there.network) == {device}
    # as on every accelerator; the CPU's own rounds otherwise
    monkeypatch.setattr(torch.optim, "SGD", FusedSgd)
    on_cpu = trained(make_job(CPU, **settings))
    assert_same_run(there, on_cpu)


def test_steps_of_ones_own_learn_the_same(
    make_job: Make, device: torch.device, packed_split: PackedSplit
) -> None:
    there, on_cpu = (trained(make_job(each, packed_split, **GAN)) for each in (device, CPU))
    learned = there.network.state_dict()
    for name, weight in on_cpu.network.state_dict().items():
        torch.testing.assert_close(learned[name].cpu(), weight)
    losses, expected = (
        [each.validation_loss for each in trainer.progress.metrics] for trainer in (there, on_cpu)
    )
    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses[-1] != losses[0]


def record_first_step(job: Setup, trainer: Trainer) -> FirstStep:
    batch, labels = first_batch(job.training, job.team), job.split.labels("train")
    assert batch
    network = job.new_network()
    return first_step(network, trainer.criterion, batch, job.device, "fp32", labels, seed=0)


def test_repeats_single_steps_and_the_first_step_are_measured_there_too(
    make_job: Make, device: torch.device
) -> None:
    job, on_cpu = (make_job(each, model=CNN, repeats=2) for each in (device, CPU))
    first = trained(job)
    check_repeat(first, trained(job), "small", 2)  # refuses other bits
    first_on_cpu = trained(on_cpu)
    there = profile(first, 1e-3, Budget.of(0.0))
    here = profile(first_on_cpu, 1e-3, Budget.of(0.0))
    step, step_on_cpu = record_first_step(job, first), record_first_step(on_cpu, first_on_cpu)
    assert step == step_on_cpu.model_copy(update={"output_rounding": {}, "gradient_rounding": {}})
    assert step_on_cpu.output_rounding.keys() == step.outputs.keys()
    assert there["attribution"]
    assert here["attribution"]
    assert all(seconds > 0 for seconds in there["attribution"].launch_seconds)
    assert len(there["attribution"].launch_seconds) > 0
    assert not here["attribution"].launch_seconds
    assert all(seconds > 0 for seconds in there["steady_state"].sample_seconds)


def test_the_parts_of_a_step_are_timed_by_the_devices_events(make_job: Make) -> None:
    trainer = trained(make_job(model=CNN, precision="fp16"))
    found = []

    def taken_apart(steps: int) -> Callable[[], None]:
        trainer.steps_per_epoch = steps
        return lambda: found.append(recorded_jobs.attributed(trainer).parts)

    few, many = counted(taken_apart(2)), counted(taken_apart(5))
    assert many.waits - few.waits == 5 - 2  # of the host's issuing, before each step
    for name in ("forward_seconds", "backward_seconds", "optimizer_seconds", "rest_seconds"):
        assert [len(getattr(parts, name)) for parts in found] == [2, 5]
        assert all(seconds > 0 for parts in found for seconds in getattr(parts, name))


def test_a_second_device_is_used_alone(make_job: Make, device: torch.device) -> None:
    second = accelerator("auto", 1)
    there = trained(make_job(second, model=CNN, optimizer=ADAM))
    assert (device.index, second) == (0, torch.device(device.type, 1))
    assert torch.accelerator.current_device_index() == 1  # the one that the clock waits for
    assert devices_of(there.network) == {second}
    on_cpu = trained(make_job(CPU, model=CNN, optimizer=ADAM))
    assert weights_of(there.network) == weights_of(on_cpu.network)


# -- what the host waits for ----------


@pytest.fixture
def count_epoch(make_job: Make) -> Callable[..., Counts]:
    """Count the operations and waits of one epoch of 90 samples, by batch size."""

    def count(batch_size: int, settings: dict[str, Any]) -> Counts:
        sizes = {"batch_size": batch_size, "validation_batch_size": batch_size}
        job = make_job(**settings, **sizes, epochs=3)
        trainer, at_ends = job.new_trainer(), [counts()]
        trainer.prepare()
        at_ends += [counts() for _epoch in trainer.epochs()]
        return at_ends[2] - at_ends[1]

    return count


@variants
def test_the_host_neither_waits_nor_reads_nor_copies_more_often_the_more_steps_an_epoch_has(
    count_epoch: Callable[..., Counts], settings: dict[str, Any]
) -> None:
    few, many = count_epoch(45, settings), count_epoch(6, settings)
    assert few.operations < many.operations
    assert few.waits == many.waits == 3  # when training begins, ends, and when validation ends
    assert few.reads == many.reads <= 4  # both losses, the hits, and whether all losses are numbers
    if "input" not in settings:
        # The next epoch's order of the images, which are there already.
        assert few.copies_in == many.copies_in == 1
    else:
        # Images and labels of each further step, without waiting.
        assert many.copies_in - few.copies_in >= 2 * 13
        assert few.waiting_copies_in == many.waiting_copies_in == 0


def test_the_best_weights_are_copied_without_a_wait_for_each(
    count_epoch: Callable[..., Counts],
) -> None:
    models: list[dict[str, Any]] = [{"name": "linear"}, {"name": "mlp", "hidden": (8, 8, 8)}]
    few, many = (
        count_epoch(45, {"model": model, "early_stopping": {"patience": 3}}) for model in models
    )
    assert few.waits == many.waits == 3 + 1
    assert few.reads == many.reads


def test_the_step_that_is_timed_alone_waits_at_the_ends_of_a_sample_only(make_job: Make) -> None:
    trainer = trained(make_job(model=CNN, optimizer=ADAM))
    with scratch_steps(trainer) as (step,):
        step()
        found = counted(lambda: [step() for _ in range(5)])
    assert found.operations > 50
    assert (found.waits, found.reads, found.copies_in) == (0, 0, 0)


@pytest.mark.parametrize(
    ("settings", "at_once"), [({"model": CNN, "optimizer": ADAM}, 2), ({"input": LOADER}, 1)]
)
def test_captured_steps_learn_the_same_bits_without_waiting(
    make_job: Make, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], at_once: int
) -> None:
    recorder = OperationRecorder()
    monkeypatch.setattr("photofinish.training.graphs.recorder_of", lambda _device: recorder)
    monkeypatch.setattr(graphs, "MOST_BYTES", 2 * 4 * 16 * 16 * 16)
    eager, recorded = (trained(make_job(**settings, cuda_graphs=kind)) for kind in ("off", "auto"))
    assert eager.steps.kind == "eager"
    assert (recorded.steps.kind, recorded.steps.at_once) == ("graph", at_once), recorded.steps.why
    assert_same_run(recorded, eager)
    with scratch_steps(recorded, at_once=4) as (four,):
        four()
        found = counted(four)
    assert found.operations > 20
    assert (found.waits, found.reads, found.copies_in) == (0, 0, 0)


# -- memory, predicted from a step on the CPU ----------


def sequence(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: copy.deepcopy(nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(10)))


PIXELS, WORDS = (16, 3, 32, 32), (16, 64, 96)
NETWORKS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "linear": (PIXELS, sequence()),
    "wide": (PIXELS, sequence(nn.Flatten(), nn.Linear(3072, 1024), nn.GELU(), nn.Tanh())),
    "cnn": (PIXELS, sequence(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2))),
    "norm": (PIXELS, sequence(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))),
    "words": (WORDS, sequence(nn.Linear(96, 192), nn.Tanh(), nn.Linear(192, 96))),
    "sound": (WORDS, sequence(nn.Conv1d(64, 32, 5), nn.Softmax(-1), nn.AvgPool1d(2))),
    "resnet": (PIXELS, partial(models.ResNet, BasicBlock, [1, 1, 1, 1])),
    "squeezenet": (PIXELS, partial(models.squeezenet1_1, dropout=0.0)),
    "shufflenet": (PIXELS, models.shufflenet_v2_x0_5),
    "densenet": (PIXELS, partial(models.DenseNet, block_config=(2, 4, 3, 2))),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("frees_first", [True, False], ids=["zero_grad first", "then forward"])
def test_the_memory_of_a_step_is_what_the_device_counts(
    device: torch.device, name: str, frees_first: bool
) -> None:
    shape, make = NETWORKS[name]
    labels, most_bytes = torch.zeros(shape[0], dtype=torch.int64), []
    for on in (CPU, device):
        network = make()
        network(torch.ones(shape))
        optimizer = torch.optim.Adam(network.to(on).parameters())
        for number in range(3):
            counting = ScriptStep() if on == CPU and number == 2 else None
            most_held_bytes()
            if frees_first:
                optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(torch.ones(shape).to(on)), labels.to(on))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if counting:
                counting.optimizer_stepped(optimizer)
                most_bytes.append(counting.end()["operations"]["peak_allocated_bytes"])
        del loss
    assert most_bytes[0] == pytest.approx(most_held_bytes(), rel=0.02)
