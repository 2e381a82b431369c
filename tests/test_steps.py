"""Captured steps learn the same bits as eager ones, and fall back to them."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import recipe
import torch
from conftest import assert_same_run, network_with_state
from recorded_jobs import (
    ADAM,
    ADAMW,
    BATCH,
    DAMPED,
    LOADER,
    SGD,
    MakeJob,
    assert_recorded,
    attributed,
    job_maker,  # noqa: F401  # a fixture
    stand_in,  # noqa: F401  # a fixture
    trained,
    warmed,
)
from recorder import OperationRecorder
from torch import nn

from photofinish.config.experiment import BatchTransformSettings, ExperimentPlan
from photofinish.errors import UserError
from photofinish.measure.attribution import try_change
from photofinish.measure.in_turns import scratch_state, scratch_steps
from photofinish.measure.loader_tries import OneInput, with_input
from photofinish.results.learned import weights_of
from photofinish.results.measurements import Tried
from photofinish.training import graphs
from photofinish.training.batches import BatchTransform
from photofinish.training.graphs import Steps, choose_steps
from photofinish.training.trainer import Trainer

# -- the same bits ----------

ONE_CYCLE = {"name": "one_cycle", "max_lr": 0.1}
TWO_RATES = ONE_CYCLE | {"max_lr": [0.1, 0.2]}
MOMENTUM = SGD | {"momentum": 0.9}
TWO_GROUPS = {"weight_decay": 0.1, "weight_decay_exclude": "norms and biases"}
WORKER = {**LOADER, "workers": 1, "persistent_workers": True}
CNN = {"name": "cnn", "channels": (3,), "hidden": (4,)}
UNFUSED = SGD | {"fused": False}
SMOOTHED_AND_WEIGHTED = {"name": "cross_entropy", "weight": (1.0, 2.0, 3.0), "label_smoothing": 0.1}
# A dispatch mode changes the order in which PyTorch adds up gradients of one-pixel images.
TORCHVISION = {"shape": (3, 64, 64), "images": 6, "batch_size": 2, "epochs": 1}


@pytest.mark.parametrize(
    "settings",
    [
        {"model": {"name": "linear"}, "schedule": {"name": "step", "step_size": 1}},
        {"model": CNN, "optimizer": MOMENTUM | {"nesterov": True, **TWO_GROUPS},
         "schedule": TWO_RATES},
        {"model": {"name": "lenet"}, "shape": (1, 16, 16), "optimizer": ADAM | {"amsgrad": True},
         "schedule": {"name": "cosine"}},
        {"model": {"name": "mobilenet_v3_small"}, **TORCHVISION},
        {"precision": "bf16", "optimizer": ADAMW, "schedule": ONE_CYCLE},
        {"precision": "fp16", "optimizer": MOMENTUM, "clip_grad_norm": 0.5, "warmup_steps": 4},
        {"precision": "fp16", "optimizer": ADAM, "accumulate": 2, "ema": 0.9},
        {"loss": {"name": "cross_entropy", "label_smoothing": 0.1},
         "schedule": {"name": "reduce_on_plateau", "patience": 0, "factor": 0.5},
         "images": 12},  # whose windows leave nothing over
        {"input": LOADER, "optimizer": ADAM, "schedule": ONE_CYCLE},
        {"input": WORKER, "augmentation": {"flip": 0.5, "crop_padding": 1}, "precision": "fp16"},
    ],
    ids=str,
)  # fmt: skip
def test_captured_steps_learn_the_same_bits(make_job: MakeJob, settings: dict[str, Any]) -> None:
    eager, recorded = make_job(**settings), trained(make_job(**settings))
    list(eager.epochs())
    assert_recorded(recorded)
    assert_same_run(recorded, eager)
    assert eager.steps_done == eager.experiment.epochs * eager.steps_per_epoch


@pytest.mark.parametrize("source", [{"name": "resident"}, LOADER], ids=["resident", "loader"])
def test_dropout_and_batch_norm_learn_the_same_bits_also_resumed_after_any_epoch(
    make_job: MakeJob, source: dict[str, Any]
) -> None:
    def job() -> Trainer:
        # Of one image alone nothing can be normalised.
        settings = {"shape": (1, 8, 8), "images": 17, "epochs": 3, "optimizer": ADAM}
        return make_job(network_with_state(), input=source, schedule={"name": "cosine"}, **settings)

    eager, whole = job(), job()
    list(eager.epochs())
    states = [copy.deepcopy(whole.state_dict()) for _epoch in warmed(whole).epochs()]
    assert_same_run(whole, eager)
    for state in states:
        resumed = job()
        resumed.load_state_dict(state)
        assert_recorded(trained(resumed))
        assert_same_run(resumed, eager)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_compiled_network_learns_the_same_bits_captured(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    calls, by_torch = list[int](), nn.Module.compile

    def backend(graph: Any, _inputs: object) -> Any:  # as "eager", which a dispatch mode skips
        def run(*inputs: Any) -> Any:
            calls.append(1)
            return graph.forward(*inputs)

        return run

    def compile_quickly(network: nn.Module, *, dynamic: bool) -> None:
        by_torch(network, backend=backend, dynamic=dynamic)

    monkeypatch.setattr(nn.Module, "compile", compile_quickly)
    model = CNN | {"compile": True}
    settings = {"model": model, "optimizer": ADAM, "ema": 0.9, "precision": precision}
    eager, recorded = (warmed(make_job(cuda_graphs=kind, **settings)) for kind in ("off", "auto"))
    list(eager.epochs())
    calls.clear()
    list(recorded.epochs())
    assert not calls
    assert_recorded(recorded)
    assert recorded.validator.is_captured
    assert_same_run(recorded, eager)


# -- what is taken one by one ----------


def reads_back(_network: nn.Module, _images: object, outputs: torch.Tensor) -> torch.Tensor:
    """Depends on a computed value."""
    return outputs if outputs.sum() > 0 else outputs * 2


def counts(network: nn.Module, _images: object, outputs: torch.Tensor) -> torch.Tensor:
    """Depends on how often it ran."""
    network.calls = getattr(network, "calls", 0) + 1
    return outputs * network.calls


def counts_smaller(network: nn.Module, images: tuple[Any, ...], outputs: torch.Tensor) -> Any:
    """Depends on how often it ran on an epoch's smaller last batch."""
    return counts(network, images, outputs) if len(images[0]) < BATCH else outputs


