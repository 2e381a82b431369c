"""Steps that are recorded and done again learn the same bits as steps one by one, and what can't be recorded isn't.

A recorder of operations stands in for CUDA graphs (see recorder.py), and the CPU for a GPU: its optimisers are fused,
have their state from the start and read learning rates from tensors, recorded or not.
"""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from conftest import MakeExperiment
from recorder import OperationRecorder
from torch import nn

from photofinish import machine
from photofinish.data.images import PartName
from photofinish.errors import UserError
from photofinish.measuring import rehearsal
from photofinish.measuring.attribution import AttributionPlan, SamplePlan, attribute, measure_by_turns
from photofinish.measuring.rehearsal import warm_up
from photofinish.models.registry import build_model
from photofinish.params.experiment import Experiment
from photofinish.results import EpochMetrics
from photofinish.results.learned import weights_of
from photofinish.runs.setup import repeat_training
from photofinish.training import batches as batches_module
from photofinish.training import optimisation, steps
from photofinish.training.batches import Batch, Batches, Normaliser, Part
from photofinish.training.input_paths import make_batches
from photofinish.training.steps import GraphedSteps, Recorded
from photofinish.training.torch_device import CPU
from photofinish.training.trainer import Trainer, TrainState

IMAGES, BATCH = 16, 3
"""five whole batches, in windows of two: one more, and a batch of one image, are left to be taken one by one"""
LOADER = {"name": "loader", "workers": 0}
"""whose batches are taken one at a time: only the one of one image is left over"""
SGD, ADAM, ADAMW = ({"name": name, "lr": 0.02} for name in ("sgd", "adam", "adamw"))
DAMPED = SGD | {"momentum": 0.9, "dampening": 0.5}
MakeJob = Callable[..., Trainer]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> OperationRecorder:
    made = OperationRecorder()
    monkeypatch.setattr(rehearsal, "recorder_of", lambda _device: made)
    monkeypatch.setattr(optimisation, "is_accelerator", lambda _device: True)
    monkeypatch.setattr(rehearsal, "TRIED_STEPS", 2)
    torch.set_num_threads(1)
    return made


@pytest.fixture
def make_job(
    recorder: OperationRecorder,  # noqa: ARG001
    make_experiment: MakeExperiment,
    monkeypatch: pytest.MonkeyPatch,
) -> MakeJob:
    """A trainer on noise, by the settings of an experiment: `make_job(model={...})`."""

    def make(
        network: nn.Module | None = None,
        *,
        shape: tuple[int, ...] = (1, 6, 6),
        images: int = IMAGES,
        **settings: Any,
    ) -> Trainer:
        experiment = make_experiment(**{"batch_size": BATCH, "epochs": 2, "optimizer": SGD, **settings})
        monkeypatch.setattr(machine, "MOST_BYTES", 2 * 4 * experiment.batch_size * int(np.prod(shape)))
        random = np.random.default_rng(0)

        def batches(name: PartName, count: int) -> Batches:
            pixels = random.integers(0, 256, (count, *shape), np.uint8)
            part = Part(name, pixels, np.arange(count) % 3, Normaliser((0.5,), (0.25,)))
            return make_batches(experiment, part, CPU)

        network = copy.deepcopy(network) if network else build_model(experiment.model, shape, 3, 0)
        return Trainer(experiment, network, batches("train", images), batches("validation", 5), CPU)

    return make


def trained(trainer: Trainer) -> Trainer:
    warm_up(trainer)
    trainer.train(lambda _metrics, _timing: None)
    return trainer


def assert_recorded(trainer: Trainer) -> None:
    assert isinstance(trainer.steps, GraphedSteps), trainer.steps.why
    assert trainer.steps.at_once == (1 if trainer.experiment.input.name == "loader" else 2)


def assert_same_bits(make_job: MakeJob, network: nn.Module | None = None, **settings: Any) -> None:
    eager, recorded = make_job(network, **settings), trained(make_job(network, **settings))
    eager.train(lambda _metrics, _timing: None)
    assert_recorded(recorded)
    assert recorded.progress.metrics == eager.progress.metrics
    assert weights_of(recorded.network) == weights_of(eager.network)
    assert recorded.steps_done == eager.steps_done == eager.experiment.epochs * eager.steps_per_epoch


# -- the same bits ---------------------------------------------------------------------------------

TORCHVISION = {"images": 6, "batch_size": 2, "epochs": 1}


@pytest.mark.parametrize(
    "settings",
    [
        {"model": {"name": "linear"}},
        {"model": {"name": "mlp", "hidden": (8, 4)}},
        {"model": {"name": "cnn", "channels": (3,), "hidden": (4,)}},
        {"model": {"name": "lenet"}, "shape": (1, 16, 16)},
        {"model": {"name": "resnet18"}, "shape": (3, 32, 32), **TORCHVISION},
        # What looks on at PyTorch's operations changes how it adds up gradients of images that came down to one pixel.
        {"model": {"name": "mobilenet_v3_small"}, "shape": (3, 64, 64), **TORCHVISION},
    ],
    ids=lambda settings: settings["model"]["name"],
)
def test_every_network_learns_the_same_bits(make_job: MakeJob, settings: dict[str, Any]) -> None:
    assert_same_bits(make_job, **settings)


@pytest.mark.parametrize(
    "optimizer",
    [SGD, SGD | {"momentum": 0.9}, SGD | {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, DAMPED, ADAM, ADAMW],
    ids=str,
)
@pytest.mark.parametrize("schedule", [{"name": "constant"}, {"name": "one_cycle", "max_lr": 0.1}], ids=str)
def test_every_optimizer_learns_the_same_bits(
    make_job: MakeJob, optimizer: dict[str, Any], schedule: dict[str, Any]
) -> None:
    assert_same_bits(make_job, optimizer=optimizer, schedule=schedule)


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": {"name": "step", "step_size": 1}},
        {"schedule": {"name": "cosine"}},
        {"schedule": {"name": "reduce_on_plateau", "patience": 0, "factor": 0.5}},
        {"precision": "bf16", "optimizer": ADAM},
        {"precision": "tf32"},
        {"precision": "fp16", "optimizer": SGD | {"momentum": 0.9}},
        {"precision": "fp16", "optimizer": ADAM},
        {"augmentation": {"flip": 0.5, "crop_padding": 1}},
        {"loss": {"name": "cross_entropy", "label_smoothing": 0.1}},
        {"images": 12},  # whose windows leave nothing over
        {"input": LOADER, "optimizer": ADAM, "schedule": {"name": "one_cycle", "max_lr": 0.1}},
        {"input": LOADER, "augmentation": {"flip": 0.5, "crop_padding": 1}, "precision": "fp16"},
        {"input": {**LOADER, "workers": 1, "persistent_workers": True}, "images": 12},
        {"input": LOADER, "optimizer": DAMPED},
    ],
    ids=str,
)
def test_under_every_setting_the_same_bits_are_learned(make_job: MakeJob, settings: dict[str, Any]) -> None:
    assert_same_bits(make_job, **settings)


def with_state() -> nn.Module:
    """What draws at random and what a step changes besides weights."""
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)
    return nn.Sequential(*layers)


def test_dropout_draws_and_normalisation_counts_as_one_by_one(make_job: MakeJob) -> None:
    assert_same_bits(make_job, with_state(), images=17)  # of one image alone nothing can be normalised


@pytest.mark.parametrize("source", [{"name": "resident"}, LOADER], ids=["resident", "loader"])
def test_a_run_resumed_after_any_epoch_ends_with_the_same_bits(make_job: MakeJob, source: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"epochs": 3, "optimizer": ADAM, "schedule": {"name": "cosine"}, "images": 17}
    settings["input"] = source
    whole, states = make_job(with_state(), **settings), []

    def keep(_metrics: EpochMetrics, _timing: object) -> None:
        states.append(copy.deepcopy(whole.state_dict()))

    warm_up(whole)
    whole.train(keep)
    for state in states:
        resumed = make_job(with_state(), **settings)
        resumed.load_state_dict(state)
        assert_recorded(trained(resumed))
        assert resumed.progress.metrics == whole.progress.metrics
        assert weights_of(resumed.network) == weights_of(whole.network)