@pytest.mark.parametrize(
    ("python", "why"),
    [
        (reads_back, r"capturing some failed \(aten._local_scalar_dense.default reads a value"),
        (counts, "captured, some gave other bits"),
        (counts_smaller, "captured, some gave other bits"),
    ],
)
def test_steps_with_other_bits_in_the_trial_are_eager(
    make_job: MakeJob, python: Callable[..., torch.Tensor], why: str
) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    network.register_forward_hook(python)
    eager, tried = (trained(make_job(network, cuda_graphs=kind)) for kind in ("off", "auto"))
    assert re.match(why, tried.steps.why)
    assert weights_of(tried.network) == weights_of(eager.network)
    with pytest.raises(UserError, match=f"cuda_graphs is on in params.yaml, .*: {why}"):
        trained(make_job(network, cuda_graphs="on"))


def counts_in_a_buffer(network: nn.Module, _images: object, _outputs: torch.Tensor) -> None:
    """Depends on how often it ran, which no loss shows."""
    network.calls = getattr(network, "calls", 0) + 1
    network.seen += network.calls


def test_steps_of_a_compiled_network_whose_buffers_alone_differ_are_eager(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.Module, "compile", lambda *_, **__: None)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    network.register_buffer("seen", torch.zeros(()))
    network.register_forward_hook(counts_in_a_buffer)
    tried = trained(make_job(network, model=CNN | {"compile": True}))
    assert tried.steps.why == "captured, some gave other bits"