@pytest.mark.parametrize("optimizer", [ADAM, DAMPED], ids=str)
def test_what_is_recorded_already_is_recorded_anew_for_a_state_that_is_loaded(
    make_job: MakeJob, optimizer: dict[str, Any]
) -> None:
    whole, other = trained(make_job(optimizer=optimizer)), trained(make_job(optimizer=optimizer, epochs=1))
    state = copy.deepcopy(other.state_dict())
    late = make_job(optimizer=optimizer)
    warm_up(late)
    late.load_state_dict(state)
    late.train(lambda _metrics, _timing: None)
    assert weights_of(late.network) == weights_of(whole.network)


@pytest.mark.parametrize("kind", ["eager", "auto"])
def test_a_trainer_that_nobody_needs_is_gone_at_once(make_job: MakeJob, kind: str) -> None:
    """Else its memory, and its loader's workers, would stay until Python looks for circles, in whichever process."""
    trainer = trained(make_job(steps=kind))
    seen = weakref.ref(trainer)
    del trainer
    assert seen() is None


def test_repeats_learn_the_same_bits_and_only_one_of_them_is_recorded_at_a_time(
    make_job: MakeJob, recorder: OperationRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, outputs = recorder.record, []

    def noted(work: Callable[[], torch.Tensor]) -> Recorded:
        made = record(work)
        assert all(each() is None for each in outputs)
        outputs.append(weakref.ref(made.output))
        return made

    monkeypatch.setattr(recorder, "record", noted)
    first, again = trained(make_job(with_state(), images=17)), make_job(with_state(), images=17)
    repeat_training(first, again, "small", 2, lambda _epoch: None)  # which refuses other bits
    assert_recorded(again)


# -- what runs, and how often ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "left_over", "windows"),
    [({"name": "resident"}, [3, 1], 2), (LOADER, [1], 5)],
    ids=["resident", "loader"],
)
def test_an_epoch_runs_the_networks_python_for_what_is_left_of_it_alone(
    make_job: MakeJob, recorder: OperationRecorder, source: dict[str, Any], left_over: list[int], windows: int
) -> None:
    trainer, images = make_job(input=source), []
    warm_up(trainer)
    trainer.network.register_forward_pre_hook(
        lambda network, inputs: images.append(len(inputs[0])) if network.training else None
    )
    done = recorder.times_done
    trainer.train(lambda _metrics, _timing: None)
    assert images == left_over * 2
    assert recorder.times_done - done == windows * 2


@pytest.mark.parametrize("optimizer", [SGD | {"momentum": 0.9}, ADAM], ids=str)
def test_what_is_recorded_in_a_later_epoch_is_the_same_to_the_last_number(
    make_job: MakeJob, recorder: OperationRecorder, optimizer: dict[str, Any]
) -> None:
    """So nothing of the epoch or of the step went into it: no learning rate, no count."""
    trainer = make_job(optimizer=optimizer, schedule={"name": "one_cycle", "max_lr": 0.1}, epochs=3)
    warm_up(trainer)

    def record_anew(_metrics: EpochMetrics, _timing: object) -> None:
        trainer.steps.forget()
        trainer.steps.begin(trainer, trainer.state)

    trainer.train(record_anew)
    _tried, *recordings = [[(each.name, each.numbers) for each in made] for made in recorder.recordings]
    assert len(recordings) == 4
    assert recordings[1:] == recordings[:1] * 3


@pytest.mark.parametrize(("model", "most"), [("linear", 8), ("mlp", 14)])
def test_a_step_takes_no_more_operations_than_it_must(
    make_job: MakeJob, recorder: OperationRecorder, model: str, most: int
) -> None:
    hidden = {"hidden": (8,)} if model == "mlp" else {}
    trainer = make_job(model={"name": model, **hidden})
    warm_up(trainer)
    names = [each.name for each in recorder.recordings[-1]]
    assert names.pop().startswith("aten.stack")  # the losses of all steps
    assert len(names) <= most * trainer.steps.at_once, names


def test_the_step_that_is_measured_after_the_training_is_recorded_too(
    make_job: MakeJob, recorder: OperationRecorder
) -> None:
    trainer = trained(make_job())
    before, done = weights_of(trainer.network), recorder.times_done
    recorded = len(recorder.recordings)
    same, other = measure_by_turns(trainer, SamplePlan(5, 4), 2)
    assert same.steps_per_sample == other.steps_per_sample == 4
    assert len(recorder.recordings) - recorded == 2
    assert recorder.times_done - done == 2 * (1 + 5) * 2  # two of each window make four steps
    assert weights_of(trainer.network) == before


def test_the_most_memory_is_counted_from_before_the_steps_are_recorded(
    make_job: MakeJob, recorder: OperationRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, recorded = make_job(), []
    monkeypatch.setattr(trainer.team, "forget_peak_memory", lambda: recorded.append(len(recorder.recordings)))
    warm_up(trainer)
    assert recorded == [1]
    assert len(recorder.recordings) == 2


def test_the_host_hands_out_nothing_worth_timing(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("photofinish.measuring.attribution.is_accelerator", lambda _device: True)
    plan = AttributionPlan(2, 2, SamplePlan(1, 2), tries_bf16=False)
    recorded, eager = (attribute(trained(make_job(steps=kind)), plan) for kind in ("auto", "eager"))
    assert recorded.issuing_seconds == ()  # so the fixed cost comes from the two sizes of a batch
    assert len(eager.issuing_seconds) == 2


@pytest.mark.parametrize("source", [{"name": "resident"}, LOADER], ids=["resident", "loader"])
@pytest.mark.parametrize("kind", ["auto", "eager"])
def test_an_epochs_batches_are_those_of_all_its_steps(make_job: MakeJob, kind: str, source: dict[str, Any]) -> None:
    trainer = trained(make_job(steps=kind, input=source))
    windows = kind == "auto" and source != LOADER
    assert list(trainer.steps.fetched(trainer.training, 0)) == ([2, 2, 1, 1] if windows else [1] * 6)


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        ({"steps": "eager"}, [0, 1, 2, 3, 4, 5] * 2),
        ({}, [4, 5] * 2),
        ({"input": LOADER}, [5, 5]),
        ({"optimizer": DAMPED}, [0, 5, 4, 5]),
    ],
    ids=str,
)
def test_each_step_that_is_not_recorded_is_told_its_number_in_the_epoch(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], numbers: list[int]
) -> None:
    trainer = make_job(**settings)
    warm_up(trainer)
    told, step = [], trainer.step

    def noted(state: TrainState, number: int, batch: Batch) -> torch.Tensor:
        told.append(number)
        return step(state, number, batch)

    monkeypatch.setattr(trainer, "step", noted)
    trainer.train(lambda _metrics, _timing: None)
    assert told == numbers


@pytest.mark.parametrize(("steps", "at_once"), [(1, [1]), (2, [2]), (3, [1, 1, 1]), (4, [2, 2])])
def test_so_many_steps_are_repeated_on_a_batch_as_were_asked_for(
    make_job: MakeJob, steps: int, at_once: list[int]
) -> None:
    for kind, expected in (("auto", at_once), ("eager", [1] * steps)):
        trainer = make_job(steps=kind)
        warm_up(trainer)
        again: Any = trainer.steps.repeated(trainer, trainer.state, next(trainer.training.shuffled(0)), steps)
        assert [losses.numel() for losses in again()] == expected