def test_a_capture_that_fails_in_the_optimizer_leaves_nothing_behind(
    make_job: MakeJob, recorder: OperationRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, eager = (make_job(precision="fp16", cuda_graphs=kind) for kind in ("auto", "off"))
    fails = partial(setattr, recorder, "fails_in", "aten._fused_sgd")
    monkeypatch.setattr(trainer.team, "forget_peak_memory", fails)
    trained(trainer)
    assert trainer.steps.why.startswith("capturing them failed (aten._fused_sgd")
    assert_same_run(trainer, trained(eager))


def test_steps_are_eager_if_the_rest_of_an_epoch_has_no_memory_beside_the_graph(
    make_job: MakeJob, recorder: OperationRecorder
) -> None:
    def full(trainer: Trainer) -> Trainer:
        def allocate(_network: nn.Module, inputs: Any) -> None:
            has_graph = trainer.steps.kind == "graph" and len(recorder.recordings) == 3
            if has_graph and len(inputs[0]) == 1:  # the trial has two recordings
                raise torch.OutOfMemoryError("CUDA out of memory.")

        recorder.recordings.clear()
        trainer.network.register_forward_pre_hook(allocate)
        return trainer

    settings = {"optimizer": ADAM, "precision": "fp16"}
    trainer = trained(full(make_job(**settings)))
    assert trainer.steps.why == "capturing them failed (CUDA out of memory.)"
    assert_same_run(trainer, trained(make_job(**settings, cuda_graphs="off")))
    with pytest.raises(UserError, match=r"cuda_graphs is on .* out of memory"):
        trained(full(make_job(**settings, cuda_graphs="on")))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"optimizer": DAMPED}, "with dampening, the first step differs"),
        ({"optimizer": UNFUSED, "schedule": ONE_CYCLE}, "its sgd is not fused"),
        ({"loss": SMOOTHED_AND_WEIGHTED}, "label_smoothing with weights reads values back"),
        ({"batch_size": 17}, "an epoch has no whole batch"),
    ],
    ids=str,
)
def test_steps_that_cant_be_captured_are_eager_with_a_reason(
    make_job: MakeJob, settings: dict[str, Any], why: str
) -> None:
    trainer = warmed(make_job(**settings))
    assert trainer.steps.why.startswith(why)
    assert (trainer.steps.kind, trainer.steps.at_once) == ("eager", 1)
    with pytest.raises(UserError, match=re.escape(why)):
        make_job(cuda_graphs="on", **settings).prepare()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"deterministic": False}, "deterministic is false: "),
        ({"loss": {"name": "./my.py:loss"}}, "custom code may do something else"),
        ({"model": {"name": "./my.py:Net"}}, "custom code may do something else"),
    ],
    ids=str,
)
def test_steps_that_a_trial_cant_prove_are_captured_only_with_cuda_graphs_on(
    make_job: MakeJob, settings: dict[str, Any], why: str
) -> None:
    def as_if(kind: str) -> Trainer:
        trainer = make_job(cuda_graphs=kind)
        trainer.experiment = ExperimentPlan.model_validate(
            trainer.experiment.model_dump() | settings
        )
        return trainer

    assert warmed(as_if("auto")).steps.why.startswith(why)
    recorded = trained(as_if("on"))
    assert_recorded(recorded)
    assert ("gave the same bits" in recorded.steps.why) == recorded.experiment.deterministic


def test_steps_are_eager_without_cuda_and_with_cuda_graphs_off(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warmed(make_job(cuda_graphs="off")).steps.why == "params.yaml says so"
    monkeypatch.undo()
    for kind in ("auto", "on"):
        why = warmed(make_job(cuda_graphs=kind)).steps.why
        assert why == "steps are captured on CUDA and ROCm only, not on cpu"


# -- how often they run, and how they are measured ----------


@pytest.mark.parametrize(
    ("source", "images", "graphs_an_epoch", "eager"),
    [
        ({"name": "resident"}, 16, 4, []),  # two batches, two, one and an image, and validation
        ({"name": "resident"}, 15, 4, []),
        ({"name": "resident"}, 13, 4, []),
        ({"name": "resident"}, 12, 3, []),
        (LOADER, 16, 6, [5]),  # whose validation is loaded
    ],
)
def test_an_epoch_runs_none_of_the_networks_python(
    make_job: MakeJob,
    recorder: OperationRecorder,
    source: dict[str, Any],
    images: int,
    graphs_an_epoch: int,
    eager: list[int],
) -> None:
    trainer, sizes = warmed(make_job(input=source, images=images)), list[int]()
    trainer.network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    done = recorder.times_done
    list(trainer.epochs())
    assert sizes == eager * 2
    assert recorder.times_done - done == graphs_an_epoch * 2


@pytest.mark.parametrize("images", [12, 13, 14, 15, 16])
@pytest.mark.parametrize("loss", ["cross_entropy", "mean"])
def test_the_batches_left_at_an_epochs_end_learn_the_same_bits(
    make_job: MakeJob, images: int, loss: str
) -> None:
    """Some are left, or a smaller one, or both. Their losses' gradients are computed together."""
    smoothed = {"name": "cross_entropy", "label_smoothing": 0.1}
    settings = {"images": images, "schedule": ONE_CYCLE, "optimizer": MOMENTUM}
    settings |= {"loss": smoothed} if loss == "mean" else {}
    recorded = trained(make_job(**settings))
    assert_recorded(recorded)
    assert_same_run(recorded, trained(make_job(**settings, cuda_graphs="off")))


@pytest.mark.parametrize(("model", "most"), [("linear", 7), ("mlp", 13)])
def test_a_step_takes_no_more_operations_than_it_must(
    make_job: MakeJob, recorder: OperationRecorder, model: str, most: int
) -> None:
    hidden = {"hidden": (8,)} if model == "mlp" else {}
    trainer = warmed(make_job(model={"name": model, **hidden}, images=12))
    steps = [each for each in recorder.recordings if any("fused" in one.name for one in each)][-1]
    names = [each.name.partition(".")[2].partition(".")[0] for each in steps]
    # The losses' gradients, and the losses, of all steps.
    for once in ("cat", "new_zeros", "scatter_", "stack"):
        names.remove(once)
    assert len(names) <= most * trainer.steps.at_once, names


def test_a_capture_that_fails_while_measuring_leaves_figures_and_a_reason(
    make_job: MakeJob, recorder: OperationRecorder
) -> None:
    trainer = trained(make_job())
    recorder.fails = True
    with scratch_steps(trainer, 2, at_once=2) as ways:
        for take in ways:
            take()
    reason = "; some were measured one by one, as capturing them failed (operation not permitted"
    assert trainer.steps.why.count(reason) == 1
    assert trainer.steps.kind == "graph"  # as the training's own were


def test_launching_captured_steps_is_not_timed(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("photofinish.measure.step_parts.is_accelerator", lambda _device: True)
    recorded, eager = (attributed(trained(make_job(cuda_graphs=kind))) for kind in ("auto", "off"))
    assert recorded.launch_seconds == ()  # so the fixed cost comes from the two sizes of a batch
    assert len(eager.launch_seconds) == 6


def test_captured_steps_are_tried_if_only_the_setting_on_captures_them(
    make_job: MakeJob, recorder: OperationRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(**settings: Any) -> tuple[int, bool]:
        """Return the number of samples, and True if steps were recorded for them."""
        trainer, done = trained(make_job(**settings)), len(recorder.recordings)
        captured = try_change(trainer, 2, 9.0, "captured", {"cuda_graphs": "on"})
        count = len(captured.turns.ratios) if isinstance(captured, Tried) else 0
        return count, len(recorder.recordings) > done

    unproven = {"deterministic": False}
    assert tried(**unproven) == (10, True)
    for refused in ({}, {"cuda_graphs": "off", **unproven}, {"optimizer": DAMPED, **unproven}):
        assert tried(**refused) == (0, False)

    def choose_then_fail(trainer: Trainer) -> Steps:
        steps, recorder.fails = choose_steps(trainer), True
        return steps

    monkeypatch.setattr("photofinish.measure.attribution.choose_steps", choose_then_fail)
    assert tried(**unproven)[0] == 0  # and no launched steps instead


def test_an_input_that_transforms_batches_is_tried_with_steps_launched_one_by_one(
    make_job: MakeJob, recorder: OperationRecorder
) -> None:
    trainer = trained(make_job())
    settings = BatchTransformSettings.model_validate({"name": f"{recipe.__file__}:noisy"})
    for transform in (None, BatchTransform(settings, 0, 3)):
        done = len(recorder.recordings)
        one = OneInput(trainer.experiment.input, trainer.training, batch_transform=transform)
        with scratch_state(trainer) as state:
            with_input(trainer, state, one, 1)
        assert (len(recorder.recordings) > done) is (transform is None)


def test_steps_with_another_precision_or_free_algorithms_are_captured_as_the_trainings_are(
    make_job: MakeJob, recorder: OperationRecorder
) -> None:
    for changes in ({"precision": "tf32"}, {"deterministic": False}):
        trainer, done = trained(make_job()), len(recorder.recordings)
        why = trainer.steps.why
        assert isinstance(try_change(trainer, 2, 0.0, "tf32", changes), Tried)
        assert len(recorder.recordings) > done
        recorder.fails = True
        assert try_change(trainer, 2, 0.0, "tf32", changes) is None
        recorder.fails = False
        assert trainer.steps.why == why


@pytest.mark.parametrize(
    ("images", "batch_size", "most_bytes", "layers", "at_once"),
    [
        (50_000, 128, 256 << 20, 2, 195),  # of 390 whole batches: two layers allow 250
        (50_000, 128, 100 * 128 * 36 * 4, 2, 78),  # the bytes of a hundred batches
        (50_000, 128, 256 << 20, 62, 6),  # the operations of more layers
        (1_010, 10, 7 * 10 * 36 * 4, 2, 5),  # which leaves one over, as seven would three
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
    monkeypatch.setattr(graphs, "MOST_BYTES", most_bytes)
    trainer.training.image_count = images
    most = graphs.steps_per_graph(trainer.experiment, trainer.training, network)
    assert most == at_once