def test_no_size_of_batch_is_recorded_before_a_step_was_taken_on_it(
    make_job: MakeJob, recorder: OperationRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU may load kernels then, and make room for them, which it can't while it records."""
    trainer, record, sizes = trained(make_job()), recorder.record, []
    trainer.network.register_forward_pre_hook(lambda _network, inputs: sizes.append(len(inputs[0])))

    def noted(work: Callable[[], torch.Tensor]) -> Recorded:
        before = set(sizes)
        recorded = record(work)
        assert set(sizes) == before
        return recorded

    monkeypatch.setattr(recorder, "record", noted)
    measure_by_turns(trainer, SamplePlan(1, 2), 2)
    assert set(sizes) == {BATCH, 2}


def test_the_first_epochs_order_is_made_before_it(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of every later epoch is, while the device is at work on the one before."""
    made, order = [], batches_module.batch_order
    monkeypatch.setattr(batches_module, "batch_order", lambda *given: made.append(given[-1]) or order(*given))
    trainer = make_job()
    warm_up(trainer)
    made.clear()
    trainer.train(lambda _metrics, _timing: None)
    assert made == [1]


def test_what_images_on_the_device_would_bring_is_tried_with_recorded_steps_too(
    make_job: MakeJob, recorder: OperationRecorder
) -> None:
    """Else a loader's recorded steps would seem as quick as others one by one."""
    trainer, calls = trained(make_job(input=LOADER)), []
    trainer.network.register_forward_pre_hook(lambda _network, _inputs: calls.append(len(recorder.recordings)))
    plan = AttributionPlan(2, 2, SamplePlan(1, 2), tries_bf16=False)
    found = []
    for resident in (None, make_job().training):
        calls.clear()
        recorded = len(recorder.recordings)
        attribute(trainer, plan, resident)
        found.append((len(recorder.recordings) - recorded, len(calls)))
    assert found[1] == (found[0][0] + 1, found[0][1] + 2)  # its Python runs once before it is recorded, and then


@pytest.mark.parametrize(
    ("images", "batch_size", "most_bytes", "layers", "at_once"),
    [
        (50_000, 128, 256 << 20, 2, 195),  # of 390 whole batches: the operations of two layers allow 250
        (50_000, 128, 100 * 128 * 36 * 4, 2, 78),  # the bytes of a hundred batches
        (50_000, 128, 256 << 20, 62, 6),  # the operations of more layers
        (1_010, 10, 7 * 10 * 36 * 4, 2, 5),  # which leaves one over, as seven would three
        (50_000, 128, 1, 2, 1),
        (300, 100, 256 << 20, 2, 3),
    ],
)
def test_few_windows_leave_few_steps_over(
    make_job: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
    images: int,
    batch_size: int,
    most_bytes: int,
    layers: int,
    at_once: int,
) -> None:
    network = nn.Sequential(nn.Flatten(), *(nn.Linear(36, 36) for _ in range(layers - 1)))
    trainer = make_job(network, batch_size=batch_size)
    monkeypatch.setattr(machine, "MOST_BYTES", most_bytes)
    trainer.training.image_count = images
    assert steps.most_at_once(trainer) == at_once


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """What a recorder of CUDA graphs calls."""
    made = MagicMock()
    for name in ("Stream", "CUDAGraph", "graph", "current_stream", "set_stream", "default_generators"):
        monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    made.graph.return_value.__exit__.return_value = False
    return made


def test_a_loaders_thread_may_pin_memory_while_steps_are_recorded(cuda: MagicMock) -> None:
    """CUDA otherwise refuses that, to it and to the recording."""
    loss = torch.zeros(())
    recorded = steps.CudaRecorder(torch.device("cuda", 0)).record(lambda: loss)
    assert recorded == (loss, cuda.CUDAGraph.return_value.replay)
    assert cuda.graph.call_args.kwargs["capture_error_mode"] == "thread_local"
    assert cuda.graph.call_args.kwargs["stream"] is cuda.Stream.return_value
    cuda.set_stream.assert_not_called()


def test_after_a_recording_that_failed_steps_go_on_where_they_were_and_may_draw(cuda: MagicMock) -> None:
    def fail() -> torch.Tensor:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        steps.CudaRecorder(torch.device("cuda", 0)).record(fail)
    cuda.set_stream.assert_called_once_with(cuda.current_stream.return_value)
    generator = cuda.default_generators[0]
    generator.graphsafe_set_state.assert_called_once_with(generator.clone_state.return_value)


# -- what is taken one by one ----------------------------------------------------------------------


class ReadsBack(nn.Module):
    """Its Python goes by a value that was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(images.flatten(1))
        return outputs if outputs.sum() > 0 else outputs * 2


class Counts(ReadsBack):
    """Its Python goes by how often it ran."""

    calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        outputs: torch.Tensor = self.layer(images.flatten(1))
        return outputs * self.calls


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (ReadsBack(), r"recording some failed \(aten._local_scalar_dense.default reads a value back"),
        (Counts(), "recorded, some gave other bits"),
    ],
    ids=["reads back", "counts"],
)
def test_what_gives_no_or_other_bits_when_tried_is_taken_one_by_one(
    make_job: MakeJob, network: nn.Module, why: str
) -> None:
    eager, tried = (trained(make_job(network, steps=kind)) for kind in ("eager", "auto"))
    assert re.match(why, tried.steps.why)
    assert weights_of(tried.network) == weights_of(eager.network)
    with pytest.raises(UserError, match=rf"steps is graph in params.yaml, which can't be: {why}"):
        trained(make_job(network, steps="graph"))


@pytest.mark.parametrize("optimizer", [SGD, DAMPED], ids=str)
def test_where_recording_fails_in_the_end_steps_are_taken_one_by_one(
    make_job: MakeJob, recorder: OperationRecorder, monkeypatch: pytest.MonkeyPatch, optimizer: dict[str, Any]
) -> None:
    trainer = make_job(optimizer=optimizer)
    monkeypatch.setattr(trainer.team, "forget_peak_memory", lambda: setattr(recorder, "fails", True))
    trained(trainer)
    assert trainer.steps.why == "recording them failed (operation not permitted when stream is capturing)"
    recorder.fails = False
    assert weights_of(trainer.network) == weights_of(trained(make_job(steps="eager", optimizer=optimizer)).network)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"optimizer": DAMPED, "precision": "fp16"}, "recording some failed (aten._local_scalar_dense"),
        ({"batch_size": 17}, "an epoch has no whole batch"),
        ({"model": {"name": "linear", "compile": True}}, "a compiled network is handed out in another way"),
    ],
    ids=str,
)
def test_what_cant_be_recorded_is_taken_one_by_one_and_says_why(
    make_job: MakeJob, settings: dict[str, Any], why: str
) -> None:
    trainer = make_job(**settings)
    warm_up(trainer)
    assert trainer.steps.why.startswith(why)
    assert (trainer.steps.kind, trainer.steps.at_once) == ("eager", 1)
    with pytest.raises(UserError, match=re.escape(why)):
        warm_up(make_job(steps="graph", **settings))


def test_a_network_that_is_wrapped_for_several_devices_is_not_recorded(make_job: MakeJob) -> None:
    trainer = make_job()
    trainer.state = trainer.state._replace(network=nn.Sequential(trainer.network))
    assert steps.hindrance(trainer) == "its network is wrapped, for several devices"


def test_an_epoch_of_one_batch_may_be_recorded(make_job: MakeJob) -> None:
    assert steps.hindrance(make_job(batch_size=IMAGES)) is None


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"deterministic": False}, "deterministic is false: no two steps need have the same bits"),
        ({"loss": {"name": "./my.py:loss"}}, "code of one's own may do something else in a later step"),
        ({"model": {"name": "./my.py:Net"}}, "code of one's own may do something else in a later step"),
    ],
    ids=str,
)
def test_what_a_trial_cant_prove_is_recorded_only_where_params_yaml_says_so(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], why: str
) -> None:
    def as_if(kind: str) -> Trainer:
        trainer = make_job(steps=kind)
        monkeypatch.setattr(
            trainer, "experiment", Experiment.model_validate(trainer.experiment.model_dump() | settings)
        )
        return trainer

    careful, told = as_if("auto"), as_if("graph")
    warm_up(careful)
    assert careful.steps.why == why
    assert_recorded(trained(told))


def test_without_graphs_and_where_params_yaml_says_so_steps_are_taken_one_by_one(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = make_job(steps="eager")
    warm_up(eager)
    assert eager.steps.why == "params.yaml says so"
    monkeypatch.setattr(rehearsal, "recorder_of", steps.recorder_of)
    for kind in ("auto", "graph"):
        on_cpu = make_job(steps=kind)
        warm_up(on_cpu)
        assert on_cpu.steps.why == "steps are recorded on CUDA and ROCm alone, not on cpu"
